"""Tests for :mod:`results.queueing`."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.columns import Columns
from results.queueing import MIN_REQUESTS, QueueTrend, queue_trend
from results.record import RequestRecord, RequestStatus, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
Served = Callable[[Sequence[float], float], QueueTrend]

S = 1_000_000_000
NEVER_RAN: dict[str, Any] = {
    "first_scheduled_ns": None,
    "first_token_ns": None,
    "status": RequestStatus.FAILED,
}


def trend_of(
    requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> QueueTrend | None:
    """Return the trend of these rows."""
    return queue_trend(Columns.of(RequestRecord, requests), Columns.of(StepRecord, steps))


@pytest.fixture
def served(make_request: MakeRequest, make_step: MakeStep) -> Served:
    """Return the trend of requests at these seconds, served one after another."""

    def run(arrivals_s: Sequence[float], service_s: float) -> QueueTrend:
        free_s, requests = 0.0, []
        for arrival_s in arrivals_s:
            start_s = max(arrival_s, free_s)
            free_s = start_s + service_s
            requests.append(
                make_request(
                    arrival_ns=round(arrival_s * S),
                    first_scheduled_ns=round(start_s * S),
                    finished_ns=round(free_s * S),
                )
            )
        trend = trend_of(requests, [make_step(end_ns=round(free_s * S))])
        assert trend is not None
        return trend

    return run


def poisson_s(seed: int, per_s: float, count: int = 400) -> list[float]:
    """Return times of so many random arrivals."""
    gaps = np.random.default_rng(seed).exponential(1 / per_s, count)
    return [float(time) for time in np.cumsum(gaps)]


# -- what grows ----------------------------------------------------------------------


def test_an_overloaded_queue_grows(served: Served) -> None:
    """20 requests a second apart that take 2 s each: request k waits k seconds."""
    trend = served(range(20), 2.0)

    assert trend.span_s == 19
    assert trend.wait_s == (2, 7, 12, 17)
    assert trend.is_growing


def test_a_burst_is_a_queue_that_grows(served: Served) -> None:
    """All at once, each waits for those before it, and there is no rate at all."""
    trend = served([0.0] * 20, 1.0)

    assert trend == QueueTrend(num_requests=20, span_s=0, wait_s=(2, 7, 12, 17))
    assert trend.is_growing


def test_an_idle_queue_does_not_grow(served: Served) -> None:
    """Who comes when the one before is done never waits."""
    trend = served(range(20), 1.0)

    assert trend.wait_s == (0, 0, 0, 0)
    assert not trend.is_growing


@pytest.mark.parametrize("seed", range(20))
def test_a_busy_queue_that_settles_does_not_grow(served: Served, seed: int) -> None:
    """Random arrivals at 70 % of what can be served queue up and settle again."""
    trend = served(poisson_s(seed, per_s=0.7), 1.0)

    assert max(trend.wait_s) > 0.5
    assert not trend.is_growing


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_above_capacity_grow(served: Served, seed: int) -> None:
    """Arrivals at one and a half times what can be served make the queue grow."""
    assert served(poisson_s(seed, per_s=1.5), 1.0).is_growing


def test_a_queue_that_drained_does_not_grow(served: Served) -> None:
    """A burst at the start, then room to spare: the waits rise and fall."""
    arrivals = [*[0.0] * 20, *(10.0 + 2 * k for k in range(60))]

    trend = served(arrivals, 1.0)

    assert trend.wait_s[0] > 9
    assert trend.wait_s[-1] == 0
    assert not trend.is_growing


@pytest.mark.parametrize(
    ("span_s", "wait_s", "is_growing"),
    [
        (10, (1, 2, 3, 4), True),
        (10, (1, 2, 2, 4), True),
        (10, (2, 1, 3, 4), True),
        (10, (2, 3, 4, 3.9), False),  # less than twice the first
        (10, (1, 2, 4, 3), True),
        (10, (1, 2, 4, 2.9), False),  # less than three quarters of the longest
        (10, (0, 0.1, 0.2, 1.0), True),
        (0, (0, 0.1, 0.2, 1.0), True),
        (0, (0, 0.1, 0.2, 0.99), False),
        (80, (1, 2, 3, 4), True),
        (81, (1, 2, 3, 4), False),
    ],
)
def test_growing_means_each_quarter_and_much(
    span_s: float, wait_s: tuple[float, ...], is_growing: bool
) -> None:
    """The last quarter: twice the first, most of the longest, 1 s, 5 % of the time."""
    trend = QueueTrend(num_requests=400, span_s=span_s, wait_s=wait_s)

    assert trend.is_growing is is_growing


@pytest.mark.parametrize(
    ("num_requests", "span_s", "is_growing"),
    [
        (25, 20, True),  # 4 s of 20, 1 in 5
        (25, 20.1, False),
        (100, 40, True),  # 1 in 10
        (100, 40.1, False),
        (399, 79.8, True),
        (399, 80, False),
        (10_000, 80, True),  # 5 % suffice of however many
        (10_000, 80.1, False),
    ],
)
def test_few_requests_must_wait_for_more_of_the_time(
    num_requests: int, span_s: float, is_growing: bool
) -> None:
    """One in the square root of their number, where that is more than 5 %."""
    wait_s = (1, 2, 3, 4)

    trend = QueueTrend(num_requests=num_requests, span_s=span_s, wait_s=wait_s)

    assert trend.is_growing is is_growing


def test_the_waits_add_up(served: Served) -> None:
    """Twenty requests of which request k waits k seconds waited 190 s."""
    assert served(range(20), 2.0).total_s == 190


# -- what counts ---------------------------------------------------------------------


def test_the_trend_needs_enough_requests(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Of 19 requests there is nothing to tell, of 20 there is."""
    step = make_step(end_ns=99 * S)

    assert MIN_REQUESTS == 20
    assert trend_of([make_request()] * 19, [step]) is None
    assert trend_of([make_request()] * 20, [step]) is not None
    assert trend_of([], []) is None


