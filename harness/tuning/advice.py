"""From the best that was found to what is advised: no change without a gain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.tuning.choice import ObjectiveName
from harness.tuning.objective import MISSED, Objective
from harness.tuning.search import Search
from harness.tuning.space import Knobs, is_dearer, key_of
from harness.tuning.suggestion import Tried
from harness.tuning.trial import Trial
from results.comparison.compare import Comparer
from results.comparison.metric import Metric, metric_named
from results.comparison.verdict import (
    LEAST_CHANGE,
    LEAST_SHARE,
    MetricResult,
    Verdict,
    is_small,
)

METRICS = {
    ObjectiveName.GOODPUT: "goodput_fraction",
    ObjectiveName.THROUGHPUT: "output_token_per_s",
    ObjectiveName.TTFT: "ttft_mean",
    ObjectiveName.TPOT: "tpot_mean",
}
"""By what a gain is stated."""


IsEnough = Callable[[Objective, Trial, Trial], bool]
"""Whether a trial is so much better than the start's that it is worth a change."""

IDLE_SHARE = 0.002
"""Of the best's loss, which a change that does nothing may seem to be worth."""

NUM_LEAST = 5
"""Of the least change that counts: as many are no chance, whatever an interval says."""

OVERWHELMING = 0.25
"""Of the requests, or of a figure: what more memory of the host, or more GPUs, have to
bring where an interval says that it may be chance."""


def metric_of(objective: Objective) -> Metric:
    """By what a gain in the objective is stated."""
    metric = metric_named(METRICS[objective.name])
    assert metric is not None, "each objective has a metric"
    return metric


def gain(objective: Objective, base: Trial, other: Trial) -> MetricResult:
    """The objective's metric of a trial beside another one's."""
    comparer = Comparer(base.arm("base"))
    return comparer.result(other.arm("other"), metric_of(objective))


def is_better(objective: Objective, base: Trial, other: Trial) -> bool:
    """Whether a trial is better than another by a change that counts.

    Both are of the same requests and exact, so that the change is what it is. As in the
    loss, conditions on the whole run come first, then requests that do not finish. Where
    none meets its limits in either, the one is better that comes nearer to them.
    """
    first = _decided_first(objective, base, other)
    if first is not None:
        return first
    assert base.run is not None, "a trial that was given up was decided on"
    assert other.run is not None, "a trial that was given up was decided on"
    if are_all_outside(objective, base, other):
        return _nearer_by(objective, base, other) >= LEAST_CHANGE
    metric = metric_of(objective)
    values = [metric.value(run.summary, run.samples) for run in (base.run, other.run)]
    if values[0] is None or values[1] is None:
        return values[0] is None and values[1] is not None
    difference = values[1] - values[0]
    is_improved = (difference > 0) == metric.is_more_better
    return is_improved and not is_small(metric, values[0], difference, is_bare=False)


def is_gain(objective: Objective, base: Trial, other: Trial) -> bool:
    """Whether a trial is better than another by more than chance, or by too much for it.

    Other requests of the same kind would show it too; somebody is to change settings.
    """
    is_share = metric_of(objective).unit == "share"
    too_much = NUM_LEAST * (LEAST_SHARE if is_share else LEAST_CHANGE)
    return _is_no_chance(objective, base, other, too_much)


def is_worth_its_cost(objective: Objective, base: Trial, other: Trial) -> bool:
    """Whether a trial is so much better than another that it is worth what it takes.

    It has to be no chance, or overwhelming: the memory that it takes is no chance.
    """
    return _is_no_chance(objective, base, other, OVERWHELMING)


def _is_no_chance(
    objective: Objective, base: Trial, other: Trial, too_much: float
) -> bool:
    """Whether a trial is better beyond its interval, or by too much for one.

    How near the median request is to its limits has no interval.
    """
    if not is_better(objective, base, other):
        return False
    if _decided_first(objective, base, other) is not None:
        return True
    if are_all_outside(objective, base, other):
        least = max(too_much, NUM_LEAST * LEAST_CHANGE)
        return _nearer_by(objective, base, other) >= least
    found = gain(objective, base, other)
    is_share = found.metric.unit == "share"
    amount = (found.difference if is_share else found.relative) or 0.0
    return found.verdict is Verdict.BETTER or abs(amount) >= too_much


@dataclass(frozen=True, slots=True)
class Enough:
    """By how much something has to be better.

    Attributes:
        for_change: A setting, than the start, to be advised.
        for_cost: A setting, than one that costs less, to be taken in its place.
    """

    for_change: IsEnough
    for_cost: IsEnough


BEYOND_CHANCE = Enough(is_gain, is_worth_its_cost)
ON_A_STRETCH = Enough(is_better, is_better)
"""What does well there is compared on the whole trace, beyond chance."""


