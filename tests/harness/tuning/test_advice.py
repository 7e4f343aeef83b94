"""Tests for :mod:`harness.tuning.advice`: what counts, and no change for nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
import pytest

from harness.tuning.advice import (
    BEYOND_CHANCE,
    advise,
    best_without_idle_changes,
    is_better,
    is_gain,
    is_worse,
    is_worth_its_cost,
    over_limits,
)
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import better_rows, sweep, values_around
from harness.tuning.objective import Objective
from harness.tuning.search import Budget, Search
from harness.tuning.space import Knobs, Space, key_of
from harness.tuning.suggestion import Suggester
from harness.tuning.trial import Trial
from results.goodput import Slo

MakeTrial = Callable[..., Trial]
MakeStudy = Callable[[], optuna.Study]
MakeEngine = Callable[..., TrialEngine]

TTFT = Objective(name=ObjectiveName.TTFT)
GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=1.0))
THROUGHPUT = Objective(name=ObjectiveName.THROUGHPUT)


def share(make_trial: MakeTrial, percent: float) -> Trial:
    """A thousand requests, of which so many are inside the limits."""
    return make_trial(good=np.arange(1000) < 10 * percent)


def test_half_a_point_of_goodput_is_better_and_less_is_not(make_trial: MakeTrial) -> None:
    """Neither is it worse: the two tie."""
    base, tie, better = (share(make_trial, p) for p in (50.0, 50.4, 50.5))

    assert not is_better(GOODPUT, base, tie)
    assert not is_worse(GOODPUT, base, tie)
    assert is_better(GOODPUT, base, better)
    assert is_worse(GOODPUT, better, base)


@pytest.mark.parametrize("objective", [TTFT, GOODPUT, THROUGHPUT])
def test_what_ends_or_was_given_up_is_never_better(
    make_trial: MakeTrial, objective: Objective
) -> None:
    """And all that lasts is better than it."""
    good = make_trial(ttft=[5.0], good=[0.0])
    bad = [
        make_trial(ttft=[0.1], good=[1.0], trouble="stuck"),
        Trial(loss=0.0, run=None, wall_s=1.0),
    ]
    for trial in bad:
        assert not is_better(objective, good, trial)
        assert is_better(objective, trial, good)
    assert not is_better(objective, bad[0], bad[1])


def test_conditions_come_before_what_is_wanted_most(make_trial: MakeTrial) -> None:
    """One that is missed outweighs any TTFT; two that miss alike are told apart by it."""
    kept = make_trial(ttft=[9.0], missed=[(0.9, 1.0)])
    missed = make_trial(ttft=[1.0], missed=[(1.1, 1.0)])
    far = make_trial(ttft=[0.5], missed=[(2.0, 1.0)])
    alike = make_trial(ttft=[0.9], missed=[(1.101, 1.0)])

    assert is_better(TTFT, missed, kept)
    assert is_better(TTFT, far, missed)
    assert is_better(TTFT, missed, alike)
    assert is_worse(TTFT, kept, missed)


@pytest.mark.parametrize("objective", [TTFT, THROUGHPUT])
def test_requests_that_are_lost_come_before_latencies(
    make_trial: MakeTrial, objective: Objective
) -> None:
    """Who turns long prompts away answers the others sooner, and is worse."""
    whole, few = make_trial(ttft=[1.0], loss=2.0), make_trial(ttft=[0.1], num_lost=1)

    assert is_better(objective, few, whole)
    assert not is_better(objective, whole, few)


def test_a_difference_that_may_be_chance_is_no_gain(make_trial: MakeTrial) -> None:
    """Though it is better on this very trace by more than 1 %."""
    rng = np.random.default_rng(0)
    base = make_trial(ttft=rng.exponential(size=200))
    assert base.run is not None
    noise = rng.permutation(base.run.samples.values["ttft"]) * 0.98
    steady = base.run.samples.values["ttft"] * 0.9

    assert is_better(TTFT, base, make_trial(ttft=noise))
    assert not is_gain(TTFT, base, make_trial(ttft=noise))
    assert is_gain(TTFT, base, make_trial(ttft=steady))


@pytest.mark.parametrize(
    ("good", "is_worth"),
    [
        (np.arange(1000) % 100 < 52, True),  # two points, in each part of the trace
        (np.arange(1000) % 100 < 50 + 50 * (np.arange(1000) < 200), False),
        (np.arange(1000) % 100 < 50 + 50 * (np.arange(1000) < 500), True),
    ],
)
def test_what_costs_has_to_be_worth_it_beyond_chance(
    make_trial: MakeTrial, good: Sequence[bool], *, is_worth: bool
) -> None:
    """Ten points in two tenths of the trace may be chance; 25 points are overwhelming."""
    base = make_trial(good=np.arange(1000) % 100 < 50)
    other = make_trial(good=good)

    assert is_gain(GOODPUT, base, other)
    assert is_worth_its_cost(GOODPUT, base, other) == is_worth


def test_what_ends_no_engine_is_worth_its_cost(make_trial: MakeTrial) -> None:
    """Whatever the figures of those few that finished; but no cost is worth nothing."""
    ends, lasts = make_trial(good=[1.0], trouble="stuck"), make_trial(good=[0.5])

    assert is_worth_its_cost(GOODPUT, ends, lasts)
    assert not is_worth_its_cost(GOODPUT, lasts, lasts)


def test_being_nearer_to_what_nothing_meets_is_worth_a_cost_if_much(
    make_trial: MakeTrial,
) -> None:
    """A quarter: how near the median request is has no interval."""
    base, near, nearer = (
        outside(make_trial, [2.0 * f] * 3, [0.1] * 3) for f in (1.0, 0.8, 0.7)
    )

    assert is_gain(BOTH, base, near)
    assert not is_worth_its_cost(BOTH, base, near)
    assert is_worth_its_cost(BOTH, base, nearer)


BOTH = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=1.0, tpot_s=0.1))


def outside(make_trial: MakeTrial, ttft: Sequence[float], tpot: Sequence[float]) -> Trial:
    """A run none of whose requests is inside its limits."""
    return make_trial(ttft=ttft, tpot=tpot, good=[0.0] * len(ttft))


def test_over_limits_is_the_median_request_at_the_worst_of_its_limits(
    make_trial: MakeTrial,
) -> None:
    """3, 5 and 4 times; one of a single token has no TPOT, one that fails has no end."""
    nan = float("nan")
    trial = outside(make_trial, [3.0, 2.0, 4.0], [0.2, 0.5, nan])
    itl = Objective(name=ObjectiveName.GOODPUT, slo=Slo(itl_s=0.1))

    assert over_limits(BOTH, trial) == pytest.approx(4.0)
    assert over_limits(itl, outside(make_trial, [9.0], [0.3])) == pytest.approx(3.0)
    assert over_limits(TTFT, trial) is None
    assert trial.run is not None
    trial.run.samples.values["finished"][:2] = 0
    assert over_limits(BOTH, trial) == np.inf


def test_of_two_that_nothing_meets_the_nearer_is_better(make_trial: MakeTrial) -> None:
    """By 1 % on this very trace; somebody is to change settings for 5 %."""
    base, tie, near, nearer = (
        outside(make_trial, [2.0 * f] * 3, [0.1] * 3) for f in (1.0, 0.995, 0.98, 0.94)
    )

    assert not is_better(BOTH, base, tie)
    assert not is_worse(BOTH, base, tie)
    assert is_better(BOTH, base, near)
    assert is_worse(BOTH, near, base)
    assert not is_gain(BOTH, base, near)
    assert is_gain(BOTH, base, nearer)


def test_nearness_counts_only_where_hardly_any_is_inside(make_trial: MakeTrial) -> None:
    """Of 1,000 requests 4 inside are hardly any, 5 are some; the share decides then."""
    far, near = (
        make_trial(ttft=[ttft] * 1000, good=np.arange(1000) < num)
        for ttft, num in ((9.0, 0), (2.0, 4))
    )
    some = make_trial(ttft=[9.0] * 1000, good=np.arange(1000) < 5)

    assert is_better(BOTH, far, near)
    assert not is_better(BOTH, some, near)
    assert is_better(BOTH, far, some)


SPACE = Space(
    {"block_size": (16, 32, 64), "max_num_seqs": (1, 2, 4), "watermark": (0, 1)}
)
START = {"block_size": 16, "max_num_seqs": 1, "watermark": 0}


def search_of(
    make_trial: MakeTrial,
    study: optuna.Study,
    share_of: Callable[[Knobs], float],
    tried: Sequence[Knobs],
    space: Space = SPACE,
    start: Knobs = START,
) -> Search:
    """A search that has tried the start and these; goodput in percent by setting."""
    order = np.random.default_rng(0).permutation(1000)

    def evaluate(settings: Sequence[Knobs], above: float) -> list[Trial]:
        found = []
        for knobs in settings:
            loss = 1 - share_of(knobs) / 100
            good = order < 10 * share_of(knobs)
            is_hopeless = loss > above
            found.append(
                Trial(loss=above, run=None, wall_s=0.1)
                if is_hopeless
                else make_trial(good=good, loss=loss)
            )
        return found

    search = Search(
        space=space,
        start=start,
        evaluate=evaluate,
        suggester=Suggester(space=space, study=study, waiting=[]),
        no_tie_above=GOODPUT.no_tie_above,
        budget=Budget(),
    )
    search.try_out([start, *tried])
    return search


def advised(
    search: Search,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is advised, and what ties."""
    advice = advise(search, GOODPUT, BEYOND_CHANCE)
    assert search.trials[key_of(advice.knobs)][1] is advice.trial
    return advice.knobs, advice.ties


