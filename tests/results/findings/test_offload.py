"""Tests for :mod:`results.findings.offload`: a tier too small, useless or in the way."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.finding import Finding
from results.findings.offload import find_offload
from results.findings.prefix_cache import find_prefix_cache
from results.findings.run_view import RunView
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, Outcome

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]
View = Callable[..., RunView]

S = 1_000_000_000
STORED = {"num_offload_store_blocks": 4, "num_used_cpu_blocks": 4}


@pytest.fixture
def view(make_request: MakeRequest, make_view: MakeView) -> View:
    """Return a maker of v1 views: 20 requests, 6 blocks each, blocks of 1 GiB."""

    def make(
        steps: list[StepRecord],
        request: dict[str, Any] | None = None,
        num_requests: int = 20,
        outcome: Outcome | None = None,
        **knobs: Any,
    ) -> RunView:
        fields = {"num_shared_tokens": 0} | (request or {})
        requests = [make_request(request_id=i, **fields) for i in range(num_requests)]
        given = {"vllm_version": "0.32.0", "enable_prefix_caching": True}
        return make_view(
            requests,
            steps,
            policy="v1",
            config=given | {"block_bytes": 2**30} | knobs,
            outcome=outcome or Outcome(),
        )

    return make


def only(found: list[Finding]) -> Finding:
    """Return the one finding there is."""
    (finding,) = found
    return finding


# -- too small ---------------------------------------------------------------------------

MISSED = {"num_shared_tokens": 80, "num_prompt_tokens": 100, "num_cached_tokens": 0}


def prefill(make_step: MakeStep, **changes: Any) -> StepRecord:
    """Return a step that computes prompts for a second."""
    fields = {"end_ns": S, "first_step_ns": S, "last_step_ns": S}
    tokens = {"num_prefill_tokens": 2000, "num_prefill_seqs": 20, "num_decode_seqs": 0}
    return make_step(**fields | tokens | changes)


def test_offload_tier_small(make_step: MakeStep, view: View) -> None:
    """80 of 100 tokens could have been hits, and 26 of 30 blocks stored are gone."""
    step = prefill(make_step, num_offload_store_blocks=30, num_used_cpu_blocks=4)
    steps = [step, make_step(start_ns=S, end_ns=S + 10, num_used_cpu_blocks=4)]
    run = view(steps, MISSED, num_requests=4)

    small = only(find_offload(run))

    assert small.code == "offload_tier_small"
    assert small.severity == "warning"
    assert small.message == (
        "0 % of prompt tokens were hits where 80 % could have been: the 5 blocks of the"
        " offload tier could not keep 26 of those that prompts filled"
    )
    assert small.advice == (
        "--kv-offloading-size 4, GiB of host memory, would hold all 4 blocks of these"
        " prompts; less may do"
    )


def test_tier_holds_the_parts_of_all_gpus(make_step: MakeStep, view: View) -> None:
    """Two GPUs of 1 GiB a block make 2 GiB of each block of the tier."""
    step = prefill(make_step, num_offload_store_blocks=30, num_used_cpu_blocks=4)
    run = view([step], MISSED, num_requests=4, tensor_parallel_size=2)

    assert only(find_offload(run)).advice.startswith("--kv-offloading-size 8, GiB")


def test_tier_larger_than_a_host_is_no_advice(make_step: MakeStep, view: View) -> None:
    """1,200 GiB are named as what it would take, not as a value to give."""
    step = prefill(make_step, num_offload_store_blocks=30, num_used_cpu_blocks=4)
    run = view([step], MISSED, num_requests=4, block_bytes=300 * 2**30)

    assert only(find_offload(run)).advice == (
        "--kv-offloading-size finds more the larger it is; all 4 blocks of these prompts"
        " would take 1,200 GiB of host memory"
    )


def test_prompts_that_were_never_stored_are_lost_too(
    make_step: MakeStep, view: View
) -> None:
    """An offer larger than the tier stores nothing: all four blocks are not there."""
    step = prefill(make_step, num_offload_store_blocks=0, num_used_cpu_blocks=0)
    missed = MISSED | {"num_shared_tokens": 32, "num_prompt_tokens": 100}

    small = only(find_offload(view([step], missed, num_requests=4)))

    assert "could not keep 16 of those" in small.message


@pytest.mark.parametrize(
    ("request_changes", "step_changes"),
    [
        ({"num_cached_tokens": 75}, {}),
        ({}, {"num_used_cpu_blocks": 25}),
    ],
)
def test_tier_is_not_too_small_without_need(
    request_changes: dict[str, Any],
    step_changes: dict[str, Any],
    make_step: MakeStep,
    view: View,
) -> None:
    """Hits were found, or what was stored is still there."""
    fields = {"num_offload_store_blocks": 30, "num_used_cpu_blocks": 4}
    step = prefill(make_step, num_offload_load_blocks=1, **fields | step_changes)
    run = view([step], MISSED | request_changes, num_requests=4)

    assert find_offload(run) == []


def test_evicted_prefixes_are_for_the_tier_to_hold(
    make_step: MakeStep, view: View
) -> None:
    """Without a tier one is advised; with one it is a matter of its size."""
    step = prefill(make_step, num_evictions=40, num_regretted_evictions=30)
    without = view([step], MISSED, num_requests=4, num_cpu_blocks=0)
    older = {"num_cpu_blocks": 0, "vllm_version": "0.11.0"}

    evicted = only(find_prefix_cache(without))
    before = only(find_prefix_cache(view([step], MISSED, num_requests=4, **older)))

    assert evicted.code == before.code == "prefixes_evicted"
    assert evicted.advice.startswith("--kv-offloading-size 4, GiB")
    assert "offloading" not in before.advice
    assert find_prefix_cache(view([step], MISSED, num_requests=4)) == []


# -- of no use ---------------------------------------------------------------------------


def test_offload_unused(make_step: MakeStep, view: View) -> None:
    """4 blocks went there and none came back."""
    unused = only(find_offload(view([make_step(**STORED)])))

    assert unused.code == "offload_unused"
    assert unused.severity == "info"
    assert unused.message == (
        "4 blocks, 4.0 GiB, went to the offload tier and none came back: no prompt found"
        " anything"
    )
    assert unused.advice == (
        "leave --kv-offloading-size out: for this load it frees 5.0 GiB of host memory"
        " and costs nothing"
    )


def test_tier_is_unused_where_the_gpu_had_it_all(make_step: MakeStep, view: View) -> None:
    """Hits without a load were in the GPU's blocks."""
    unused = only(find_offload(view([make_step(**STORED)], {"num_cached_tokens": 9})))

    assert unused.message.endswith("whatever was hit was still in the GPU's blocks")


