"""Records for the tests of this folder."""

from collections.abc import Callable
from typing import Any

import pytest

from results.record import RequestRecord, RequestStatus, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

S = 1_000_000_000


@pytest.fixture
def make_request() -> MakeRequest:
    """Return a maker of requests: arrival 0 s, first token 2 s, 5 tokens, end 4 s."""

    def make(**changes: Any) -> RequestRecord:
        fields = {
            "request_id": 0,
            "arrival_ns": 0,
            "num_prompt_tokens": 100,
            "num_output_tokens": 5,
            "max_sample_tokens": 5,
            "first_scheduled_ns": 1 * S,
            "first_token_ns": 2 * S,
            "finished_ns": 4 * S,
            "status": RequestStatus.FINISHED,
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
            "num_prefill_tokens": 0,
            "num_cached_tokens": 0,
            "num_prefill_seqs": 0,
            "num_decode_seqs": 1,
            "num_context_tokens": 60,
            "num_running": 1,
            "num_waiting": 0,
            "num_swapped": 0,
            "num_used_blocks": 4,
            "num_used_blocks_end": 4,
            "num_used_tokens": 60,
            "num_cached_blocks": 0,
            "num_preempted_recompute": 0,
            "num_preempted_swap": 0,
            "num_swap_in_blocks": 0,
            "num_swap_out_blocks": 0,
            "num_copy_on_write": 0,
            "num_evictions": 0,
        }
        return StepRecord(**{**fields, **changes})

    return make
