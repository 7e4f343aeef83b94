"""Tests for :mod:`results.kv_usage`."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.columns import Columns, durations_ns
from results.kv_usage import KvUsage, kv_usage, num_usable_blocks, usage_over_time
from results.record import StepRecord

MakeStep = Callable[..., StepRecord]

NUM_BLOCKS = 20
BLOCK_SIZE = 16


def usage_of(
    *steps: StepRecord, num_gpu_blocks: int = 10, caching: bool = False
) -> KvUsage:
    """Return the usage of a pool of 10 blocks of 16 tokens."""
    return kv_usage(
        Columns.of(StepRecord, steps),
        num_gpu_blocks=num_gpu_blocks,
        block_size=BLOCK_SIZE,
        caching=caching,
    )


def test_block_0_of_v1_cannot_be_held() -> None:
    """v1 sets its null block aside; v0 hands out all blocks."""
    assert num_usable_blocks(10, "v1") == 9
    assert num_usable_blocks(10, "v0") == 10


def test_mean_usage_is_weighted_by_time(make_step: MakeStep) -> None:
    """Three times as long counts three times, and idle time counts as empty."""
    steps = [
        make_step(start_ns=0, end_ns=10, num_used_blocks=8, num_used_blocks_end=8),
        make_step(start_ns=50, end_ns=80, num_used_blocks=4, num_used_blocks_end=4),
    ]

    usage = usage_of(*steps)

    assert usage.mean_usage == pytest.approx((8 * 10 + 4 * 30) / 80 / 10)
    assert usage.peak_usage == 0.8


def test_growth_within_a_stretch_counts(make_step: MakeStep) -> None:
    """Blocks taken during a stretch raise the peak, and the mean by half."""
    step = make_step(num_steps=40, num_used_blocks=2, num_used_blocks_end=6)

    usage = usage_of(step)

    assert usage.peak_usage == 0.6
    assert usage.mean_usage == pytest.approx(0.4)


def test_time_counts_from_the_first_step(make_step: MakeStep) -> None:
    """A run that waits for its first request was not empty meanwhile."""
    usage = usage_of(make_step(start_ns=90, end_ns=100))

    assert usage.mean_usage == pytest.approx(0.4)


def test_cached_idle_blocks_shrink_as_active_ones_grow(make_step: MakeStep) -> None:
    """6 reusable blocks of which a stretch takes 4 are 4 on average, 6 at most."""
    step = make_step(
        num_steps=40,
        num_used_blocks=2,
        num_used_blocks_end=6,
        num_cached_blocks=6,
        num_cached_blocks_end=2,
    )

    usage = usage_of(step, caching=True)

    assert usage.peak_cached_idle == 0.6
    assert usage.mean_cached_idle == pytest.approx(0.4)


def test_without_a_step_all_that_was_active_is_cached_idle(make_step: MakeStep) -> None:
    """10 ns with 1 reusable block, 30 ns with 1 + 4 and 10 ns with 3 make 3.8."""
    steps = [
        make_step(start_ns=0, end_ns=10, num_cached_blocks=1, num_cached_blocks_end=1),
        make_step(start_ns=40, end_ns=50, num_cached_blocks=3, num_cached_blocks_end=3),
    ]

    usage = usage_of(*steps, caching=True)

    assert usage.peak_cached_idle == 0.5
    assert usage.mean_cached_idle == pytest.approx(0.1 * (1 * 10 + 5 * 30 + 3 * 10) / 50)


def test_steps_that_follow_at_once_leave_nothing_idle_between(
    make_step: MakeStep,
) -> None:
    """Blocks freed between two steps count from the second on, as it finds them."""
    steps = [make_step(start_ns=0, end_ns=10), make_step(start_ns=10, end_ns=20)]

    usage = usage_of(*steps, caching=True)

    assert usage.peak_cached_idle == usage.mean_cached_idle == 0


def test_what_is_active_is_not_idle_without_caching(make_step: MakeStep) -> None:
    """Without prefix caching there is no figure for reuse, not a 0."""
    usage = usage_of(make_step(num_cached_blocks=2))

    assert usage.peak_cached_idle is None
    assert usage.mean_cached_idle is None


def test_fragmentation_is_the_share_of_empty_slots(make_step: MakeStep) -> None:
    """60 tokens in 4 blocks of 16 leave 4 of 64 slots empty; idle time is left out."""
    steps = [
        make_step(start_ns=0, end_ns=10),
        make_step(
            start_ns=90,
            end_ns=100,
            num_used_blocks=0,
            num_used_blocks_end=0,
            num_used_tokens=0,
        ),
    ]

    usage = usage_of(*steps)

    assert usage.fragmentation == pytest.approx(4 / 64)


def test_fragmentation_counts_the_tokens_of_later_steps(make_step: MakeStep) -> None:
    """Two sequences that decode for five steps have written 8 tokens by the last."""
    step = make_step(num_steps=5, num_decode_seqs=2, num_used_tokens=52)

    usage = usage_of(step)

    assert usage.fragmentation == pytest.approx(1 - (52 + 60) / 2 / 64)


@pytest.mark.parametrize("caching", [False, True])
def test_no_step_leaves_everything_empty(caching: bool) -> None:
    """Where nothing ran there is no usage to speak of."""
    usage = usage_of(caching=caching)

    assert set(asdict(usage).values()) == {None}
    no_steps = Columns.of(StepRecord, [])
    assert usage_over_time(no_steps, num_gpu_blocks=10, num_points=4) == []


def test_no_blocks_leave_everything_empty(make_step: MakeStep) -> None:
    """A pool without a block has no share in use."""
    steps = Columns.of(StepRecord, [make_step()])

    assert set(asdict(usage_of(make_step(), num_gpu_blocks=0)).values()) == {None}
    assert usage_over_time(steps, num_gpu_blocks=0, num_points=4) == []


def test_no_time_has_peaks_and_no_means(make_step: MakeStep) -> None:
    """Steps that took no time were as full as they were, but not for any time."""
    step = make_step(start_ns=7, end_ns=7, num_cached_blocks_end=3)

    usage = usage_of(step, caching=True)

    assert (usage.peak_usage, usage.peak_cached_idle) == (0.4, 0.3)
    assert usage.mean_usage is usage.mean_cached_idle is usage.fragmentation is None
    steps = Columns.of(StepRecord, [step])
    assert usage_over_time(steps, num_gpu_blocks=10, num_points=4) == []


def test_one_block_is_a_pool(make_step: MakeStep) -> None:
    """The smallest pool can be full."""
    step = make_step(num_used_blocks=1, num_used_blocks_end=1, num_used_tokens=16)

    assert usage_of(step, num_gpu_blocks=1).mean_usage == 1
    steps = Columns.of(StepRecord, [step])
    assert usage_over_time(steps, num_gpu_blocks=1, num_points=2) == [1, 1]


def test_course_over_time_keeps_the_mean(make_step: MakeStep) -> None:
    """Each part of the run has its own mean, whichever steps it cuts through."""
    steps = [
        make_step(start_ns=0, end_ns=30, num_used_blocks=10, num_used_blocks_end=10),
        make_step(start_ns=30, end_ns=40, num_used_blocks=2, num_used_blocks_end=2),
    ]

    parts = usage_over_time(
        Columns.of(StepRecord, steps), num_gpu_blocks=10, num_points=2
    )

    assert parts == pytest.approx([1.0, 0.6])


def test_durations_are_those_of_whole_stretches(make_step: MakeStep) -> None:
    """A stretch lasts from its first step's start to its last one's end."""
    steps = [make_step(start_ns=3, end_ns=10), make_step(start_ns=10, end_ns=40)]

    assert durations_ns(Columns.of(StepRecord, steps)).tolist() == [7, 30]


# -- against a loop over every nanosecond --------------------------------------------


@st.composite
def stretches(draw: st.DrawFn) -> list[dict[str, int]]:
    """Draw stretches of steps of equal length, with pauses between some of them."""
    drawn, now = [], draw(st.integers(0, 9))
    for _ in range(draw(st.integers(1, 6))):
        num_steps, step_ns = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        used, cached = draw(st.integers(0, 10)), draw(st.integers(0, 10))
        grown = draw(st.integers(-used, cached)) if num_steps > 1 else 0
        drawn.append(
            {
                "start_ns": now,
                "end_ns": now + num_steps * step_ns,
                "num_steps": num_steps,
                "num_used_blocks": used,
                "num_used_blocks_end": used + grown,
                "num_cached_blocks": cached,
                "num_cached_blocks_end": cached - grown,
                "num_used_tokens": draw(st.integers(0, used * BLOCK_SIZE)),
                "num_decode_seqs": draw(st.integers(0, 3)),
            }
        )
        now += num_steps * step_ns + draw(st.integers(0, 1)) * draw(st.integers(0, 9))
    return drawn


def single_steps(stretch: dict[str, int]) -> list[tuple[int, float, float, int]]:
    """List what each step holds: its time, active and idle blocks, tokens."""
    num_steps = stretch["num_steps"]
    step_ns = (stretch["end_ns"] - stretch["start_ns"]) // num_steps
    grown = stretch["num_used_blocks_end"] - stretch["num_used_blocks"]
    return [
        (
            step_ns,
            stretch["num_used_blocks"] + grown * k / max(num_steps - 1, 1),
            stretch["num_cached_blocks"] - grown * k / max(num_steps - 1, 1),
            stretch["num_used_tokens"] + k * stretch["num_decode_seqs"],
        )
        for k in range(num_steps)
    ]


def every_ns(drawn: list[dict[str, int]]) -> list[tuple[float, float]]:
    """List active and idle blocks in each nanosecond from the first step on."""
    listed: list[tuple[float, float]] = []
    for stretch, following in pairwise([*drawn, None]):
        assert stretch is not None
        for step_ns, active, idle, _ in single_steps(stretch):
            listed += [(active, idle)] * step_ns
        if following is not None:
            freed = stretch["num_used_blocks_end"] + stretch["num_cached_blocks_end"]
            listed += [(0, freed)] * (following["start_ns"] - stretch["end_ns"])
    return listed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=stretches())
def test_usage_is_that_of_every_nanosecond(
    make_step: MakeStep, drawn: list[dict[str, int]]
) -> None:
    """Stretches give what a loop over single steps, and over pauses, adds up to."""
    steps = [make_step(**stretch) for stretch in drawn]

    usage = usage_of(*steps, num_gpu_blocks=NUM_BLOCKS, caching=True)

    active, idle = zip(*every_ns(drawn), strict=True)
    assert usage.peak_usage == pytest.approx(max(active) / NUM_BLOCKS)
    assert usage.mean_usage == pytest.approx(np.mean(active) / NUM_BLOCKS)
    assert usage.peak_cached_idle == pytest.approx(max(idle) / NUM_BLOCKS)
    assert usage.mean_cached_idle == pytest.approx(np.mean(idle) / NUM_BLOCKS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=stretches())
def test_fragmentation_is_that_of_every_step(
    make_step: MakeStep, drawn: list[dict[str, int]]
) -> None:
    """Each stretch has the empty slots of its single steps, weighted by its time."""
    steps = [make_step(**stretch) for stretch in drawn]

    fragmentation = usage_of(*steps, num_gpu_blocks=NUM_BLOCKS).fragmentation

    empty, weights = [], []
    for stretch in drawn:
        listed = single_steps(stretch)
        slots = sum(active * BLOCK_SIZE for _, active, _, _ in listed)
        if slots > 0:
            empty.append(1 - sum(tokens for *_, tokens in listed) / slots)
            weights.append(sum(step_ns for step_ns, *_ in listed))
    if not empty:
        assert fragmentation is None
        return
    assert fragmentation == pytest.approx(np.average(empty, weights=weights), abs=1e-12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=stretches(), num_points=st.integers(1, 7))
def test_course_is_that_of_every_nanosecond(
    make_step: MakeStep, drawn: list[dict[str, int]], num_points: int
) -> None:
    """Each part has the mean of its own time; a stretch counts with its own mean."""
    stretched = [
        stretch
        | {name: num_points * stretch[name] for name in ("start_ns", "end_ns")}
        | {"num_used_blocks_end": stretch["num_used_blocks"]}
        for stretch in drawn
    ]
    steps = Columns.of(StepRecord, [make_step(**stretch) for stretch in stretched])

    course = usage_over_time(steps, num_gpu_blocks=NUM_BLOCKS, num_points=num_points)

    active = np.array([active for active, _ in every_ns(stretched)])
    naive = active.reshape(num_points, -1).mean(axis=1) / NUM_BLOCKS
    assert course == pytest.approx(naive.tolist(), abs=1e-12)
