"""Tests for :mod:`harness.tuning.tuner`: whole searches, and those that are stopped."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import optuna
import pytest

from harness.analysis.miss_ratio import hit_curve
from harness.errors import ConfigError
from harness.parallel import ReplayPool
from harness.tuning.check import Check
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.headroom import Headroom
from harness.tuning.objective import Objective
from harness.tuning.question import Answer, Question
from harness.tuning.replicas import Replicas, SharedLoad
from harness.tuning.search import Budget, Search
from harness.tuning.space import Space, with_value
from harness.tuning.tuner import tune
from harness.workload import Workload
from results.goodput import Slo

MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]
MakeStudy = Callable[[], optuna.Study]

SPACE = Space(
    {
        "block_size": (16, 32),
        "max_num_seqs": (2, 4, 8, 64),
        "max_num_batched_tokens": (512, 4096, 8192),
        "enable_prefix_caching": (False, True),
    }
)
START = {
    "block_size": 16,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True,
}
GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=0.3, tpot_s=0.03))


def question(workload: Workload, budget: Budget | None = None, **more: Any) -> Question:
    """Of a search that begins where two run at a time; utilization is not searched."""
    asked = Question(
        space=SPACE,
        start=START,
        default={**START, "max_num_seqs": 64},
        curve=hit_curve(workload, block_size=16),
        safest_utilization=0.95,
        step_time_error=0.1,
        budget=budget or Budget(num_trials=16),
        shared=SharedLoad(workload=workload),
    )
    return replace(asked, **more)


@pytest.fixture(scope="module")
def crowd(make_workload: MakeWorkload) -> Workload:
    """Return requests that two at a time cannot serve."""
    return make_workload(60, gap_s=0.02)


@pytest.fixture(scope="module")
def answer(make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload) -> Answer:
    """Return what is said of them."""
    return tune(question(crowd), make_engine(crowd, GOODPUT), make_study())


def test_an_answer_has_all_its_parts(answer: Answer) -> None:
    """A gain that holds elsewhere, evidence by knob, headroom, and replicas."""
    assert answer.knobs["max_num_seqs"] > 2
    assert not answer.is_kept
    assert answer.over_start.is_judged
    assert len(answer.checks) == 5
    assert all(check.holds for check in answer.checks)
    assert answer.headroom is not None
    assert answer.headroom.load >= 1
    assert answer.replicas == Replicas(fewest=1, most_tried=1)
    assert set(answer.evidence) == set(answer.screened.space.choices)
    for name, rows in answer.evidence.items():
        (advised,) = [row for row in rows if row.is_advised]
        assert advised.value == answer.knobs[name]
        assert advised.standing == "as good"
        assert "better" not in {row.standing for row in rows}


@pytest.fixture(scope="module")
def overload(make_workload: MakeWorkload) -> Workload:
    """Return requests that no setting of the space serves in time."""
    return make_workload(150, gap_s=0.004, prompt=900, output=60)


def test_more_than_one_engine_takes_is_compared_at_less(
    make_engine: MakeEngine, make_study: MakeStudy, overload: Workload
) -> None:
    """At a load that the advice just misses; what it takes is said of today's."""
    engine = make_engine(overload, GOODPUT)
    answer = tune(question(overload), engine, make_study())

    found = answer.headroom
    assert found is not None
    assert answer.today is not None
    assert found.first_failing is not None
    assert 0 < found.load < 1
    assert 0 < answer.load < 1
    assert answer.load <= found.first_failing
    assert answer.replicas is not None
    assert answer.replicas.fewest is not None
    assert answer.replicas.fewest >= 2
    today, at_less = answer.today.run, answer.start.run
    assert today is not None
    assert at_less is not None
    assert at_less.info.trace["duration_s"] > today.info.trace["duration_s"]
    knobs = answer.knobs
    shares = [
        trial.run.summary["goodput"]["fraction"]
        for trial in engine.evaluate_under(
            [
                (knobs, overload.retimed(speedup=load), GOODPUT)
                for load in (found.load, found.first_failing)
            ]
        )
        if trial is not None and trial.run is not None
    ]
    assert shares[0] >= 0.9 > shares[1]


def test_what_takes_less_load_is_not_advised_for_being_lucky(
    monkeypatch: pytest.MonkeyPatch,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    overload: Workload,
) -> None:
    """Where the second search finds what takes less, the first has the last word."""
    original = Headroom.times
    monkeypatch.setattr(Headroom, "times", lambda found, _: original(found, 0.001))

    answer = tune(question(overload), make_engine(overload, GOODPUT), make_study())

    assert answer.load == 1
    assert answer.today is None
    assert answer.headroom is not None
    assert answer.headroom.load > 0.01


def test_headroom_beside_a_withdrawn_setting_is_that_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    crowd: Workload,
) -> None:
    """The start does not keep the SLO today, whatever the withdrawn one does."""
    harmful = Check(name="x", values=(1.0, 0.0), holds=False, is_harmful=True)
    monkeypatch.setattr("harness.tuning.tuner.check_gain", lambda *_: [harmful])

    answer = tune(question(crowd), make_engine(crowd, GOODPUT), make_study())

    assert answer.withdrawn is not None
    assert answer.is_kept
    assert answer.headroom is not None
    assert answer.headroom.load < 1
    assert answer.replicas is not None
    assert answer.replicas.most_tried > 1


