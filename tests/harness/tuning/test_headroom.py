"""Tests for :mod:`harness.tuning.headroom`, :mod:`harness.tuning.routing` and checks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import cast

import numpy as np
import pytest

from harness.request import Request
from harness.tuning.check import Check, check_gain
from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.headroom import (
    Headroom,
    _most_missed,
    headroom,
    headroom_of_whole,
    keep_together,
    lasts,
)
from harness.tuning.load import LoadKind, kind_of_load
from harness.tuning.objective import BEYOND, CLOSENESS, Objective
from harness.tuning.routing import split
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.goodput import Slo

MakeTrial = Callable[..., Trial]
MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]

SLO = Slo(ttft_s=1.0)


class Loads:
    """An engine in which a load decides how many requests are inside the limits."""

    def __init__(
        self,
        make_trial: MakeTrial,
        workload: Workload,
        share_of: Callable[[float], float],
        max_concurrency: int | None = None,
    ) -> None:
        self.workload = workload
        self.max_concurrency = max_concurrency
        self.under_way: list[int | None] = []
        self.tried: list[float] = []
        self.lifetimes = 1e9
        self._share_of = share_of
        self._make_trial = make_trial

    def evaluate_under(
        self, cases: Sequence[tuple[Knobs, Workload, Objective]], *_: float
    ) -> list[Trial]:
        self.under_way += [self.max_concurrency] * len(cases)
        return [self.trial(len(w) / w.duration_s) for _, w, _ in cases]

    def trial(self, rate: float) -> Trial:
        load = rate / (len(self.workload) / self.workload.duration_s)
        self.tried.append(round(load, 4))
        return self._make_trial(
            good=np.arange(100) < 100 * self._share_of(load),
            num_lifetimes=self.lifetimes / load,
        )

    def headroom(self) -> Headroom:
        """What is found, beginning with today's load."""
        today = self.trial(len(self.workload) / self.workload.duration_s)
        return headroom(cast("TrialEngine", self), {}, SLO, today)

    def headroom_of_whole(self, near: Headroom) -> Headroom:
        """What is found, beginning with what a stretch takes."""
        today = self.trial(len(self.workload) / self.workload.duration_s)
        return headroom_of_whole(cast("TrialEngine", self), {}, SLO, today, near)


@pytest.mark.parametrize(
    ("most", "near", "load", "failing", "num_tried"),
    [
        (1.6, (1.5, 1.625), 1.5, 1.625, 2),
        (100, (8.0, None), 8.0, None, 1),
        (1.0, (1.0, 1.0625), 1.0, 1.0625, 1),
        (1.3, (1.5, 1.625), 1.25, 1.375, 5),
        (1.1, (1.5, 1.625), 1.0, 1.125, 5),
        (1.1, (8.0, None), 1.0, 1 + 7 / 64, 10),
        (0.6, (0.75, 0.8125), 0.5625, 0.609375, 8),
        (0.6, (1.5, 1.625), 0.5625, 0.625, 6),
        (0.01, (0.0, 0.05), 0.0, 0.05, 0),  # nor does the whole take any
        (0.001, (0.5, 0.55), 0.0, 0.5 / 64, 11),
        (1.1, (0.75, 0.8125), 1.0625, 1.125, 7),
        (1.6, (1.25, 1.3125), 1.3125, None, 2),  # the whole takes more than the stretch
        (1.6, (1.0, 1.0625), 1.0625, None, 1),
        (0.9, (0.5, 0.5625), 0.5625, 1.0, 2),
    ],
)
def test_a_load_that_a_stretch_takes_is_lowered_to_what_the_whole_trace_takes(
    make_trial: MakeTrial,
    make_workload: MakeWorkload,
    most: float,
    near: tuple[float, float | None],
    load: float,
    failing: float | None,
    num_tried: int,
) -> None:
    """A queue that grows slowly is short on a stretch; both ends are of the whole."""
    loads = Loads(make_trial, make_workload(40), lambda at: float(at <= most + 1e-6))

    found = loads.headroom_of_whole(Headroom(load=near[0], first_failing=near[1]))

    assert found.load == pytest.approx(load)
    assert found.first_failing == pytest.approx(failing)
    assert len(loads.tried) == 1 + num_tried