def over_limits(objective: Objective, trial: Trial) -> float | None:
    """How often the median request has its limits, at the worst of them; 1 meets them.

    Infinite where most do not finish; None without limits of single requests.
    """
    limits = [] if objective.slo is None else list(objective.slo.limits())
    if trial.run is None or not limits:
        return None
    samples = dict(trial.run.samples.values)
    samples["itl"] = samples["tpot"]  # as a request meets it: its mean
    ratios = [samples[name.removesuffix("_s")] / limit for name, limit in limits]
    worst = np.fmax.reduce(ratios)  # a single token has no TPOT
    return float(np.median(np.where(samples["finished"] > 0, worst, np.inf)))


def are_all_outside(objective: Objective, base: Trial, other: Trial) -> bool:
    """Whether goodput is wanted and hardly a request of either is inside its limits."""
    if objective.name is not ObjectiveName.GOODPUT:
        return False
    metric = metric_of(objective)
    runs = [trial.run for trial in (base, other) if trial.run is not None]
    shares = [metric.value(run.summary, run.samples) or 0.0 for run in runs]
    return max(shares, default=0.0) < LEAST_SHARE


def _nearer_by(objective: Objective, base: Trial, other: Trial) -> float:
    """By which share of it another trial's median request comes nearer to its limits."""
    first, second = (over_limits(objective, trial) for trial in (base, other))
    if first is None or second is None or second == np.inf:
        return 0.0
    return 1 - second / first


def _decided_first(objective: Objective, base: Trial, other: Trial) -> bool | None:
    """Whether another trial is better, where that does not depend on the metric."""
    if other.run is None or other.run.trouble:
        return False
    if base.run is None or base.run.trouble:
        return True
    missed = objective.of_conditions(base.run) - objective.of_conditions(other.run)
    if abs(missed) >= LEAST_CHANGE * MISSED:
        return missed > 0
    finished = [run.summary["counts"]["finished"] for run in (base.run, other.run)]
    if objective.name is not ObjectiveName.GOODPUT and finished[0] != finished[1]:
        return bool(finished[0] < finished[1])
    return None


def is_worse(objective: Objective, base: Trial, other: Trial) -> bool:
    """Whether a trial is worse than another by a change that counts."""
    return is_better(objective, other, base)


@dataclass(slots=True)
class Advice:
    """What is advised, and how the search came there.

    Attributes:
        knobs: The setting.
        trial: What it came to.
        ties: Other settings that are as good, by what they change from the start.
    """

    knobs: dict[str, Any]
    trial: Trial
    ties: list[dict[str, Any]] = field(default_factory=list)


def advise(search: Search, objective: Objective, enough: Enough) -> Advice:
    """The best setting, with each change taken back that it does as well without.

    What is left of the best is compared with the best itself, not with what was left
    before, so that small losses do not add up, and is still enough better than the
    start. Where nothing is, the start is kept.
    """
    start_trial = search.trial_of(search.start)
    found = search.best
    assert found is not None, "the start was replayed to its end"
    best = found[1]
    if not enough.for_change(objective, start_trial, best):
        return Advice(dict(search.start), start_trial, _ties(search, best, objective))
    knobs, trial = _with_fewest_changes(
        search,
        found,
        lambda trial: (
            not is_worse(objective, best, trial)
            and enough.for_change(objective, start_trial, trial)
        ),
    )
    return Advice(knobs, trial, _ties(search, best, objective))


def best_without_idle_changes(search: Search) -> dict[str, Any]:
    """The best setting, with each change taken back that does nothing at all for it."""
    found = search.best
    assert found is not None, "the start was replayed to its end"
    most = found[1].loss * (1 + IDLE_SHARE)
    knobs, _ = _with_fewest_changes(
        search, found, lambda trial: trial.is_complete and trial.loss <= most
    )
    return knobs


def _with_fewest_changes(
    search: Search, best: Tried, is_as_good: Callable[[Trial], bool]
) -> tuple[dict[str, Any], Trial]:
    """Take changes back: all that can go each by itself, or the one that loses least.

    What costs is taken back before what does not.
    """

    def as_good(settings: Sequence[Knobs]) -> list[Tried]:
        search.try_out(settings)
        tried = [search.trials[key_of(k)] for k in settings if key_of(k) in search.trials]
        return [each for each in tried if is_as_good(each[1])]

    space, start = search.space, search.start
    knobs, trial = dict(best[0]), best[1]
    while len(changed := [n for n, value in knobs.items() if value != start[n]]) > 1:
        found = as_good([space.changed(knobs, name, start[name]) for name in changed])
        if not found:
            break
        idle = {n for n in changed for fewer, _ in found if fewer[n] == start[n]}
        if len(idle) > 1:
            together = {n: start[n] if n in idle else v for n, v in knobs.items()}
            found = as_good([space.settled(together)]) or found
        knobs, trial = min(found, key=lambda t: (is_dearer(t[0], start), t[1].loss))
    return knobs, trial


def _ties(search: Search, best: Trial, objective: Objective) -> list[dict[str, Any]]:
    """What settings change that are no worse than the best."""
    found = []
    for knobs, trial in search.trials.values():
        if trial.run is not None and not is_worse(objective, best, trial):
            changes = {n: v for n, v in knobs.items() if v != search.start[n]}
            found.append(changes)
    return found
