"""Tests for :mod:`harness.tuning.search` and :mod:`harness.tuning.suggestion`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from harness.parallel import ReplayPool
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import ENDED, Objective
from harness.tuning.search import BATCH, Budget, Search
from harness.tuning.space import Knobs, Space, key_of
from harness.tuning.suggestion import Suggester, openings
from harness.tuning.surrogate import MOST_POINTS, Surrogate, most_promising
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.goodput import Slo

MakeStudy = Callable[[], optuna.Study]
MakeTrial = Callable[..., Trial]
MakeEngine = Callable[..., TrialEngine]
MakeWorkload = Callable[..., Workload]
Loss = Callable[[Knobs], float]

SPACE = Space(
    {
        "block_size": (16, 32, 64, 128),
        "max_num_seqs": tuple(range(1, 31)),
        "watermark": tuple(n / 100 for n in range(10)),
        "enable_prefix_caching": (False, True),
    }
)
START = {
    "block_size": 16,
    "max_num_seqs": 20,
    "watermark": 0.0,
    "enable_prefix_caching": True,
}


def bowl(knobs: Knobs) -> float:
    """Least with 64, 7, 0.04 and caching on; in it no knob is best by itself."""
    size = abs(SPACE.choices["block_size"].index(knobs["block_size"]) - 2)
    seqs = abs(knobs["max_num_seqs"] - 7) / 10
    mark = abs(knobs["watermark"] * 100 - 4) / 4
    far = size + seqs + mark + size * seqs + seqs * mark
    return float(1 + far + (not knobs["enable_prefix_caching"]))


class Landscape:
    """Replays that come to what a function says; counts how often each is asked for."""

    def __init__(self, make_trial: MakeTrial, loss: Loss) -> None:
        self.loss = loss
        self.asked: list[dict[str, Any]] = []
        self._make_trial = make_trial

    def __call__(self, settings: Sequence[Knobs], above: float) -> list[Trial]:
        self.asked += [dict(knobs) for knobs in settings]
        return [self._trial(self.loss(knobs), above) for knobs in settings]

    def _trial(self, loss: float, above: float) -> Trial:
        if loss >= ENDED:
            return Trial(loss=ENDED, run=None, wall_s=0.0)
        if loss > above:
            return Trial(loss=above + 1e-9, run=None, wall_s=0.1, guess=0.9 * loss)
        return self._make_trial(loss=loss)


def search_of(
    landscape: Landscape,
    study: optuna.Study,
    *,
    space: Space = SPACE,
    start: dict[str, Any] | None = None,
    budget: Budget | None = None,
    **more: Any,
) -> Search:
    """A search from the start, which is replayed."""
    start = START if start is None else start
    search = Search(
        space=space,
        start=start,
        evaluate=landscape,
        suggester=Suggester(space=space, study=study, waiting=openings(space, start)),
        no_tie_above=lambda loss: loss * 1.02,
        budget=budget or Budget(num_trials=40),
        **more,
    )
    search.try_out([start])
    return search


def test_nothing_is_replayed_twice(make_trial: MakeTrial, make_study: MakeStudy) -> None:
    """Not even what openings, neighbours, the model and the sampler all propose."""
    landscape = Landscape(make_trial, bowl)

    search_of(landscape, make_study()).run()

    assert len({key_of(knobs) for knobs in landscape.asked}) == len(landscape.asked) == 40


def test_the_least_is_found_where_knobs_depend_on_each_other(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """Among 2,400 settings, with 40 replays."""
    search = search_of(Landscape(make_trial, bowl), make_study())

    search.run()

    assert search.best is not None
    assert search.best[1].loss < 1.2 < bowl(START) / 3


def test_a_trial_is_given_up_only_above_what_could_tie(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """With the best of all batches before; the first knows the start alone."""
    landscape = Landscape(make_trial, bowl)
    search = search_of(landscape, make_study())
    search.run()

    best = min(map(bowl, landscape.asked))
    for knobs, trial in search.trials.values():
        assert trial.is_complete or bowl(knobs) > 1.02 * best
        assert not trial.is_complete or trial.loss == bowl(knobs)


@pytest.mark.parametrize("num_trials", [1, 2, 9, 23])
def test_a_budget_of_trials_is_used_up_and_not_exceeded(
    make_trial: MakeTrial, make_study: MakeStudy, num_trials: int
) -> None:
    """The start is one of them."""
    landscape = Landscape(make_trial, bowl)

    search_of(landscape, make_study(), budget=Budget(num_trials=num_trials)).run()

    assert len(landscape.asked) == num_trials


def test_settings_that_cannot_start_use_up_no_budget(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """As many others are replayed; if hardly any can start, it ends all the same."""

    def half(knobs: Knobs) -> float:
        return bowl(knobs) if knobs["max_num_seqs"] < 25 else ENDED

    def hardly(knobs: Knobs) -> float:
        return bowl(knobs) if knobs == START else ENDED

    found = [
        search_of(Landscape(make_trial, loss), make_study()) for loss in (half, hardly)
    ]
    for search in found:
        search.run()

    replayed = [sum(t.can_start for _, t in search.trials.values()) for search in found]
    assert replayed == [40, 1]
    assert len(found[0].trials) > 40
    assert len(found[1].trials) == 80
    assert found[1].best is not None
    assert found[1].best[0] == START


@pytest.mark.parametrize(
    "choices", [{}, {"block_size": (16,)}, {"block_size": (16, 32), "watermark": (0.0,)}]
)
def test_a_space_without_a_choice_is_soon_searched(
    make_trial: MakeTrial, make_study: MakeStudy, choices: dict[str, Any]
) -> None:
    """Every setting is tried, and no more asked for, whatever the budget."""
    space = Space(choices)
    start = {name: values[0] for name, values in choices.items()}
    landscape = Landscape(make_trial, lambda _: 1.0)

    search = search_of(landscape, make_study(), space=space, start=start)
    search.run()

    assert len(landscape.asked) == space.size


def test_a_small_space_is_searched_to_its_end(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """It ends before its budget does."""
    study = make_study()
    space = SPACE.without("max_num_seqs", "enable_prefix_caching")
    start = {name: START[name] for name in space.choices}
    landscape = Landscape(make_trial, lambda knobs: bowl({**START, **knobs}))

    search = search_of(
        landscape, study, space=space, start=start, budget=Budget(num_trials=100)
    )
    search.run()

    assert len(landscape.asked) == space.size == 40
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_a_budget_of_seconds_ends_a_search(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """Between two batches, counted from when it began."""
    landscape = Landscape(make_trial, bowl)
    search = search_of(landscape, make_study(), budget=Budget(seconds=60.0))
    search.began_s = time.monotonic() - 61

    search.run()

    assert len(landscape.asked) == 1


def test_a_stop_ends_a_search_with_what_it_has(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """What the others of a batch came to counts; what was not begun is not there."""
    landscape = Landscape(make_trial, bowl)
    stopped: list[bool] = []

    def evaluate(settings: Sequence[Knobs], above: float) -> list[Trial | None]:
        found: list[Trial | None] = [*landscape(settings, above)]
        if len(landscape.asked) > 20:
            stopped.append(True)
            return [*found[:3], *[None] * (len(found) - 3)]
        return found

    study = make_study()
    search = search_of(landscape, study, is_stopped=lambda: bool(stopped))
    search.evaluate = evaluate
    search.run()

    assert len(search.trials) == len(landscape.asked) - BATCH + 3
    assert search.best is not None
    assert all(trial.state != TrialState.RUNNING for trial in study.trials)
    assert any(trial.state == TrialState.FAIL for trial in study.trials)


def test_all_that_was_asked_for_is_told(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """The sampler knows of every setting, once or as often as it asked for it."""
    study = make_study()
    search = search_of(Landscape(make_trial, bowl), study)

    search.run()

    assert {trial.state for trial in study.trials} <= {
        TrialState.COMPLETE,
        TrialState.FAIL,
    }
    told = [trial.value for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert {trial.likely_loss for _, trial in search.trials.values()} == set(told)


class Stubborn(optuna.samplers.RandomSampler):
    """Always suggests the first value of each knob."""

    def sample_independent(self, *_: object) -> Any:
        return 0


def test_what_was_asked_for_twice_in_a_batch_is_told_twice(make_trial: MakeTrial) -> None:
    """A sampler that insists is left with nothing under way."""
    study = optuna.create_study(sampler=Stubborn())
    search = search_of(Landscape(make_trial, bowl), study)

    search.run()

    firsts = dict.fromkeys(SPACE.choices, 0)
    told = [trial for trial in study.trials if trial.params == firsts]
    assert len(told) > 2
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_in_full_replays_only_what_was_given_up(
    make_trial: MakeTrial, make_study: MakeStudy
) -> None:
    """What was complete, or cannot start, is not asked for again."""
    landscape = Landscape(
        make_trial, lambda knobs: ENDED if knobs["max_num_seqs"] == 1 else bowl(knobs)
    )
    search = search_of(landscape, make_study())
    bad, hopeless = {**START, "max_num_seqs": 30}, {**START, "max_num_seqs": 1}
    search.try_out([bad, hopeless, bad])
    assert landscape.asked == [START, bad, hopeless]
    assert search.trials[key_of(bad)][1].is_given_up

    search.try_out([START, bad, hopeless], in_full=True)

    assert landscape.asked[3:] == [bad]
    assert search.trials[key_of(bad)][1].is_complete


def test_the_same_seed_gives_the_same_trials_for_any_number_of_jobs(
    make_engine: MakeEngine, make_workload: MakeWorkload, make_study: MakeStudy
) -> None:
    """In the same order, with the same losses, in one process or in two."""
    slo = Slo(ttft_s=0.4, tpot_s=0.02)
    objective = Objective(name=ObjectiveName.GOODPUT, slo=slo)
    found = []
    for jobs in (1, 2):
        with ReplayPool(jobs, preload=("harness.tuning.trial",)) as pool:
            engine = make_engine(make_workload(gap_s=0.01), objective, pool=pool)
            search = Search(
                space=SPACE,
                start=START,
                evaluate=engine.evaluate,
                suggester=Suggester(
                    space=SPACE, study=make_study(), waiting=openings(SPACE, START)
                ),
                no_tie_above=objective.no_tie_above,
                budget=Budget(num_trials=30),
            )
            search.run()
        found.append(
            [(knobs, t.loss, t.run is None) for knobs, t in search.trials.values()]
        )

    assert len(found[0]) == 30
    assert found[0] == found[1]
    assert any(is_given_up for _, _, is_given_up in found[0])


def test_openings_are_far_from_the_start_on_either_side() -> None:
    """Half way to each end; from an end, the other one as well; one knob at a time."""
    found = openings(SPACE, START)

    assert found[0] == START
    changed = [
        (name, knobs[name])
        for knobs in found[1:]
        for name in knobs
        if knobs[name] != START[name]
    ]
    assert len(changed) == len(found) - 1
    assert [value for name, value in changed if name == "max_num_seqs"] == [10, 25]
    assert [value for name, value in changed if name == "block_size"] == [64, 128]
    assert [value for name, value in changed if name == "watermark"] == [0.05, 0.09]
    assert ("enable_prefix_caching", False) in changed


def test_the_slope_of_the_fit_is_that_of_its_value() -> None:
    """As finite differences find it."""
    from scipy.optimize import check_grad  # type: ignore[import-untyped]

    rng = np.random.default_rng(0)
    points, values = rng.random((12, 3)), rng.random(12)

    def of(log: Any) -> tuple[float, Any]:
        return Surrogate(points, values, log).unlikelihood()

    error = check_grad(lambda p: of(p)[0], lambda p: of(p)[1], rng.normal(size=8) - 1)

    assert error < 1e-5


def test_a_model_expects_most_near_the_least() -> None:
    """Of a smooth loss; and each choice is another one."""
    rng = np.random.default_rng(0)
    tried, others = rng.random((MOST_POINTS + 20, 2)), rng.random((500, 2))
    losses = ((tried - 0.4) ** 2).sum(axis=1)

    chosen = most_promising(tried, losses, others, 4)

    distance = np.abs(others - 0.4).sum(axis=1)
    assert len(set(chosen)) == 4
    assert distance[chosen[0]] < 0.1
    assert np.median(distance[chosen]) < 0.2


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0], [0.1, ENDED, ENDED]])
def test_a_model_of_equals_still_chooses(losses: list[float]) -> None:
    """Losses of any size enter as ranks, and as many are chosen as there are."""
    points = np.array([[0.0, 0.0], [0.5, 0.0], [1.0, 1.0]])

    assert sorted(most_promising(points, np.array(losses), 1 - points, 9)) == [0, 1, 2]
