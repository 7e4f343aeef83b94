"""How much more load a setting takes, and how many replicas today's load needs."""

from dataclasses import dataclass

from harness.tuning.engine import TrialEngine
from harness.tuning.objective import ENDED, Objective, ObjectiveName
from harness.tuning.routing import Routing, split
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from results.goodput import Slo

KEPT_SHARE = 0.9
"""Of the requests, inside the limits: the SLO is kept. Source: the attainment at which
DistServe (OSDI 2024) counts goodput."""

LADDER = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
NUM_BETWEEN = 3
"""Loads that are tried between the last that holds and the first that does not."""

MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The highest load that keeps the SLO.

    Attributes:
        load: As a multiple of the trace's; 0 where none of those tried keeps it.
        first_failing: The lowest load tried that does not; None where all did.
        share: Of requests inside the limits that counts as keeping it.
    """

    load: float
    first_failing: float | None
    share: float = KEPT_SHARE


def keeps(objective: Objective, trial: Trial | None) -> bool:
    """Whether a run kept the SLO: enough requests inside, and all conditions met."""
    if trial is None or trial.run is None or trial.run.trouble:
        return False
    goodput = trial.run.summary["goodput"]
    assert goodput is not None, "an SLO is set"
    has_all = all(condition["met"] is not False for condition in goodput["conditions"])
    return has_all and (goodput["fraction"] or 0.0) >= KEPT_SHARE


def headroom(engine: TrialEngine, knobs: Knobs, slo: Slo) -> Headroom:
    """Try loads up and down, then between, each until it cannot keep the SLO any more."""
    low, high = 0.0, None
    loads: tuple[float, ...] = LADDER
    for _ in range(2):
        found = _keeping(engine, knobs, slo, loads)
        for load, is_kept in zip(loads, found, strict=True):
            if not is_kept:
                high = load
                break
            low = load
        if high is None or low == 0.0:
            break
        step = (high - low) / (NUM_BETWEEN + 1)
        loads = tuple(low + step * (n + 1) for n in range(NUM_BETWEEN))
    return Headroom(load=low, first_failing=high)


def _keeping(
    engine: TrialEngine, knobs: Knobs, slo: Slo, loads: tuple[float, ...]
) -> list[bool]:
    objective = Objective(name=ObjectiveName.GOODPUT, slo=slo)
    cases = [(knobs, engine.workload.retimed(speedup=load), objective) for load in loads]
    trials = engine.evaluate_under(cases, _most_missed())
    return [keeps(objective, trial) for trial in trials]


def _most_missed() -> float:
    """A loss beyond which too many requests are outside the limits, come what may."""
    return min(1 - KEPT_SHARE + 0.02, ENDED)


def fewest_replicas(
    engine: TrialEngine, knobs: Knobs, slo: Slo, routing: Routing
) -> int | None:
    """Replicas that together keep the SLO for today's load; None where many do not.

    Each is replayed with its part of the trace.
    """
    objective = Objective(name=ObjectiveName.GOODPUT, slo=slo)

    def is_kept(num_replicas: int) -> bool:
        parts = split(engine.workload, num_replicas, routing)
        trials = engine.evaluate_under([(knobs, part, objective) for part in parts])
        return all(keeps(objective, trial) for trial in trials)

    high = 1
    while not is_kept(high):
        high *= 2
        if high > MOST_REPLICAS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_kept(middle) else (middle, high)
    return high
