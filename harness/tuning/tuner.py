"""A whole search: screen, trials, advice, and what speaks for it and against it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.analysis.miss_ratio import HitCurve
from harness.errors import ConfigError
from harness.tuning.advice import (
    Advice,
    IsEnough,
    advise,
    best_without_idle_changes,
    gain,
    is_better,
    is_gain,
    is_worse,
)
from harness.tuning.check import Check, check_gain
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row, better_rows, sweep
from harness.tuning.headroom import Headroom, fewest_replicas, headroom
from harness.tuning.routing import Routing
from harness.tuning.screen import Screened, screen
from harness.tuning.search import Budget, Search
from harness.tuning.space import Key, Knobs, Space, key_of
from harness.tuning.stretch import is_like, stretch_like_whole
from harness.tuning.suggestion import Suggester, openings
from harness.tuning.trial import Trial
from results.comparison.verdict import MetricResult

if TYPE_CHECKING:
    import optuna

SHARE_OF_SEARCH = 0.7
"""Of the budget; the rest is for taking changes back and for the values around."""

HOST_MEMORY = ("kv_offloading_size", "swap_space")
"""Knobs that take memory of the host."""

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
        stretch: Requests of which the search, its evidence and its checks are; None
            where that is the whole trace.
        withdrawn: A setting that did better here, and worse elsewhere; None for none.
        was_stopped: Somebody had enough, or a process was killed.
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
    stretch: slice | None = None
    withdrawn: dict[str, Any] | None = None
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

    A long trace is searched by a stretch of it; what is advised has to be a gain on the
    whole.

    Raises:
        ConfigError: The present settings cannot start.
        KeyboardInterrupt: Somebody had enough before these were replayed.
        EngineError: A process was killed before.
    """
    began_s = time.monotonic()
    start, default = _first_trials(question, engine)
    screened = screen(
        question.space,
        start,
        question.curve,
        question.safest_utilization,
        is_shared=question.is_shared,
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
        was_stopped=search.is_stopped(),
        num_trials=len(search.trials),
    )
    if not answer.was_stopped:
        _look_beyond(answer, near, search.trials[key_of(advice.knobs)][1])
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
    """What to advise, and rows around it; its trial is of the whole trace."""
    if near is engine:
        advice = advise(search, engine.objective)
        if search.is_stopped():
            return advice, {}
        return _settle(search, engine, advice, question, is_gain)
    whole = _Whole(engine=engine, search=search, start=start)
    advice = advise(search, near.objective, is_better)
    evidence: dict[str, list[Row]] = {}
    if not search.is_stopped():
        whole.replay_ahead(best_without_idle_changes(search))
        advice, evidence = _settle(
            search, near, advice, question, is_better, whole.replay_ahead
        )
    chosen = whole.chosen(advice, is_shared=question.is_shared)
    if chosen.knobs != advice.knobs and not search.is_stopped():
        evidence = sweep(search, near, chosen.knobs, chosen.trial)
    return replace(chosen, trial=whole.trials[key_of(chosen.knobs)]), evidence


