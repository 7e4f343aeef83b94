"""A whole search: screen, trials, advice, and what speaks for it and against it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.errors import ConfigError, EngineError
from harness.tuning.advice import (
    BEYOND_CHANCE,
    ON_A_STRETCH,
    Advice,
    advise,
    best_without_idle_changes,
    gain,
)
from harness.tuning.check import check_gain
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row, sweep
from harness.tuning.headroom import headroom, headroom_of_whole, keeps
from harness.tuning.overload import better_of, load_at_limits, may_be_too_much
from harness.tuning.question import Answer, Question
from harness.tuning.replicas import fewest_replicas
from harness.tuning.screen import screen
from harness.tuning.search import Budget, Search
from harness.tuning.settle import settle
from harness.tuning.space import Space, is_dearer, key_of
from harness.tuning.stretch import is_like, stretch_like_whole
from harness.tuning.suggestion import Suggester, new_study, openings
from harness.tuning.trial import Trial
from harness.tuning.whole import Whole
from results.comparison.verdict import MetricResult

if TYPE_CHECKING:
    import optuna

SHARE_OF_SEARCH = 0.7
"""Of the budget; the rest is for taking changes back and for the values around."""


def tune(
    question: Question,
    engine: TrialEngine,
    study: "optuna.Study",
    on_trial: Callable[[Search], None] = lambda search: None,
) -> Answer:
    """Answer a question.

    A long trace is searched by a stretch of it; what is advised has to be a gain on the
    whole. Where no setting keeps the SLO at today's load, settings are compared anew at
    a load that one engine is at its limits with, as a replica would be.

    Raises:
        ConfigError: The present settings cannot start.
        KeyboardInterrupt: Somebody had enough before these were replayed.
        EngineError: A process was killed before.
    """
    began_s = time.monotonic()
    sides, slo = _first_trials(question, engine), engine.objective.slo
    if may_be_too_much(question, engine) and not keeps(sides[0]):
        question = replace(question, budget=question.budget.of_one_of_two())
    answer = _answered(question, engine, study, sides, began_s, on_trial)
    load = load_at_limits(answer, engine)
    if load is not None:
        answer = _answered_at(load, answer, engine, new_study(study), on_trial)
    found = answer.headroom
    if slo is not None and found is not None:
        shared, stretch = question.shared, answer.stretch
        if stretch is not None:
            shared = shared.during(stretch)
        replicas = fewest_replicas(engine, answer.knobs, slo, shared, found.load)
        if not engine.is_ended():  # else some were not replayed
            answer.replicas = replicas
    return answer


def _answered_at(
    load: float,
    today: Answer,
    engine: TrialEngine,
    study: "optuna.Study",
    on_trial: Callable[[Search], None],
) -> Answer:
    """What is advised at a lower load, if that takes as much as what is advised today."""
    question, began_s = today.question, time.monotonic()
    less = engine.under(load)
    try:
        sides = _first_trials(question, less)
        answer = _answered(question, less, study, sides, began_s, on_trial)
    except (KeyboardInterrupt, EngineError):
        return replace(today, was_stopped=True)
    if answer.was_stopped or answer.headroom is None:
        return replace(today, was_stopped=True)
    num_trials = today.num_trials + answer.num_trials
    return better_of(today, replace(answer, load=load, num_trials=num_trials))


def _answered(
    question: Question,
    engine: TrialEngine,
    study: "optuna.Study",
    sides: tuple[Trial, Trial | None],
    began_s: float,
    on_trial: Callable[[Search], None],
) -> Answer:
    """What is advised for one load, from the present settings and the version's own."""
    start, default = sides
    screened = screen(
        question.space,
        start,
        question.curve,
        question.safest_utilization,
        is_shared=question.is_shared,
        has_samples=engine.workload.max_samples > 1,
    )
    engine.fixed = {
        **engine.fixed,
        **{n: v for n, v in question.start.items() if n not in screened.space.choices},
    }
    found = _search(question, engine, study, screened.space, start, began_s, on_trial)
    search, near = found.search, found.engine
    _propose_default(search, question, default if near is engine else None)
    near.deadline_s = began_s + (search.budget.seconds or float("inf"))
    search.run()
    near.deadline_s = float("inf")
    advice, evidence = _advised(search, near, engine, question, start)
    is_whole = near is engine or advice.trial is not search.trial_of(advice.knobs)
    if not is_whole:  # somebody had enough before that
        start, default = search.trial_of(search.start), None
    answer = Answer(
        question=question,
        advice=advice,
        start=start,
        default=default,
        screened=screened,
        over_start=gain(engine.objective, start, advice.trial),
        over_default=_gain_over(default, engine, advice),
        evidence=evidence,
        stretch=found.stretch,
        is_whole=is_whole,
        was_stopped=search.is_stopped(),
        num_trials=len(search.trials),
    )
    if not answer.was_stopped:
        _look_beyond(answer, near, engine, search)
        answer.was_stopped = search.is_stopped()
    return answer


