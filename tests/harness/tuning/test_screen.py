"""Tests for :mod:`harness.tuning.screen`: what cannot matter, and what only seems so."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.analysis.miss_ratio import HitCurve, hit_curve
from harness.tuning.screen import Screened, screen
from harness.tuning.space import Space
from harness.tuning.trial import Needs, Trial
from harness.workload import Workload

MakeTrial = Callable[..., Trial]
MakeWorkload = Callable[..., Workload]

SPACE = Space(
    {
        "gpu_memory_utilization": (0.8, 0.9, 0.92, 0.95),
        "block_size": (16, 32),
        "max_num_seqs": (16, 64, 256, 1024),
        "max_num_batched_tokens": (512, 2048, 8192, 16384),
        "enable_prefix_caching": (False, True),
        "kv_offloading_size": (0.0, 8.0),
        "swap_space": (0.0, 4.0),
        "watermark": (0.0, 0.01),
    }
)
MEMORY = {"gpu_memory_utilization", "swap_space", "kv_offloading_size", "watermark"}
ROOMY = Needs(seqs=50, batched_tokens=1000, share_of_blocks=0.4)


@pytest.fixture(scope="module")
def curve(make_workload: MakeWorkload) -> HitCurve | None:
    """Return the curve of a trace in which four prefixes come back."""
    return hit_curve(make_workload(), block_size=16)


def screened(
    make_trial: MakeTrial,
    curve: HitCurve | None,
    *,
    space: Space = SPACE,
    safest: float = 0.95,
    is_shared: bool = False,
    has_samples: bool = False,
    **trial: Any,
) -> Screened:
    """What is left after a start that came to this."""
    start = make_trial(**{"needs": ROOMY, **trial})
    return screen(
        space, start, curve, safest, is_shared=is_shared, has_samples=has_samples
    )


def test_memory_that_is_not_short_is_ruled_out(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """Nobody waits, nobody is preempted, and no evicted block is wanted again."""
    found = screened(make_trial, curve)

    assert set(found.ruled_out) == MEMORY
    assert "40 % of the blocks" in found.ruled_out["gpu_memory_utilization"]


@pytest.mark.parametrize(
    "sign",
    [
        {"counts": {"preemptions": 1}},
        {"waste": {"head_of_line_s": 0.5}},
        {"waste": {"regretted_evictions": 1}},
        {"needs": Needs(seqs=50, batched_tokens=1000, share_of_blocks=0.95)},
        {"enable_prefix_caching": False},
        {"trouble": "nothing could progress"},
    ],
)
def test_any_sign_of_short_memory_keeps_its_knobs(
    make_trial: MakeTrial, curve: HitCurve, sign: dict[str, Any]
) -> None:
    """Hits lost, requests that would not have fitted, a cache that is not on yet."""
    assert not MEMORY & set(screened(make_trial, curve, **sign).ruled_out)


def test_on_a_shared_gpu_spare_memory_is_still_searched(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """What is left over is of use to others."""
    found = screened(make_trial, curve, is_shared=True)

    assert "gpu_memory_utilization" in found.space.choices


def test_prefixes_that_nobody_shares_need_no_cache(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Caching stays as it is, and nothing is offloaded."""
    alone = hit_curve(make_workload(prefix=0), block_size=16)
    found = screened(make_trial, alone, waste={"head_of_line_s": 0.5})

    assert set(found.ruled_out) == {"enable_prefix_caching", "kv_offloading_size"}
    assert "0.0 % of prompt tokens" in found.ruled_out["enable_prefix_caching"]


def test_a_tier_may_spare_preempted_requests_their_prompts(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Even where no two begin alike: they are found again when they come back."""
    alone = hit_curve(make_workload(prefix=0), block_size=16)

    found = screened(make_trial, alone, counts={"preemptions": 3})

    assert set(found.ruled_out) == {"enable_prefix_caching"}


def test_without_sharing_information_nothing_is_said_of_caches(
    make_trial: MakeTrial,
) -> None:
    """Both knobs stay, with that reason."""
    found = screened(make_trial, None, counts={"preemptions": 3})

    assert set(found.ruled_out) == {"enable_prefix_caching", "kv_offloading_size"}
    assert "does not say" in found.ruled_out["kv_offloading_size"]


def test_a_tier_is_not_searched_beside_a_cache_that_stays_off(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """It needs prefix caching."""
    space = SPACE.without("enable_prefix_caching")
    sign = {"preemptions": 1}

    found = screened(
        make_trial, curve, space=space, counts=sign, enable_prefix_caching=False
    )

    assert set(found.ruled_out) == {"kv_offloading_size"}


def test_limits_that_no_batch_came_near_are_not_raised(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """Smaller values stay, and the start's stands for all that are large enough."""
    choices = screened(make_trial, curve).space.choices

    assert choices["max_num_seqs"] == (16, 1024)
    assert choices["max_num_batched_tokens"] == (512, 8192)


def test_batches_may_grow_where_memory_is_short(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """Then values up to twice of what the largest batch had stay."""
    choices = screened(make_trial, curve, counts={"preemptions": 1}).space.choices

    assert choices["max_num_seqs"] == (16, 64, 1024)
    assert choices["max_num_batched_tokens"] == (512, 8192)


def test_a_limit_that_was_reached_may_be_raised(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """All its values stay."""
    needs = Needs(seqs=1024, batched_tokens=8192, share_of_blocks=0.4)

    choices = screened(make_trial, curve, needs=needs).space.choices

    assert choices["max_num_seqs"] == SPACE.choices["max_num_seqs"]
    assert choices["max_num_batched_tokens"] == SPACE.choices["max_num_batched_tokens"]


@pytest.mark.parametrize(("safest", "most"), [(0.93, 0.92), (0.9, 0.92), (0.0, 0.92)])
def test_utilizations_that_may_run_out_are_not_proposed(
    make_trial: MakeTrial, curve: HitCurve, safest: float, most: float
) -> None:
    """What one has is, whatever it is."""
    found = screened(make_trial, curve, safest=safest, counts={"preemptions": 1})

    assert max(found.space.choices["gpu_memory_utilization"]) == most


def test_a_space_without_a_knob_is_screened_as_well(
    make_trial: MakeTrial, curve: HitCurve
) -> None:
    """Somebody fixed them all."""
    found = screened(make_trial, curve, space=Space({}))

    assert found.space.choices == {}
    assert found.ruled_out == {}


@pytest.mark.parametrize(
    ("has_samples", "in_parts", "is_left"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_no_prompts_in_parts_beside_samples(
    make_trial: MakeTrial,
    curve: HitCurve,
    *,
    has_samples: bool,
    in_parts: bool,
    is_left: bool,
) -> None:
    """Where there are none yet; else a search is to find the way out."""
    space = Space({**SPACE.choices, "enable_chunked_prefill": (False, True)})

    found = screened(
        make_trial,
        curve,
        space=space,
        has_samples=has_samples,
        enable_chunked_prefill=in_parts,
    )

    assert ("enable_chunked_prefill" in found.ruled_out) == is_left
