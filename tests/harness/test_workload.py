"""Tests for :mod:`harness.workload`."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from harness.errors import UsageError
from harness.request import Request
from harness.run_columns import RunColumns
from harness.workload import Workload, draw_arrivals_ns

RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)), min_size=1, max_size=4)
S = 1_000_000_000


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Workloads with conversations, in time order."""
    times = sorted(draw(st.lists(st.integers(0, 10**12), min_size=1, max_size=12)))
    requests = [
        Request(
            request_id=i,
            arrival_ns=time,
            prompt=tuple(prompt := draw(RUNS)),
            num_prompt_tokens=sum(length for _, length in prompt),
            outputs=tuple(draw(RUNS)),
            priority=draw(st.integers(-2, 2)),
            extra_keys=draw(st.sampled_from([(), ("salt", "x")])),
        )
        for i, time in enumerate(times)
    ]
    parent = [draw(st.integers(-1, i - 1)) for i in range(len(times))]
    delays = [draw(st.integers(0, 10**10)) if p >= 0 else 0 for p in parent]
    return Workload.from_requests(requests, parent=parent, delay_ns=delays)


def _content(request: Request) -> tuple[object, ...]:
    return request.prompt, request.outputs, request.priority, request.extra_keys


@given(st.lists(RUNS, min_size=1), st.data())
def test_columns_hold_what_was_put_in(
    rows: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Runs read back are the runs given, whichever rows are taken."""
    columns = RunColumns.from_runs(rows)
    taken = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))

    part = columns.take(np.array(taken))

    assert [part.runs(i) for i in range(len(part))] == [tuple(rows[i]) for i in taken]
    assert part.totals().tolist() == [sum(n for _, n in rows[i]) for i in taken]


@given(workloads())
def test_request_agrees_with_the_columns(workload: Workload) -> None:
    """A request's token counts are those of the columns."""
    requests = [workload.request(i) for i in range(len(workload))]

    assert [r.num_prompt_tokens for r in requests] == workload.input_tokens.tolist()
    assert [
        sum(n for _, n in r.outputs) for r in requests
    ] == workload.output_tokens.tolist()


@given(workloads(), st.integers(0, 11), st.integers(1, 12))
def test_selection_is_a_workload_of_its_own(
    workload: Workload, start: int, count: int
) -> None:
    """A slice keeps content and gaps, starts at 0, and no turn waits for what is cut."""
    start = min(start, len(workload) - 1)
    part = workload.select(slice(start, start + count))

    whole = [workload.request(i) for i in range(len(workload))][start : start + count]
    kept = [part.request(i) for i in range(len(part))]
    assert [_content(r) for r in kept] == [_content(r) for r in whole]
    assert [r.request_id for r in kept] == list(range(len(kept)))
    assert part.arrival_ns.min() == 0
    assert (
        np.diff(part.arrival_ns).tolist()
        == np.diff([r.arrival_ns for r in whole]).astype(int).tolist()
    )
    for i, parent in enumerate(workload.parent[start : start + count].tolist()):
        assert part.parent[i] == (parent - start if parent >= start else -1)
        assert part.delay_ns[i] == (
            workload.delay_ns[start + i] if parent >= start else 0
        )


def test_selection_warns_of_its_bias() -> None:
    """A part of a trace says that it is one, and how many turns it cut loose."""
    requests = [_request(i, i) for i in range(4)]
    workload = Workload.from_requests(requests, parent=[-1, 0, 1, -1])

    first, second = workload.select(slice(2, None)).notes

    assert first.startswith("2 of 4 requests")
    assert second.startswith("1 of the turns start on their own")
    assert workload.select(slice(None)).notes == ()


@pytest.mark.parametrize("part", [slice(3, 3), slice(9, None), slice(None, None, -1)])
def test_empty_selection_is_refused(part: slice) -> None:
    """A slice that selects nothing, or runs backwards, is a usage error."""
    workload = Workload.from_requests([_request(i, i) for i in range(4)])

    with pytest.raises(UsageError, match="must select, in order, some of the 4"):
        workload.select(part)


@given(workloads(), st.sampled_from([0.5, 2.0, 3.0, 10.0]))
def test_speedup_scales_every_time(workload: Workload, speedup: float) -> None:
    """Arrivals and delays are divided by the speedup, to half a nanosecond."""
    faster = workload.retimed(speedup=speedup)

    for name in ("arrival_ns", "delay_ns"):
        exact = getattr(workload, name) / speedup
        assert np.abs(getattr(faster, name) - exact).max() <= 0.5
    assert faster.duration_s == pytest.approx(workload.duration_s / speedup, abs=2e-9)


@given(workloads())
def test_new_rate_moves_conversations_whole(workload: Workload) -> None:
    """Under a request rate, a turn stays as far behind the turn before as it was."""
    moved = workload.retimed(request_rate=3.0, seed=1)

    for turn in np.flatnonzero(workload.parent >= 0):
        before = workload.parent[turn]
        assert (
            moved.arrival_ns[turn] - moved.arrival_ns[before]
            == workload.arrival_ns[turn] - workload.arrival_ns[before]
        )
    assert moved.delay_ns.tolist() == workload.delay_ns.tolist()
    assert moved.arrival_ns.min() == 0


def test_rate_counts_turns() -> None:
    """Conversations of two turns start at half the request rate."""
    requests = [_request(i, i) for i in range(6)]
    workload = Workload.from_requests(requests, parent=[-1, 0, -1, 2, -1, 4])

    moved = workload.retimed(request_rate=4.0, burstiness=math.inf)

    assert moved.arrival_ns[[0, 2, 4]].tolist() == [0, S // 2, S]


def test_seed_decides_the_arrivals() -> None:
    """The same seed gives the same arrivals, another seed others."""
    workload = Workload.from_requests([_request(i, i) for i in range(50)])

    first, again, other = (
        workload.retimed(request_rate=2.0, seed=seed).arrival_ns.tolist()
        for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness: float) -> None:
    """Gaps follow a gamma distribution whose mean is one over the rate."""
    times = draw_arrivals_ns(5000, 8.0, burstiness, np.random.default_rng(0))

    gaps = np.diff(times) / S
    fit = kstest(gaps, "gamma", args=(burstiness, 0, 1 / (8 * burstiness)))

    assert times[0] == 0
    assert fit.pvalue > 0.01


def test_extreme_burstiness_and_rate() -> None:
    """Infinite burstiness gives equal gaps, an infinite rate none at all."""
    rng = np.random.default_rng(0)

    assert draw_arrivals_ns(4, 2.0, math.inf, rng).tolist() == [0, S // 2, S, 3 * S // 2]
    assert draw_arrivals_ns(3, math.inf, 1.0, rng).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "timing",
    [
        {"speedup": 0.0},
        {"speedup": math.nan},
        {"speedup": math.inf},
        {"request_rate": 0.0},
        {"request_rate": math.nan},
        {"request_rate": 1e-300},
        {"request_rate": 1.0, "burstiness": 0.0},
        {"request_rate": 1.0, "speedup": 2.0},
    ],
)
def test_impossible_timing_is_refused(timing: dict[str, float]) -> None:
    """Rates and factors that are not above 0, or contradict, are usage errors."""
    workload = Workload.from_requests([_request(0, 0), _request(1, 5)])

    with pytest.raises(UsageError):
        workload.retimed(**timing)  # type: ignore[arg-type]


def _request(request_id: int, arrival_ns: int) -> Request:
    return Request(
        request_id=request_id,
        arrival_ns=arrival_ns,
        prompt=((request_id, 5),),
        num_prompt_tokens=5,
        outputs=((100 + request_id, 2),),
    )


@pytest.mark.parametrize("speedup", [1e-12, 1e-300])
def test_speedup_that_never_finishes_is_refused(speedup: float) -> None:
    """Times beyond what nanoseconds can count are an error, not an overflow."""
    requests = [
        Request(
            request_id=i,
            arrival_ns=i * 10**9,
            prompt=((i, 5),),
            num_prompt_tokens=5,
            outputs=((100 + i, 5),),
        )
        for i in range(2)
    ]

    with pytest.raises(UsageError, match="too small to ever finish"):
        Workload.from_requests(requests).retimed(speedup=speedup)


def test_burstiness_that_never_finishes_is_refused() -> None:
    """Gaps that overflow are an error, not a wrong number."""
    with pytest.raises(UsageError, match="never finishes"):
        draw_arrivals_ns(5, 5.0, 1e-300, np.random.default_rng(0))