@dataclass(slots=True, kw_only=True)
class _Whole:
    """What settings that did well on a stretch come to on the whole trace.

    Attributes:
        engine: Of the whole trace.
        search: Of the stretch.
        start: The present settings, replayed with the whole trace.
        trials: By setting.
    """

    engine: TrialEngine
    search: Search
    start: Trial
    trials: dict[Key, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trials[key_of(self.search.start)] = self.start

    def replay_ahead(self, knobs: Knobs) -> None:
        """Have a setting replayed beside those of the stretch that come next."""
        if key_of(knobs) not in self.trials:
            self.engine.replay_ahead(knobs, partial(self._keep, key_of(knobs)))

    def chosen(self, advice: Advice, *, is_shared: bool) -> Advice:
        """What is advised, if it is a gain; another one, where that is a better one.

        The start, where none is; beside it, what saves memory need not be a gain. The
        trial is of the stretch.
        """
        advised = key_of(advice.knobs)
        if advised not in self.trials:
            (trial,) = self.engine.evaluate([advice.knobs])
            self._keep(advised, trial)
        objective, chosen = self.engine.objective, key_of(self.search.start)
        for key in dict.fromkeys((advised, *self.trials)):
            trial = self.trials.get(key)
            if trial is None or is_worse(objective, self.start, trial):
                continue
            if is_gain(objective, self.start, trial):
                if is_better(objective, self.trials[chosen], trial):
                    chosen = key
            elif is_shared and key == advised:
                chosen = key
        knobs, near = self.search.trials[chosen]
        return replace(advice, knobs=dict(knobs), trial=near)

    def _keep(self, key: Key, trial: Trial | None) -> None:
        if trial is not None and trial.is_complete:
            self.trials[key] = trial


def _settle(
    search: Search,
    engine: TrialEngine,
    advice: Advice,
    question: Question,
    is_enough: IsEnough,
    on_advice: Callable[[Knobs], None] = lambda knobs: None,
) -> tuple[Advice, dict[str, list[Row]]]:
    """Look around what is advised, and move where it is better there.

    ``on_advice`` is called with what is advised before each look.
    """
    start = search.trials[key_of(search.start)][1]
    advice = _with_least_memory(search, engine, advice, question)
    on_advice(advice.knobs)
    evidence = sweep(search, engine, advice.knobs, advice.trial)
    for _ in range(MOST_MOVES):
        better = better_rows(evidence)
        if not better or search.is_stopped():
            break
        space, knobs = search.space, advice.knobs
        moved = [space.changed(knobs, name, value) for name, value in better]
        tried = [search.trials[key_of(setting)] for setting in moved]
        gains = [each for each in tried if is_enough(engine.objective, start, each[1])]
        if not gains:
            break
        knobs, trial = min(gains, key=lambda each: each[1].loss)
        advice = replace(advice, knobs=knobs, trial=trial)
        advice = _with_least_memory(search, engine, advice, question)
        on_advice(advice.knobs)
        evidence = sweep(search, engine, advice.knobs, advice.trial)
    return advice, evidence


def _with_least_memory(
    search: Search, engine: TrialEngine, advice: Advice, question: Question
) -> Advice:
    """No more memory of the host than does as well; nor of the GPU, if that is shared."""
    changed = [n for n, value in advice.knobs.items() if value != search.start[n]]
    names = [name for name in HOST_MEMORY if name in changed]
    if question.is_shared:
        names.append("gpu_memory_utilization")
    for name in names:
        advice = _with_least(name, search, engine, advice)
    return advice


def _with_least(name: str, search: Search, engine: TrialEngine, advice: Advice) -> Advice:
    """The smallest value of a knob that does as well: what it takes others may need.

    Of the host's memory no less than at the start: that would be a change for nothing.
    """
    values, now = search.space.choices.get(name, ()), advice.knobs.get(name)
    least = search.start.get(name) if name in HOST_MEMORY else None
    lower = [v for v in values if v < now and (least is None or v >= least)]
    settings = [{**advice.knobs, name: value} for value in lower]
    search.try_out(settings)
    best = search.best
    for knobs in settings:
        found = search.trials.get(key_of(knobs))
        if found is None or is_worse(engine.objective, advice.trial, found[1]):
            continue
        is_kept = advice.knobs == search.start
        if is_kept or not best or not is_worse(engine.objective, best[1], found[1]):
            return replace(advice, knobs=knobs, trial=found[1])
    return advice


def _gain_over(
    default: Trial | None, engine: TrialEngine, advice: Advice
) -> MetricResult | None:
    return None if default is None else gain(engine.objective, default, advice.trial)


def _look_beyond(answer: Answer, engine: TrialEngine, today: Trial) -> None:
    """Whether the gain holds elsewhere, how far the load may grow, and on how many."""
    question, slo = answer.question, engine.objective.slo
    if not answer.is_kept:
        answer.checks = check_gain(
            engine, question.start, answer.knobs, question.step_time_error
        )
        if not question.is_shared:  # there, memory is the gain
            _withdraw_if_harmful(answer, engine)
    if slo is None:
        return
    knobs, routing = answer.knobs, question.routing
    found = headroom(engine, knobs, slo, today)
    replicas: int | None = 1
    if found.load < 1:
        replicas = fewest_replicas(engine, knobs, slo, routing, found.load)
    if not engine.is_ended():  # a replay that was stopped kept nothing
        answer.headroom, answer.replicas = found, replicas


def _withdraw_if_harmful(answer: Answer, engine: TrialEngine) -> None:
    """Keep the present settings where the others are worse more often than better."""
    num_harmful = sum(check.is_harmful for check in answer.checks)
    if num_harmful <= sum(check.holds is True for check in answer.checks):
        return
    start = {name: answer.question.start[name] for name in answer.advice.knobs}
    answer.withdrawn = answer.knobs
    answer.advice = replace(answer.advice, knobs=start, trial=answer.start)
    answer.evidence = {}
    answer.over_start = gain(engine.objective, answer.start, answer.start)
    answer.over_default = _gain_over(answer.default, engine, answer.advice)
