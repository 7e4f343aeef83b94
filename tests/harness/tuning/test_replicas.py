"""Tests for :mod:`harness.tuning.replicas`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.headroom import headroom
from harness.tuning.objective import Objective
from harness.tuning.replicas import (
    AT_A_TIME,
    MOST_REPLICAS,
    Replicas,
    SharedLoad,
    fewest_of,
    fewest_replicas,
)
from harness.tuning.routing import split
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.goodput import Slo

MakeTrial = Callable[..., Trial]
MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]

SLO = Slo(ttft_s=1.0)


class Parts:
    """An engine in which a replica keeps the SLO if it gets few enough requests."""

    def __init__(
        self, make_trial: MakeTrial, is_served: Callable[[Workload], bool]
    ) -> None:
        self.max_concurrency: int | None = None
        self.under_way: list[int | None] = []
        self.replayed: list[int] = []
        self._is_served = is_served
        self._make_trial = make_trial

    def evaluate_under(
        self, cases: Sequence[tuple[Knobs, Workload, Objective]], *_: float
    ) -> list[Trial]:
        self.under_way += [self.max_concurrency] * len(cases)
        self.replayed += [len(workload) for _, workload, _ in cases]
        return [
            self._make_trial(good=[float(self._is_served(w))] * len(w))
            for _, w, _ in cases
        ]

    def fewest(self, shared: SharedLoad, load: float) -> Replicas:
        """What is found."""
        return fewest_replicas(cast("TrialEngine", self), {}, SLO, shared, load)


@pytest.mark.parametrize("load", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("number", [2, 3, 4, 5, 8, 13])
def test_the_fewest_replicas_that_do_are_found(
    make_trial: MakeTrial, make_workload: MakeWorkload, load: float, number: int
) -> None:
    """Whatever load a single one takes, none at all among them."""
    workload = make_workload(128, gap_s=1.0)
    parts = Parts(make_trial, lambda part: len(part) <= -(-128 // number))

    assert parts.fewest(SharedLoad(workload=workload), load).fewest == number


def test_arrivals_that_no_slower_load_parts_are_parted(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Eight prompts come at once, twice: a quarter of the load has them together too."""
    requests = make_workload(16, prompt=1500, output=2)
    workload = Workload.from_requests(
        [
            replace(requests.request(row), arrival_ns=row // 8 * 60 * 10**9)
            for row in range(16)
        ]
    )
    slo = Slo(ttft_s=0.2)
    engine = make_engine(workload, Objective(name=ObjectiveName.GOODPUT, slo=slo))
    (today,) = engine.evaluate([{}])
    assert today is not None

    load = headroom(engine, {}, slo, today).load
    found = fewest_replicas(engine, {}, slo, SharedLoad(workload=workload), load)

    assert load == 0
    assert found.fewest is not None
    assert 2 <= found.fewest <= 8


def test_that_many_do_not_help_is_known_from_trying(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """And soon seen of each number: when too many requests are outside already."""
    workload = make_workload(640, gap_s=1.0)
    parts = Parts(make_trial, lambda _: False)

    found = parts.fewest(SharedLoad(workload=workload), 0.0)

    assert found == Replicas(fewest=None, most_tried=MOST_REPLICAS)
    assert len(parts.replayed) == 2 + 4 + 8 + 3 * AT_A_TIME


@pytest.mark.parametrize(("now", "load", "most"), [(4, 0.8, 5), (4, 1.5, 3), (3, 1, 3)])
def test_they_are_counted_in_all_whatever_shares_the_load_now(
    make_trial: MakeTrial, make_workload: MakeWorkload, now: int, load: float, most: int
) -> None:
    """Not in multiples of those that share it now; fewer, where these are too many."""
    workload = make_workload(120, gap_s=1.0)
    parts = Parts(make_trial, lambda part: len(part) <= 120 // most)
    shared = SharedLoad(workload=workload, num_replicas=now)

    assert parts.fewest(shared, load).fewest == most


def test_one_that_keeps_its_slo_needs_no_others(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Nothing is replayed for that."""
    parts = Parts(make_trial, lambda _: True)

    found = parts.fewest(SharedLoad(workload=make_workload()), 1.5)

    assert found == Replicas(fewest=1, most_tried=1)
    assert parts.replayed == []


def test_replicas_share_what_is_under_way(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Of 13 requests at a time one of three has 5, and no more replicas than 13 are."""
    workload = make_workload(120, gap_s=1.0)
    shared = SharedLoad(workload=workload, max_concurrency=13)
    parts = Parts(make_trial, lambda part: len(part) <= 40)

    assert parts.fewest(shared, 0.4).fewest == 3
    assert sorted(cast("list[int]", parts.under_way)) == [4, 4, 5, 6, 7]
    assert parts.max_concurrency is None
    assert shared.most_replicas == 13


def test_no_replica_is_without_a_conversation(make_workload: MakeWorkload) -> None:
    """Of five requests none has more than five."""
    shared = SharedLoad(workload=make_workload(5), routing=Routing.PREFIX)

    assert shared.most_replicas == 5


@pytest.mark.parametrize("first", [1, 2, 7, 40, 64])
def test_numbers_are_doubled_then_halved_between(first: int) -> None:
    """None is tried twice; beyond the most there is none."""
    for number in range(1, 70):
        tried: list[int] = []

        def is_kept(each: int, number: int = number, tried: list[int] = tried) -> bool:
            tried.append(each)
            return each >= number

        expected = number if number <= 64 else None
        assert fewest_of(is_kept, first, 0, 64) == expected
        assert len(set(tried)) == len(tried) <= 13


def test_no_other_part_is_taken_for_the_first(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """As many requests are no reason: what can be found again is that of each."""
    workload = make_workload(40, num_groups=3)
    first, second = split(workload, 2, Routing.ROUND_ROBIN)
    engine = make_engine(first)
    case = ({}, second, engine.objective)

    (trial,) = engine.evaluate_under([case])
    (alone,) = make_engine(second).evaluate([{}])

    assert trial is not None
    assert alone is not None
    assert trial.run is not None
    assert alone.run is not None
    found = trial.run.summary["prefix_cache"]
    assert found == alone.run.summary["prefix_cache"]


def test_a_stretch_of_one_replica_is_as_much_of_each(
    make_workload: MakeWorkload,
) -> None:
    """Requests of all that come while the first of three gets its own."""
    shared = SharedLoad(workload=make_workload(60), num_replicas=3)
    first = split(shared.workload, 3, Routing.ROUND_ROBIN)[0]
    part = slice(5, 9)

    during = shared.during(part)

    found = next(during.parts(3))[0]
    assert len(during.workload) == 12
    assert found.input_tokens.tolist() == first.select(part).input_tokens.tolist()