def test_each_setting_is_replayed_once(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """Once more where it was given up first and is evidence."""
    seen: list[tuple[str, bool]] = []

    class Watched(TrialEngine):
        def evaluate_under(self, cases: Any, *above: float, **more: Any) -> Any:
            trials = super().evaluate_under(cases, *above, **more)
            whole = {**self.fixed}
            for (knobs, workload, _), trial in zip(cases, trials, strict=True):
                assert trial is not None
                if workload is self.workload and "share_of_blocks" not in more:
                    key = str(sorted({**whole, **knobs}.items()))
                    seen.append((key, trial.is_complete))
            return trials

    made = make_engine(crowd, GOODPUT)
    parts = ("workload", "findable", "fixed", "objective", "make_info", "pool")
    engine = Watched(**{name: getattr(made, name) for name in parts})

    tune(question(crowd, step_time_error=0.0), engine, make_study())

    complete = [key for key, is_complete in seen if is_complete]
    assert len(set(complete)) == len(complete)
    assert len(set(seen)) == len(seen)


@pytest.fixture(scope="module")
def num_asked(make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload) -> int:
    """Return how often a search asks whether it is to stop."""
    engine, asked = make_engine(crowd, GOODPUT), count()
    engine.is_stopped = lambda: next(asked) < 0

    assert not tune(question(crowd), engine, make_study()).was_stopped
    return next(asked)


@pytest.mark.parametrize("percent", [0, 1, 10, 20, 35, 50, 60, 70, 80, 90, 99.8])
def test_a_stop_at_any_moment_gives_the_best_so_far(
    make_engine: MakeEngine,
    make_study: MakeStudy,
    crowd: Workload,
    num_asked: int,
    percent: float,
) -> None:
    """Or nothing, if not even the present settings were replayed."""
    engine, asked = make_engine(crowd, GOODPUT), count()
    engine.is_stopped = lambda: next(asked) >= percent / 100 * num_asked
    study = make_study()
    found: list[Search] = []
    try:
        answer = tune(question(crowd), engine, study, found.append)
    except KeyboardInterrupt:
        assert percent <= 1
        assert not found
        return

    assert answer.was_stopped
    assert answer.advice.trial.is_complete
    assert answer.start.is_complete
    assert set(answer.knobs) == set(SPACE.choices)
    assert answer.advice.trial.loss <= answer.start.loss
    assert answer.headroom is None
    running = optuna.trial.TrialState.RUNNING
    assert all(trial.state != running for trial in study.trials)


def test_the_same_answer_for_one_job_and_two(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload, answer: Answer
) -> None:
    """And for none at all: settings, ties, figures, checks and headroom."""

    def told(answer: Answer) -> tuple[Any, ...]:
        checks = [(c.name, c.values, c.holds) for c in answer.checks]
        rows = {name: [r.figures for r in rows] for name, rows in answer.evidence.items()}
        return (
            *(answer.knobs, answer.advice.ties, answer.advice.trial.loss),
            *(answer.num_trials, checks, rows, answer.headroom, answer.replicas),
        )

    found = [told(answer)]
    for jobs in (1, 2):
        with ReplayPool(jobs, preload=("harness.tuning.trial",)) as pool:
            engine = make_engine(crowd, GOODPUT, pool=pool)
            found.append(told(tune(question(crowd), engine, make_study())))

    assert found[0] == found[1] == found[2]


def test_present_settings_that_cannot_start_are_refused(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """With the reason that the engine gives."""
    asked = question(crowd, start={**START, "max_num_batched_tokens": 0})

    with pytest.raises(ConfigError, match="batched"):
        tune(asked, make_engine(crowd), make_study())


def test_a_default_that_cannot_start_is_left_out(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """There is no gain over it; the answer is there all the same."""
    asked = question(crowd, default={**START, "max_num_batched_tokens": 0})

    answer = tune(asked, make_engine(crowd), make_study())

    assert answer.default is None
    assert answer.over_default is None
    assert answer.knobs["max_num_seqs"] > 2


def test_nothing_to_choose_from_keeps_what_there_is(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """After one replay, without evidence or checks."""
    asked = question(crowd, space=Space({}), start={}, default={})
    engine = make_engine(crowd)

    answer = tune(asked, engine, make_study())

    assert answer.is_kept
    assert answer.evidence == {}
    assert engine.tally.num_replays == 1


def test_after_a_budget_of_seconds_the_rest_is_looked_at(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """The search has its share of the time, none here; evidence does not depend on it."""
    engine = make_engine(crowd, GOODPUT)
    tried: list[int] = []

    answer = tune(
        question(crowd, Budget(seconds=1e-6)),
        engine,
        make_study(),
        lambda search: tried.append(len(search.trials)),
    )

    assert tried[0] > 2  # of the first look around: the search itself tried none
    assert engine.deadline_s == float("inf")
    assert not answer.was_stopped
    assert set(answer.evidence) == set(answer.screened.space.choices)


def test_a_shared_gpu_gets_the_least_memory_that_does(
    make_engine: MakeEngine, make_study: MakeStudy, crowd: Workload
) -> None:
    """Though nothing else is a gain over the present settings."""
    space = Space(
        {
            "gpu_memory_utilization": with_value((0.5, 0.7, 0.8), 0.92),
            "max_num_seqs": (32, 64),
        }
    )
    start = {"gpu_memory_utilization": 0.92, "max_num_seqs": 64}
    asked = question(crowd, space=space, start=start, default=start, is_shared=True)

    answer = tune(asked, make_engine(crowd, GOODPUT), make_study())

    assert answer.knobs == {"gpu_memory_utilization": 0.5, "max_num_seqs": 64}
