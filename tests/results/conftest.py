"""Records for the tests of this folder."""

from collections.abc import Callable
from typing import Any

import pytest

from results.columns import Columns
from results.findings.run_view import RunView
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Outcome, RunInfo

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]
MakeView = Callable[..., RunView]

S = 1_000_000_000


@pytest.fixture
def make_request() -> MakeRequest:
    """Return a maker of requests: arrival 0 s, first token 2 s, 5 tokens, end 4 s."""

    def make(**changes: Any) -> RequestRecord:
        fields = {
            "request_id": 0,
            "arrival_ns": 0,
            "queued_ns": changes.get("arrival_ns", 0),
            "num_prompt_tokens": 100,
            "num_output_tokens": 5,
            "max_sample_tokens": 5,
            "first_scheduled_ns": 1 * S,
            "first_token_ns": 2 * S,
            "finished_ns": 4 * S,
            "status": RequestStatus.FINISHED,
            "num_shared_prompt_tokens": changes.get("num_shared_tokens"),
        }
        return RequestRecord(**{**fields, **changes})

    return make


@pytest.fixture
def make_step() -> MakeStep:
    """Return a maker of steps: one sequence decoding in 4 of 10 blocks for 10 ns."""

    def make(**changes: Any) -> StepRecord:
        fields: dict[str, Any] = {
            "start_ns": 0,
            "end_ns": 10,
            "num_steps": 1,
            "first_step_ns": 10,
            "last_step_ns": 10,
            "swap_ns": 0,
            "num_prefill_tokens": 0,
            "num_recomputed_tokens": 0,
            "num_cached_tokens": 0,
            "num_prefill_seqs": 0,
            "num_decode_seqs": 1,
            "num_context_tokens": 60,
            "num_admitted": 0,
            "num_running": 1,
            "num_waiting": 0,
            "num_swapped": 0,
            "num_used_blocks": 4,
            "num_used_blocks_end": 4,
            "num_used_tokens": 60,
            "num_cached_blocks": 0,
            "num_cached_blocks_end": 0,
            "num_used_cpu_blocks": 0,
            "num_head_blocks": 0,
            "num_room_blocks": 0,
            "num_preempted_recompute": 0,
            "num_preempted_swap": 0,
            "num_swap_in_blocks": 0,
            "num_swap_out_blocks": 0,
            "num_offload_load_blocks": 0,
            "num_offload_store_blocks": 0,
            "num_forced_stores": 0,
            "num_copy_on_write": 0,
            "num_evictions": 0,
            "num_regretted_evictions": 0,
        }
        return StepRecord(**{**fields, **changes})

    return make


@pytest.fixture
def make_info() -> MakeInfo:
    """Return a maker of run infos: 10 blocks of 16 tokens and 1 MiB, caching off.

    ``config`` and ``trace`` add to what is there; other names replace a field.
    """

    def make(
        config: dict[str, Any] | None = None,
        trace: dict[str, Any] | None = None,
        **changes: Any,
    ) -> RunInfo:
        knobs: dict[str, Any] = {
            "num_gpu_blocks": 10,
            "num_cpu_blocks": 5,
            "block_size": 16,
            "block_bytes": 2**20,
            "watermark": 0.01,
            "enable_prefix_caching": False,
            "max_model_len": 4096,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 4096,
            "enable_chunked_prefill": False,
            "preemption_mode": None,
            "gpu_memory_utilization": 0.9,
            "gpu_memory_gib": 80.0,
            "swap_space": 4.0,
        }
        known: dict[str, Any] = {
            "name": "chat.jsonl",
            "format": "blockbench",
            "num_requests": 1,
            "num_skipped": 0,
            "duration_s": 1.0,
            "has_sharing": True,
        }
        fields: dict[str, Any] = {
            "source": "simulated",
            "engine": "sim",
            "policy": "v0",
            "config": knobs | (config or {}),
            "trace": known | (trace or {}),
            "outcome": Outcome(),
            "wall_s": 0.5,
        }
        return RunInfo(**{**fields, **changes})

    return make


@pytest.fixture
def make_view(make_info: MakeInfo) -> MakeView:
    """Return a maker of what rules look at, from records and the info's changes."""

    def make(
        requests: list[RequestRecord], steps: list[StepRecord], **changes: Any
    ) -> RunView:
        return RunView(
            make_info(**changes),
            Columns.of(RequestRecord, requests),
            Columns.of(StepRecord, steps),
        )

    return make
