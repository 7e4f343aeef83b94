"""A whole search: screen, trials, advice, and what speaks for it and against it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from harness.analysis.miss_ratio import HitCurve
from harness.errors import ConfigError
from harness.tuning.advice import Advice, advise, gain, is_worse
from harness.tuning.check import Check, check_gain
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row, better_rows, sweep
from harness.tuning.headroom import Headroom, fewest_replicas, headroom
from harness.tuning.routing import Routing
from harness.tuning.screen import Screened, proposals, screen
from harness.tuning.search import Budget, Search, key_of
from harness.tuning.space import Space
from harness.tuning.trial import Trial
from results.comparison.verdict import MetricResult

if TYPE_CHECKING:
    import optuna

SHARE_OF_SEARCH = 0.7
"""Of the budget; the rest is for taking changes back and for the values around."""

MOST_MOVES = 3
"""How often a value around what is advised may still take its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know.

    Attributes:
        space: Values of each knob that may be chosen.
        start: Present settings: a value of each knob of the space.
        default: What the version would have by itself: the same.
        curve: What caches of each size would find; None where the trace does not say.
        safest_utilization: Above it memory may run out.
        step_time_error: Share by which step times are off; None if nobody knows.
        budget: Of the search.
        routing: How replicas would share the load.
        is_shared: Others need the GPU too: as little memory as does.
    """

    space: Space
    start: dict[str, Any]
    default: dict[str, Any]
    curve: HitCurve | None
    safest_utilization: float
    step_time_error: float | None
    budget: Budget
    routing: Routing = Routing.ROUND_ROBIN
    is_shared: bool = False


@dataclass(slots=True, kw_only=True)
class Answer:
    """What was found.

    Attributes:
        question: What was asked.
        advice: The setting, of the screened space's knobs.
        start: The present settings, replayed.
        default: The version's own, replayed; None where they cannot start.
        screened: What was ruled out, and why.
        over_start: The objective's metric beside that of the present settings.
        over_default: The same beside the version's own; None where they cannot start.
        evidence: Rows of each knob around what is advised.
        checks: Whether the gain holds elsewhere; none where nothing changes.
        headroom: How much more load it takes; None without an SLO.
        replicas: How many today's load needs; None without an SLO, or beyond many.
        was_stopped: Somebody had enough.
        num_trials: Settings that were tried.
    """

    question: Question
    advice: Advice
    start: Trial
    default: Trial | None
    screened: Screened
    over_start: MetricResult
    over_default: MetricResult | None
    evidence: dict[str, list[Row]] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    headroom: Headroom | None = None
    replicas: int | None = None
    was_stopped: bool = False
    num_trials: int = 0

    @property
    def knobs(self) -> dict[str, Any]:
        """The advised value of every knob of the space."""
        return {**self.question.start, **self.advice.knobs}

    @property
    def is_kept(self) -> bool:
        """Whether the present settings are advised."""
        return self.knobs == self.question.start


def tune(
    question: Question,
    engine: TrialEngine,
    study: "optuna.Study",
    on_trial: Callable[[Search], None] = lambda search: None,
) -> Answer:
    """Answer a question.

    Raises:
        ConfigError: The present settings cannot start.
        KeyboardInterrupt: Somebody had enough before these were replayed.
    """
    start, default = _first_trials(question, engine)
    screened = screen(
        question.space,
        question.start,
        start,
        question.curve,
        question.safest_utilization,
    )
    search = _search(question, engine, study, screened.space, on_trial)
    search.trials[key_of(search.start)] = dict(search.start), start
    search.run(proposals(screened.space, search.start, _others(question, screened)))
    advice = advise(search, engine)
    evidence: dict[str, list[Row]] = {}
    if not search.is_stopped():
        advice, evidence = _settle(search, engine, advice, question)
    answer = Answer(
        question=question,
        advice=advice,
        start=start,
        default=default,
        screened=screened,
        over_start=gain(engine.objective, start, advice.trial),
        over_default=_gain_over(default, engine, advice),
        evidence=evidence,
        was_stopped=search.is_stopped(),
        num_trials=len(search.trials),
    )
    if not answer.was_stopped:
        _look_beyond(answer, engine)
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
    if start is None or start.run is None or default is None:
        raise KeyboardInterrupt
    return start, default if default.is_complete else None


def _search(
    question: Question,
    engine: TrialEngine,
    study: "optuna.Study",
    space: Space,
    on_trial: Callable[[Search], None],
) -> Search:
    """A search of what the screen left; the other knobs stay as they are."""
    start = {name: question.start[name] for name in space.choices}
    rest = {n: v for n, v in question.start.items() if n not in start}
    engine.fixed = {**engine.fixed, **rest}
    limit = question.budget.num_trials
    return Search(
        space=space,
        start=start,
        evaluate=engine.evaluate,
        study=study,
        budget=replace(
            question.budget,
            num_trials=None if limit is None else max(1, int(limit * SHARE_OF_SEARCH)),
        ),
        is_stopped=engine.is_stopped,
        on_trial=on_trial,
    )


def _others(question: Question, screened: Screened) -> list[dict[str, Any]]:
    """Settings that somebody has besides: the version's own, where it is in the space."""
    choices = screened.space.choices
    default = {n: v for n, v in question.default.items() if n in choices}
    is_inside = all(value in choices[name] for name, value in default.items())
    return [default] if is_inside else []


def _settle(
    search: Search, engine: TrialEngine, advice: Advice, question: Question
) -> tuple[Advice, dict[str, list[Row]]]:
    """Look around what is advised, and move where it is better there."""
    for _ in range(MOST_MOVES):
        evidence = sweep(search, engine, advice.knobs, advice.trial)
        better = better_rows(evidence)
        if not better or search.is_stopped():
            break
        moved = [{**advice.knobs, name: value} for name, value in better]
        tried = [search.trials[key_of(knobs)] for knobs in moved]
        knobs, trial = min(tried, key=lambda each: each[1].loss)
        advice = replace(advice, knobs=knobs, trial=trial)
    if question.is_shared:
        advice = _with_least_memory(search, engine, advice)
        evidence = sweep(search, engine, advice.knobs, advice.trial)
    return advice, evidence


def _with_least_memory(search: Search, engine: TrialEngine, advice: Advice) -> Advice:
    """The smallest utilization that does as well."""
    name = "gpu_memory_utilization"
    values = search.space.choices.get(name, ())
    lower = [value for value in values if value < advice.knobs[name]]
    settings = [{**advice.knobs, name: value} for value in lower]
    search.try_out(settings, in_full=True)
    for knobs in settings:
        found = search.trials.get(key_of(knobs))
        if found and not is_worse(engine.objective, advice.trial, found[1]):
            return replace(advice, knobs=knobs, trial=found[1])
    return advice


def _gain_over(
    default: Trial | None, engine: TrialEngine, advice: Advice
) -> MetricResult | None:
    return None if default is None else gain(engine.objective, default, advice.trial)


def _look_beyond(answer: Answer, engine: TrialEngine) -> None:
    """Whether the gain holds elsewhere, how far the load may grow, and on how many."""
    question, slo = answer.question, engine.objective.slo
    if not answer.is_kept:
        answer.checks = check_gain(
            engine, question.start, answer.knobs, question.step_time_error
        )
    if slo is not None:
        answer.headroom = headroom(engine, answer.knobs, slo)
        if answer.headroom.load >= 1:
            answer.replicas = 1
        else:
            answer.replicas = fewest_replicas(engine, answer.knobs, slo, question.routing)