@pytest.mark.parametrize(
    ("step_changes", "changes"),
    [
        ({"num_offload_load_blocks": 1}, {}),
        ({"num_offload_store_blocks": 0, "num_used_cpu_blocks": 0}, {}),
        ({}, {"num_requests": 19}),
        ({}, {"outcome": Outcome(ending=Ending.INTERRUPTED)}),
        ({}, {"num_cpu_blocks": 0}),
    ],
)
def test_tier_is_not_called_useless_too_early(
    step_changes: dict[str, Any],
    changes: dict[str, Any],
    make_step: MakeStep,
    view: View,
) -> None:
    """Something came back or nothing went; few requests; half a run; no tier."""
    assert find_offload(view([make_step(**STORED | step_changes)], **changes)) == []


# -- in the way --------------------------------------------------------------------------


def test_forced_stores(make_step: MakeStep, view: View) -> None:
    """1 of 10 ns went by waiting for two stores."""
    used = {"num_offload_load_blocks": 1, "num_forced_stores": 2}
    step = make_step(end_ns=10, swap_ns=1, **STORED | used)

    forced = only(find_offload(view([step], num_fitting_gpu_blocks=100)))

    assert forced.code == "forced_stores"
    assert forced.severity == "warning"
    assert forced.message == (
        "10 % of the time of steps went into waiting for 2 copies to the offload tier"
        " whose blocks were given to others meanwhile"
    )
    assert forced.advice.startswith("--num-gpu-blocks-override")
    assert forced.advice.endswith("; or leave --kv-offloading-size out")


def test_a_short_wait_for_stores_is_not_felt(make_step: MakeStep, view: View) -> None:
    """A twenty-fifth of the time is below the threshold."""
    step = make_step(end_ns=25, swap_ns=1, num_offload_load_blocks=1, **STORED)

    assert find_offload(view([step])) == []