def test_changes_that_bring_nothing_are_taken_back(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """All of them at once where each can go by itself; three replays tell."""
    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 1}
    search = search_of(
        make_trial, make_study(), lambda k: 50 + 10 * (k["max_num_seqs"] == 4), [best]
    )

    knobs, ties = advised(search)

    assert knobs == {**START, "max_num_seqs": 4}
    assert {"max_num_seqs": 4} in ties
    assert len(search.trials) == 2 + 3 + 1


def test_of_two_that_stand_for_each_other_one_stays(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """Each can go by itself, and not both: then one of them does."""

    def share_of(k: Knobs) -> float:
        return 60.0 if k["max_num_seqs"] == 4 or k["block_size"] == 64 else 50.0

    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 0}
    knobs, _ = advised(search_of(make_trial, make_study(), share_of, [best]))

    assert sum(knobs[name] != START[name] for name in START) == 1
    assert share_of(knobs) == 60.0


def test_small_losses_do_not_add_up(make_trial: MakeTrial, make_study: MakeStudy) -> None:
    """Each change is worth 0.3 points beside a large one: not all of them can go."""

    def share_of(k: Knobs) -> float:
        small: float = 0.3 * sum((k["block_size"] == 64, k["watermark"] == 1))
        return 50.0 + 10 * bool(k["max_num_seqs"] == 4) + small

    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 1}
    knobs, _ = advised(search_of(make_trial, make_study(), share_of, [best]))

    assert share_of(knobs) == pytest.approx(60.3)