@pytest.mark.parametrize(
    ("most", "load", "failing"),
    [
        (1.0, 1.0, 1.0625),
        (1.6, 1.5, 1.625),
        (2.1, 2.0, 2.25),
        (100, 8.0, None),
        (0.8, 0.75, 0.8125),
        (0.2, 0.1375 + 0.075 / 2, 0.2125),
        (0.06, 0.05, 0.0625),
        (0.01, 0.0, 0.05),
    ],
)
def test_the_highest_load_that_keeps_the_slo_is_found(
    make_trial: MakeTrial,
    make_workload: MakeWorkload,
    most: float,
    load: float,
    failing: float | None,
) -> None:
    """Up or down from today's, and between; no load is replayed twice."""
    loads = Loads(make_trial, make_workload(), lambda load: float(load <= most))

    found = loads.headroom()

    assert found.load == pytest.approx(load)
    assert found.first_failing == (None if failing is None else pytest.approx(failing))
    assert len(set(loads.tried)) == len(loads.tried) <= 11


@pytest.mark.parametrize(
    ("lifetimes", "most", "load", "lasting", "failing"),
    [
        (100, 100, 8.0, 8.0, None),
        (16, 100, 8.0, 3.0, None),  # at 4x they come for 4 lifetimes
        (16, 2.1, 2.0, 2.0, 2.25),
        (4, 100, 8.0, None, None),
        (4, 2.1, 2.0, None, 2.25),
        (2, 0.8, 0.75, 0.25, 0.8125),  # found in passing, on the way down
        (1, 0.8, 0.75, None, 0.8125),
        (1, 0.01, 0.0, 0.0, 0.05),
    ],
)
def test_a_load_has_to_last_to_be_headroom(
    make_trial: MakeTrial,
    make_workload: MakeWorkload,
    lifetimes: float,
    most: float,
    load: float,
    lasting: float | None,
    failing: float | None,
) -> None:
    """Five times as long as a request takes, which is sooner over with more load."""
    loads = Loads(make_trial, make_workload(), lambda at: float(at <= most))
    loads.lifetimes = lifetimes

    found = loads.headroom()

    assert found.load == pytest.approx(load)
    assert found.lasting == (None if lasting is None else pytest.approx(lasting))
    assert found.first_failing == (None if failing is None else pytest.approx(failing))


def test_a_load_under_which_queues_grow_is_not_kept_for_long(
    make_trial: MakeTrial,
) -> None:
    """However long the trace is; whether they do is not known of few requests."""
    growing, settled, unknown = (
        make_trial(good=[1.0], steady=steady) for steady in (False, True, None)
    )

    assert not lasts(growing)
    assert lasts(settled)
    assert lasts(unknown)