def test_quarters_follow_the_arrivals(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Whatever order the rows have, the first to come are the first quarter."""
    requests = [
        make_request(arrival_ns=k * S, first_scheduled_ns=(k + k // 5) * S)
        for k in range(20)
    ]
    random.Random(0).shuffle(requests)

    trend = trend_of(requests, [make_step(end_ns=99 * S)])

    assert trend == QueueTrend(num_requests=20, span_s=19, wait_s=(0, 1, 2, 3))


def test_who_still_waits_has_waited_until_the_end(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Twenty requests of which none was ever admitted waited for the whole run."""
    waiting = make_request(finished_ns=None, **NEVER_RAN)

    trend = trend_of([waiting] * 20, [make_step(end_ns=3 * S), make_step(end_ns=8 * S)])

    assert trend == QueueTrend(num_requests=20, span_s=0, wait_s=(8, 8, 8, 8))


def test_who_gave_up_has_waited_until_then(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """A request that was dismissed while it waited counts to that moment."""
    dismissed = make_request(finished_ns=5 * S, **NEVER_RAN)

    trend = trend_of([dismissed] * 20, [make_step(end_ns=8 * S)])

    assert trend == QueueTrend(num_requests=20, span_s=0, wait_s=(5, 5, 5, 5))


def test_who_never_waited_does_not_count(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Requests refused at the door, or due after the end, make no queue."""
    refused = make_request(finished_ns=0, **NEVER_RAN)
    after_the_end = make_request(arrival_ns=8 * S + 1, finished_ns=None, **NEVER_RAN)
    step = make_step(end_ns=8 * S)

    assert trend_of([refused] * 30 + [after_the_end] * 30, [step]) is None
    trend = trend_of([make_request()] * 20 + [refused, after_the_end] * 30, [step])
    assert trend == QueueTrend(num_requests=20, span_s=0, wait_s=(1, 1, 1, 1))


def test_waits_begin_when_the_scheduler_has_a_request(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """On the way there nobody waits: not when refused there, nor when the run ends."""
    came = make_request(queued_ns=S // 4)
    refused = make_request(queued_ns=3 * S, finished_ns=3 * S, **NEVER_RAN)
    on_its_way = make_request(
        arrival_ns=7 * S, queued_ns=9 * S, finished_ns=None, **NEVER_RAN
    )

    trend = trend_of([came] * 20 + [refused, on_its_way] * 30, [make_step(end_ns=8 * S)])

    assert trend == QueueTrend(num_requests=20, span_s=0, wait_s=(0.75,) * 4)


def test_the_shortest_wait_counts(make_request: MakeRequest, make_step: MakeStep) -> None:
    """Requests that came a nanosecond before the end were waiting then."""
    waiting = make_request(arrival_ns=8 * S - 1, finished_ns=None, **NEVER_RAN)

    trend = trend_of([waiting] * 20, [make_step(end_ns=8 * S)])

    assert trend is not None
    assert trend.wait_s == pytest.approx((1e-9,) * 4)


def test_without_a_step_nobody_has_waited(make_request: MakeRequest) -> None:
    """Before the first step there is no time in which to wait."""
    waiting = make_request(finished_ns=None, **NEVER_RAN)

    assert trend_of([waiting] * 40, []) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(
        st.tuples(
            st.integers(0, 50 * S),
            st.none() | st.integers(0, 50 * S),
            st.none() | st.integers(0, 50 * S),
        ),
        min_size=15,
        max_size=60,
    ),
    end_ns=st.integers(0, 60 * S),
)
def test_quarters_are_those_of_a_loop(
    make_request: MakeRequest,
    make_step: MakeStep,
    drawn: list[tuple[int, int | None, int | None]],
    end_ns: int,
) -> None:
    """Looking at one request after another finds the same means."""
    requests, waits = [], []
    for arrival, until_admitted, until_finished in drawn:
        admitted = None if until_admitted is None else arrival + until_admitted
        finished = None if until_finished is None else arrival + until_finished
        requests.append(
            make_request(
                arrival_ns=arrival, first_scheduled_ns=admitted, finished_ns=finished
            )
        )
        left = next((t for t in (admitted, finished) if t is not None), end_ns)
        has_come = arrival <= end_ns
        if has_come and (admitted is not None or left > arrival):
            waits.append((arrival, left - arrival))

    trend = trend_of(requests, [make_step(end_ns=end_ns)])

    if len(waits) < MIN_REQUESTS:
        assert trend is None
        return
    waits.sort(key=lambda pair: pair[0])
    in_order = [wait / S for _, wait in waits]
    size, rest = divmod(len(in_order), 4)
    quarters = []
    for quarter in range(4):
        taken = size + (quarter < rest)
        quarters.append(sum(in_order[:taken]) / taken)
        in_order = in_order[taken:]
    assert trend is not None
    assert trend.wait_s == pytest.approx(quarters, rel=1e-9, abs=1e-9)
    assert trend.span_s == pytest.approx((waits[-1][0] - waits[0][0]) / S)
