"""By which figure a run is called better than another, where not by the objective's."""

from dataclasses import dataclass

from harness.tuning.advice import are_all_outside, over_limits
from harness.tuning.choice import ObjectiveName
from harness.tuning.objective import Objective
from harness.tuning.trial import Trial
from results.comparison.verdict import LEAST_CHANGE

OVER_LIMITS = "over_limits"
FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisive:
    """A figure of two runs that decided between them.

    Attributes:
        name: A condition on the whole run, as ``ttft_p99``; ``over_limits`` of the median
            request; or ``finished`` requests.
        values: Of each run: times over the limit, or requests.
    """

    name: str
    values: tuple[float, float]


def decisive(objective: Objective, base: Trial, other: Trial) -> Decisive | None:
    """What goes before the objective's metric; None where that decides, or a failure."""
    if base.run is None or other.run is None or base.run.trouble or other.run.trouble:
        return None
    found = _of_conditions(base, other)
    if found is not None:
        return found
    finished = [run.summary["counts"]["finished"] for run in (base.run, other.run)]
    if objective.name is not ObjectiveName.GOODPUT and finished[0] != finished[1]:
        return Decisive(name=FINISHED, values=(finished[0], finished[1]))
    if not are_all_outside(objective, base, other):
        return None
    times = [over_limits(objective, trial) for trial in (base, other)]
    if times[0] is None or times[1] is None:
        return None
    return Decisive(name=OVER_LIMITS, values=(times[0], times[1]))


def _of_conditions(base: Trial, other: Trial) -> Decisive | None:
    """The condition that differs most, if what is missed of all of them differs."""
    pairs = list(zip(_conditions(base), _conditions(other), strict=True))
    apart = [second[1] - first[1] for first, second in pairs]
    if not pairs or abs(sum(apart)) < LEAST_CHANGE:
        return None
    place = max(range(len(pairs)), key=lambda each: abs(apart[each]))
    (name, _, before), (_, _, after) = pairs[place]
    return Decisive(name=name, values=(before, after))


def _conditions(trial: Trial) -> list[tuple[str, float, float]]:
    """Name, what it adds to the loss, and times over the limit, of each that has a value.

    Source: :meth:`harness.tuning.objective.Objective.of_conditions`.
    """
    assert trial.run is not None, "it was replayed to its end"
    goodput = trial.run.summary["goodput"]
    found = []
    for each in goodput["conditions"] if goodput else ():
        times = (each["value_s"] or 0.0) / each["limit_s"]
        found.append((each["name"], 2 - 1 / times if times > 1 else 0.0, times))
    return found
