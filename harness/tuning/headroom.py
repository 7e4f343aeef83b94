"""How much more load a setting takes, and how many replicas today's load needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.tuning.engine import TrialEngine
from harness.tuning.objective import CLOSENESS, Objective, ObjectiveName
from harness.tuning.routing import Routing, split
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from results.goodput import Slo

KEPT_SHARE = 0.9
"""Of the requests, inside the limits: the SLO is kept. Source: the attainment at which
DistServe (OSDI 2024) counts goodput."""

MORE = (1.25, 1.5, 2.0, 3.0), (4.0, 6.0, 8.0)
"""Loads that are tried together where today's is kept, then where all these are."""

LESS = (0.25, 0.5, 0.75), (0.05, 0.1)
"""The same where today's is not kept."""

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


def keeps(trial: Trial | None) -> bool:
    """Whether a run kept its SLO: enough requests inside, and all conditions met."""
    return keep_together([trial])


def keep_together(trials: Sequence[Trial | None]) -> bool:
    """Whether runs kept their SLO: of all their requests enough, each its conditions."""
    num_good, num_requests = 0.0, 0
    for trial in trials:
        if trial is None or trial.run is None or trial.run.trouble:
            return False
        goodput = trial.run.summary["goodput"]
        assert goodput is not None, "an SLO is set"
        if any(condition["met"] is False for condition in goodput["conditions"]):
            return False
        num = trial.run.summary["trace"]["num_requests"]
        num_good, num_requests = num_good + num * goodput["fraction"], num_requests + num
    return num_good >= KEPT_SHARE * num_requests - 1e-6


def headroom(engine: TrialEngine, knobs: Knobs, slo: Slo, today: Trial) -> Headroom:
    """Try loads up or down from today's, then between.

    Each is replayed until it cannot keep the SLO any more.

    Args:
        engine: Replays.
        knobs: The setting.
        slo: Limits.
        today: What the setting came to at today's load.
    """
    low, high = (1.0, None) if keeps(today) else (0.0, 1.0)
    for loads in MORE if low else LESS:
        low, high = _narrowed(engine, knobs, slo, loads, low, high)
        if low and high is not None:
            break
    if low and high is not None:
        step = (high - low) / (NUM_BETWEEN + 1)
        between = tuple(low + step * (n + 1) for n in range(NUM_BETWEEN))
        low, high = _narrowed(engine, knobs, slo, between, low, high)
    return Headroom(load=low, first_failing=high)


def _narrowed(
    engine: TrialEngine,
    knobs: Knobs,
    slo: Slo,
    loads: tuple[float, ...],
    low: float,
    high: float | None,
) -> tuple[float, float | None]:
    """The highest load up to which all are kept, and the lowest that is not."""
    found = _keeping(engine, knobs, slo, loads)
    for load, is_kept in zip(loads, found, strict=True):
        if not is_kept:
            return low, load
        low = load
    return low, high


def _of(slo: Slo) -> Objective:
    return Objective(name=ObjectiveName.GOODPUT, slo=slo)


def _keeping(
    engine: TrialEngine, knobs: Knobs, slo: Slo, loads: tuple[float, ...]
) -> list[bool]:
    objective = _of(slo)
    cases = [(knobs, engine.workload.retimed(speedup=load), objective) for load in loads]
    trials = engine.evaluate_under(cases, _most_missed())
    return [keeps(trial) for trial in trials]


def _most_missed() -> float:
    """A loss beyond which too many requests are outside the limits, come what may."""
    return 1 - KEPT_SHARE + CLOSENESS + 1e-9


def fewest_replicas(
    engine: TrialEngine, knobs: Knobs, slo: Slo, routing: Routing, load: float
) -> int | None:
    """Replicas that together keep the SLO for today's load; None where many do not.

    Each is replayed with its part of the trace. The first number tried is that by which
    the load has to be divided to be one that a single one keeps.

    Args:
        engine: Replays.
        knobs: The setting of each.
        slo: Limits.
        routing: How they share the load.
        load: The highest that one keeps, as a multiple of today's; 0 for none known.
    """
    if load <= 0:
        return None
    objective = _of(slo)

    def is_kept(num_replicas: int) -> bool:
        parts = split(engine.workload, num_replicas, routing)
        trials = engine.evaluate_under([(knobs, part, objective) for part in parts])
        return keep_together(trials)

    number = max(2, math.ceil(1 / load))
    if is_kept(number):
        while number > 2 and is_kept(number - 1):
            number -= 1
        return number
    while number < MOST_REPLICAS:
        number += 1
        if is_kept(number):
            return number
    return None