def test_what_is_left_is_still_a_gain(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """A change may not go if without it too little is left above the start."""

    def share_of(k: Knobs) -> float:
        changes = [k["max_num_seqs"] == 4, k["block_size"] == 64, k["watermark"] == 1]
        return 50.0 + 0.4 * changes.count(True)

    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 1}
    knobs, _ = advised(search_of(make_trial, make_study(), share_of, [best]))

    assert share_of(knobs) == pytest.approx(51.2)


def test_of_two_that_stand_for_each_other_the_one_that_costs_goes(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """Though it comes to a little more: the other one takes nothing."""
    space = Space({"kv_offloading_size": (0.0, 8.0), "max_num_seqs": (1, 4)})
    start, best = ({n: v[i] for n, v in space.choices.items()} for i in (0, -1))

    def share_of(k: Knobs) -> float:
        return 50.0 + 10 * (k != start) + 0.1 * bool(k["kv_offloading_size"])

    search = search_of(make_trial, make_study(), share_of, [best], space, start)

    assert advised(search)[0] == {**start, "max_num_seqs": 4}


def test_the_start_is_kept_where_nothing_is_a_gain(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """0.4 points more are no reason to change anything; what ties is said."""
    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 0}
    search = search_of(
        make_trial, make_study(), lambda k: 50 + 0.4 * (k["block_size"] == 64), [best]
    )

    knobs, ties = advised(search)

    assert knobs == START
    assert ties == [{}, {"block_size": 64, "max_num_seqs": 4}]


def test_changes_that_do_nothing_leave_the_best(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """One that is worth a little stays, though what is advised does without it."""

    def share_of(knobs: Knobs) -> float:
        is_larger = bool(knobs["block_size"] > 16)
        return 50.0 + 10 * bool(knobs["max_num_seqs"] > 1) + 0.3 * is_larger

    best = {"block_size": 64, "max_num_seqs": 4, "watermark": 1}
    search = search_of(make_trial, make_study(), share_of, [best])

    assert best_without_idle_changes(search) == {**best, "watermark": 0}
    assert advised(search)[0] == {**START, "max_num_seqs": 4}


def test_rows_stand_for_the_values_around(
    make_trial: MakeTrial, make_study: MakeStudy, make_engine: MakeEngine
) -> None:
    """One step down and up, and the start's; each says how it stands to the advice."""
    search = search_of(
        make_trial, make_study(), lambda k: 50 + 10 * k["max_num_seqs"], [START]
    )
    advised = {**START, "max_num_seqs": 2}
    search.try_out([advised], in_full=True)

    rows = sweep(
        search,
        make_engine(objective=GOODPUT),
        advised,
        search.trials[key_of(advised)][1],
    )

    seqs = {row.value: row.standing for row in rows["max_num_seqs"]}
    assert seqs == {1: "worse", 2: "as good", 4: "better"}
    assert better_rows(rows) == [("max_num_seqs", 4)]
    assert values_around(SPACE, "block_size", 64, 16) == [16, 32, 64]