def test_lifetimes_are_counted_from_arrivals_and_latencies(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Requests that come for 39 x 50 ms; in a closed loop when each is sent."""
    engine = make_engine(make_workload(40, gap_s=0.05))
    (open_,) = engine.evaluate([{}])
    engine.max_concurrency = 4
    engine.workload = make_workload(40, gap_s=0.0)
    (closed,) = engine.evaluate([{}])

    assert open_ is not None
    assert open_.run is not None
    mean_s = open_.run.samples.values["e2e"].mean()
    assert open_.num_lifetimes == pytest.approx(1.95 / mean_s)
    assert closed is not None
    assert closed.num_lifetimes == pytest.approx(40 / 4 - 1, abs=1)


def test_a_load_that_just_keeps_the_slo_is_replayed_to_its_end() -> None:
    """A tenth far outside, and all others right at their limits: no loss above it."""
    worst = 0.1 * (1 + CLOSENESS + BEYOND) + 0.9 * CLOSENESS

    assert worst <= _most_missed() < worst + 0.005


def test_a_load_counts_only_if_all_below_it_are_kept(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """One that is kept above one that is not, as a queue may have it, is luck."""
    loads = Loads(
        make_trial, make_workload(), lambda load: float(load < 1.2 or 1.9 < load < 2.1)
    )

    found = loads.headroom()

    assert 1 <= found.load < 1.2 < found.first_failing <= 1.25  # type: ignore[operator]


def test_nine_tenths_inside_the_limits_keep_an_slo(make_trial: MakeTrial) -> None:
    """Of all requests together; a condition has to be met by each."""
    many = make_trial(good=np.arange(90) < 90)
    few = make_trial(good=np.arange(10) < 0)
    bad = make_trial(good=np.arange(90) < 90, missed=[(2.0, 1.0)])

    assert keep_together([many, few])
    assert not keep_together([many, few, few])
    assert not keep_together([many, bad])
    assert not keep_together([many, None])
    assert not keep_together([many, make_trial(good=[1.0], trouble="stuck")])


@pytest.mark.parametrize(
    ("today", "most", "highest", "failing"),
    [(8, 10, 10, 11), (8, 1000, 64, None), (8, 3, 3, 4), (2, 1, 1, 2), (1, 0, 0, 1)],
)
def test_a_closed_loop_has_more_or_fewer_under_way(
    make_trial: MakeTrial,
    make_workload: MakeWorkload,
    today: int,
    most: int,
    highest: int,
    failing: int | None,
) -> None:
    """Whole numbers of requests, none of them twice, and today's again in the end."""
    loads = Loads(
        make_trial, make_workload(), lambda load: float(load * today <= most + 0.5), today
    )

    found = loads.headroom()

    assert found.kind is LoadKind.CONCURRENCY
    assert found.load == highest / today
    assert found.first_failing == (None if failing is None else failing / today)
    assert len(set(loads.under_way)) == len(loads.under_way)
    assert set(loads.under_way) >= {highest, failing} - {today, None, 0}
    assert loads.max_concurrency == today


class AtOnce(Loads):
    """All requests come at once: how many a replica gets decides."""

    def evaluate_under(
        self, cases: Sequence[tuple[Knobs, Workload, Objective]], *_: float
    ) -> list[Trial]:
        self.tried.append(len(cases))
        self.under_way += [self.max_concurrency] * len(cases)
        share = self._share_of(max(len(w) for _, w, _ in cases))
        return [self._make_trial(good=[share] * len(w)) for _, w, _ in cases]


def test_no_more_than_all_at_once_can_come(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Nothing is replayed, and what is said is of today's load alone."""
    loads = AtOnce(make_trial, make_workload(gap_s=0.0), lambda _: 1.0)

    for share, load, failing in ((1.0, 1.0, None), (0.0, 0.0, 1.0)):
        today = make_trial(good=[share])
        found = headroom(cast("TrialEngine", loads), {}, SLO, today)
        assert (found.load, found.first_failing) == (load, failing)
        assert found.kind is LoadKind.NONE
    assert loads.tried == []


def test_no_more_are_under_way_than_there_are(
    make_trial: MakeTrial, make_workload: MakeWorkload
) -> None:
    """Of 40 that wait from the start: 16, 20, 24, 32 and all 40, once."""
    loads = AtOnce(make_trial, make_workload(gap_s=0.0), lambda _: 1.0, 16)

    found = headroom(cast("TrialEngine", loads), {}, SLO, make_trial(good=[1.0]))

    assert loads.under_way == [20, 24, 32, 40]
    assert (found.load, found.first_failing) == (2.5, None)


# -- routing -----------------------------------------------------------------------------


def conversations(num: int, turns: int, first: Sequence[int]) -> Workload:
    """Conversations side by side, turn after turn; each begins with a common segment."""
    requests: list[Request] = []
    parent: list[int] = []
    for turn in range(turns):
        for each in range(num):
            requests.append(
                Request(
                    request_id=len(requests),
                    arrival_ns=len(requests) * 10**9,
                    prompt=((0, 16), (first[each], 32), (100 + each, 16 * (turn + 1))),
                    num_prompt_tokens=48 + 16 * (turn + 1),
                    outputs=((1000 + len(requests), 4),),
                )
            )
            parent.append(-1 if turn == 0 else len(requests) - 1 - num)
    return Workload.from_requests(requests, parent=parent)


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 9])
def test_every_request_goes_to_one_replica_and_turns_stay_together(
    routing: Routing, num_replicas: int
) -> None:
    """No turn loses the one that it follows; replicas that get nothing are left out."""
    workload = conversations(6, 3, [1, 1, 2, 2, 3, 3])

    parts = split(workload, num_replicas, routing)

    assert sum(len(part) for part in parts) == len(workload)
    assert len(parts) == min(num_replicas, 6)
    for part in parts:
        assert (part.parent >= 0).sum() == len(part) * 2 / 3
        assert part.arrival_ns.min() == 0


def test_prompts_that_begin_alike_meet_though_all_begin_alike() -> None:
    """After a system prompt that all have, what comes next decides."""
    workload = conversations(6, 1, [1, 2, 3, 1, 2, 3])

    parts = split(workload, 3, Routing.PREFIX)

    seconds = [{part.request(i).prompt[1][0] for i in range(len(part))} for part in parts]
    assert sorted(map(sorted, seconds)) == [[1], [2], [3]]


def test_a_group_that_is_too_large_is_shared_out() -> None:
    """Five of six begin alike: nobody gets all five."""
    parts = split(conversations(6, 1, [1, 1, 1, 1, 1, 2]), 2, Routing.PREFIX)

    assert [len(part) for part in parts] == [3, 3]


def test_the_largest_groups_are_shared_out_first() -> None:
    """Two that begin alike go to one replica, and the two others to the other one."""
    parts = split(conversations(4, 1, [1, 2, 3, 3]), 2, Routing.PREFIX)

    assert [len(part) for part in parts] == [2, 2]