def _first_trials(question: Question, engine: TrialEngine) -> tuple[Trial, Trial | None]:
    """The present settings and the version's own, each replayed to its end."""
    if error := engine.why_not(question.start):
        raise ConfigError(error)
    settings = [question.start]
    if question.default != question.start:
        settings.append(question.default)
    trials = engine.evaluate(settings)
    start, default = trials[0], trials[-1]
    if start is None or start.run is None:
        raise engine.tally.failure or KeyboardInterrupt
    return start, default if default is not None and default.is_complete else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Where a search looks.

    Attributes:
        search: That knows what the start came to.
        engine: What its trials are of.
        stretch: Requests of the trace that these are; None for all.
    """

    search: Search
    engine: TrialEngine
    stretch: slice | None


def _search(
    question: Question,
    engine: TrialEngine,
    study: "optuna.Study",
    space: Space,
    start: Trial,
    began_s: float,
    on_trial: Callable[[Search], None],
) -> _Found:
    """A search of what the screen left, of a stretch where one is like the whole."""
    assert start.run is not None, "the start is replayed to its end"
    knobs = {name: question.start[name] for name in space.choices}
    near, trial, stretch = engine, start, _stretch_of(engine, start)
    if stretch is not None:
        near = engine.on(stretch, start.run.info.policy)
        (alone,) = near.evaluate([knobs])
        if alone is None:
            raise engine.tally.failure or KeyboardInterrupt
        if is_like(alone.loss, start.loss):
            trial = alone
        else:
            near, stretch = engine, None
    trials, seconds = question.budget.num_trials, question.budget.seconds
    search = Search(
        space=space,
        start=knobs,
        evaluate=near.evaluate,
        suggester=Suggester(space=space, study=study, waiting=openings(space, knobs)),
        no_tie_above=engine.objective.no_tie_above,
        budget=Budget(
            num_trials=None if trials is None else max(1, int(trials * SHARE_OF_SEARCH)),
            seconds=None if seconds is None else seconds * SHARE_OF_SEARCH,
        ),
        began_s=began_s,
        is_stopped=engine.is_ended,
        on_trial=on_trial,
    )
    search.remember(knobs, trial)
    return _Found(search=search, engine=near, stretch=stretch)


def _stretch_of(engine: TrialEngine, start: Trial) -> slice | None:
    """A stretch that is like the whole, where the start's engine lasts."""
    assert start.run is not None, "the start is replayed to its end"
    if start.run.trouble:
        return None
    return stretch_like_whole(
        engine.workload, engine.findable, engine.objective.of_samples(start.run.samples)
    )


def _propose_default(search: Search, question: Question, default: Trial | None) -> None:
    """Let the version's own setting be tried first, if it is one of the space's."""
    choices = search.space.choices
    inside = {name: question.default[name] for name in choices}
    if any(value not in choices[name] for name, value in inside.items()):
        return
    is_same = question.default == {**question.start, **inside}
    if default is not None and is_same and inside != search.start:
        search.remember(inside, default)
    search.suggester.waiting.insert(0, inside)


def _advised(
    search: Search,
    near: TrialEngine,
    engine: TrialEngine,
    question: Question,
    start: Trial,
) -> tuple[Advice, dict[str, list[Row]]]:
    """What to advise, and rows around it.

    Its trial is of the whole trace, unless somebody had enough before that.
    """
    if near is engine:
        advice = advise(search, engine.objective, BEYOND_CHANCE)
        if search.is_stopped():
            return advice, {}
        return settle(search, engine, advice, question, BEYOND_CHANCE)
    advice = advise(search, near.objective, ON_A_STRETCH)
    if search.is_stopped():
        return advice, {}
    whole = Whole(engine=engine, search=search, start=start)
    if not is_dearer(advice.knobs, search.start):  # else it is replayed without that
        whole.replay_ahead(best_without_idle_changes(search))
    advice, evidence = settle(
        search, near, advice, question, ON_A_STRETCH, whole.replay_advised_ahead
    )
    chosen = whole.chosen(advice, is_shared=question.is_shared)
    if search.is_stopped() and chosen.knobs != advice.knobs:
        return advice, evidence
    if chosen.knobs != advice.knobs:
        evidence = sweep(search, near, chosen.knobs, chosen.trial)
    return replace(chosen, trial=whole.trials[key_of(chosen.knobs)]), evidence


def _gain_over(
    default: Trial | None, engine: TrialEngine, advice: Advice
) -> MetricResult | None:
    return None if default is None else gain(engine.objective, default, advice.trial)


def _look_beyond(
    answer: Answer, near: TrialEngine, engine: TrialEngine, search: Search
) -> None:
    """Whether the gain holds elsewhere, and how far the load may grow."""
    question, slo = answer.question, engine.objective.slo
    if not answer.is_kept:
        answer.checks = check_gain(
            near, question.start, answer.knobs, question.step_time_error
        )
        if not question.is_shared:  # there, memory is the gain
            _withdraw_if_harmful(answer, near)
    if slo is None:
        return
    knobs = answer.knobs
    today = search.trial_of(answer.advice.knobs)  # of the start, where that is kept
    found = headroom(near, knobs, slo, today)
    if near is not engine:
        found = headroom_of_whole(engine, knobs, slo, answer.advice.trial, found)
    if not engine.is_ended():  # a replay that was stopped kept nothing
        answer.headroom = found


def _withdraw_if_harmful(answer: Answer, engine: TrialEngine) -> None:
    """Keep the present settings where the others are worse more often than better.

    Unless vLLM's engine ends with the present ones.
    """
    assert answer.start.run is not None, "the start is replayed to its end"
    if answer.start.run.trouble:
        return
    num_harmful = sum(check.is_harmful for check in answer.checks)
    if num_harmful <= sum(check.holds is True for check in answer.checks):
        return
    start = {name: answer.question.start[name] for name in answer.advice.knobs}
    answer.withdrawn = answer.knobs
    answer.advice = replace(answer.advice, knobs=start, trial=answer.start)
    answer.evidence = {}
    answer.over_start = gain(engine.objective, answer.start, answer.start)
    answer.over_default = _gain_over(answer.default, engine, answer.advice)