def test_what_cannot_be_told_apart_stays_together() -> None:
    """The same prompt again and again goes to one replica."""
    same = [
        Request(
            request_id=i,
            arrival_ns=i,
            prompt=((1, 16),),
            num_prompt_tokens=16,
            outputs=((10 + i, 2),),
        )
        for i in range(6)
    ]

    assert [len(p) for p in split(Workload.from_requests(same), 2, Routing.PREFIX)] == [6]


# -- checks ------------------------------------------------------------------------------


def checks_of(
    engine: TrialEngine, advised: Knobs, error: float | None
) -> dict[str, Check]:
    """By name."""
    found = check_gain(engine, {"max_num_seqs": 4}, advised, error)
    return {check.name: check for check in found}


def test_a_gain_is_looked_at_in_each_circumstance(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Other requests, more load, other step times, fewer blocks; it holds everywhere."""
    engine = make_engine(make_workload(gap_s=0.01))

    found = checks_of(engine, {"max_num_seqs": 64}, 0.1)

    assert list(found) == [
        "second half",
        "1.5x load",
        "steps 10 % slower",
        "steps 10 % faster",
        "5 % fewer blocks",
    ]
    for check in found.values():
        assert (check.holds, check.is_harmful) == (True, False)
        assert check.values[0] > check.values[1]  # type: ignore[operator]
    assert engine.tally.num_replays == 10


def test_what_is_worse_or_the_same_elsewhere_does_not_hold(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Worse: it does not hold, and does harm. The same: neither."""
    workload = make_workload(gap_s=0.01)
    worse = checks_of(make_engine(workload), {"max_num_seqs": 2}, None)
    same = checks_of(make_engine(workload), {"max_num_seqs": 4}, None)

    assert {(c.holds, c.is_harmful) for c in worse.values()} == {(False, True)}
    assert {(c.holds, c.is_harmful) for c in same.values()} == {(None, False)}
    assert "steps 20 % faster" in worse


def test_steps_that_are_off_by_their_own_length_can_be_checked(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Twice as slow and twice as fast, with limits that shrink and grow with them."""
    objective = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=0.1))
    engine = make_engine(make_workload(gap_s=0.02), objective)

    found = checks_of(engine, {"max_num_seqs": 64}, 1.0)

    slower, faster = found["steps 100 % slower"], found["steps 100 % faster"]
    assert slower.values[1] < faster.values[1]  # type: ignore[operator]


def test_load_in_a_closed_loop_is_what_is_under_way(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """At 1.5 times the load 12 instead of 8: each waits longer for its turn."""
    workload = make_workload(gap_s=0.0)
    engine = make_engine(workload)
    engine.max_concurrency = 12
    (trial,) = engine.evaluate([{"max_num_seqs": 4}])
    assert trial is not None
    engine.max_concurrency = 8

    found = checks_of(engine, {"max_num_seqs": 64}, 0.1)

    assert set(found) == {"second half", "1.5x load", "5 % fewer blocks"}
    assert found["1.5x load"].values[0] == pytest.approx(trial.loss)
    assert engine.max_concurrency == 8


def test_all_at_once_has_no_higher_load(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """Nothing is replayed to no purpose; with limits step times matter nevertheless."""
    workload = make_workload(gap_s=0.0)
    goodput = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=0.1))

    bare = checks_of(make_engine(workload), {"max_num_seqs": 64}, 0.1)
    limited = checks_of(make_engine(workload, goodput), {"max_num_seqs": 64}, 0.1)

    assert list(bare) == ["second half", "5 % fewer blocks"]
    assert set(limited) - set(bare) == {"steps 10 % slower", "steps 10 % faster"}


def test_conversations_that_begin_at_once_have_no_higher_load() -> None:
    """Though their later turns come later; with one that begins later there is one."""
    talk = conversations(3, 2, [1, 2, 3])
    arrival_ns = np.where(talk.parent < 0, 0, talk.arrival_ns)

    assert kind_of_load(replace(talk, arrival_ns=arrival_ns), None) is LoadKind.NONE
    assert kind_of_load(talk, None) is LoadKind.RATE
    assert kind_of_load(talk, 1) is LoadKind.CONCURRENCY


def test_circumstances_after_a_stop_are_left_out(make_engine: MakeEngine) -> None:
    """What was not replayed says nothing."""
    engine = make_engine()
    asked = count()
    engine.is_stopped = lambda: next(asked) > 400

    found = checks_of(engine, {"max_num_seqs": 64}, 0.1)

    assert len(found) < 5
    assert all(None not in check.values for check in found.values())
