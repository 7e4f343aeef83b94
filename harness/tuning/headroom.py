"""How much more load a setting takes, and how many replicas today's load needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.load import (
    LoadKind,
    kind_of_load,
    loads_within,
    scaled_concurrency,
    under_way,
)
from harness.tuning.objective import BEYOND, CLOSENESS, Objective
from harness.tuning.routing import split
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

MOST_ROUNDS = 3
NEAR_ENOUGH = 0.15
"""Where a load is to be lowered: rounds of loads between, and the share of the first that
does not hold by which the last that does may be lower."""

NUM_BETWEEN = 3
"""Loads that are tried between the last that holds and the first that does not."""

MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The highest load that keeps the SLO.

    Attributes:
        load: As a multiple of today's; 0 where none of those tried keeps it.
        first_failing: The lowest load tried that does not; None where all did.
        kind: What there is more of. Where there can be no more, today's is all that was
            looked at.
        share: Of requests inside the limits that counts as keeping it.
    """

    load: float
    first_failing: float | None
    kind: LoadKind = LoadKind.RATE
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


def keeps_today(engine: TrialEngine, knobs: Knobs) -> bool:
    """Whether a setting keeps the SLO at today's load, replayed until it cannot."""
    slo = engine.objective.slo
    assert slo is not None, "there is an SLO to keep"
    return _keeping(engine, knobs, slo, (1.0,)) == [True]


def headroom(engine: TrialEngine, knobs: Knobs, slo: Slo, today: Trial) -> Headroom:
    """Try loads up or down from today's, then between.

    Each is replayed until it cannot keep the SLO any more. Where all requests come at
    once, none is.

    Args:
        engine: Replays.
        knobs: The setting.
        slo: Limits.
        today: What the setting came to at today's load.
    """
    kind = kind_of_load(engine.workload, engine.max_concurrency)
    low, high = (1.0, None) if keeps(today) else (0.0, 1.0)
    if kind is LoadKind.NONE:
        return Headroom(load=low, first_failing=high, kind=kind)
    for loads in MORE if low else LESS:
        low, high = _narrowed(engine, knobs, slo, loads, low, high)
        if low and high is not None:
            break
    if low and high is not None:
        low, high = _narrowed(engine, knobs, slo, _between(low, high), low, high)
    return Headroom(load=low, first_failing=high, kind=kind)


def headroom_of_whole(
    engine: TrialEngine, knobs: Knobs, slo: Slo, today: Trial, near: Headroom
) -> Headroom:
    """What a stretch of a trace takes, as far as the whole trace takes it too.

    A stretch begins with an empty queue, and ends before one that grows slowly is long.

    Args:
        engine: Replays the whole trace.
        knobs: The setting.
        slo: Limits.
        today: What the setting came to on the whole trace.
        near: The headroom on the stretch.
    """
    is_kept = keeps(today)
    if near.kind is LoadKind.NONE or (is_kept and near.load < 1):
        return headroom(engine, knobs, slo, today)
    low, high = (1.0, None) if is_kept else (0.0, 1.0)
    low, high = _narrowed(engine, knobs, slo, (near.load,), low, high)
    if high is None or low == near.load:
        failing = [each for each in (high, near.first_failing) if each is not None]
        return replace(near, load=low, first_failing=min(failing, default=None))
    for _ in range(MOST_ROUNDS):
        low, high = _narrowed(engine, knobs, slo, _between(low, high), low, high)
        assert high is not None, "it does not rise above what did not hold"
        if high - low <= NEAR_ENOUGH * high:
            break
    return replace(near, load=low, first_failing=high)


def _between(low: float, high: float) -> tuple[float, ...]:
    step = (high - low) / (NUM_BETWEEN + 1)
    return tuple(low + step * (n + 1) for n in range(NUM_BETWEEN))


def _narrowed(
    engine: TrialEngine,
    knobs: Knobs,
    slo: Slo,
    loads: tuple[float, ...],
    low: float,
    high: float | None,
) -> tuple[float, float | None]:
    """The highest load up to which all are kept, and the lowest that is not."""
    loads = loads_within(engine, loads, low, high)
    found = _keeping(engine, knobs, slo, loads)
    for load, is_kept in zip(loads, found, strict=False):
        if not is_kept:
            return low, load
        low = load
    return low, high


def _of(slo: Slo) -> Objective:
    return Objective(name=ObjectiveName.GOODPUT, slo=slo)


def _keeping(
    engine: TrialEngine, knobs: Knobs, slo: Slo, loads: tuple[float, ...]
) -> list[bool]:
    """Whether each load is kept; in a closed loop none after the first that is not."""
    objective = _of(slo)
    cases = [(knobs, engine.workload.retimed(speedup=load), objective) for load in loads]
    if engine.max_concurrency is None:
        return [keeps(trial) for trial in engine.evaluate_under(cases, _most_missed())]
    found: list[bool] = []
    for load, case in zip(loads, cases, strict=True):
        if False in found:
            break
        with under_way(engine, scaled_concurrency(engine, load)):
            found += map(keeps, engine.evaluate_under([case], _most_missed()))
    return found


def _most_missed() -> float:
    """A loss beyond which too many requests are outside the limits, come what may."""
    return 1 - KEPT_SHARE + CLOSENESS + BEYOND + 1e-9


def fewest_replicas(
    engine: TrialEngine, knobs: Knobs, slo: Slo, routing: Routing, load: float
) -> int | None:
    """Replicas that together keep the SLO for today's load; None where many do not.

    Each is replayed with its part of the trace, and in a closed loop with its part of
    the requests under way. The first number tried is that by which the load has to be
    divided to be one that a single one keeps.

    Args:
        engine: Replays.
        knobs: The setting of each.
        slo: Limits.
        routing: How they share the load.
        load: The highest that one keeps, as a multiple of today's; 0 for none, which is
            an answer unless all requests come at once.
    """
    objective = _of(slo)

    def is_kept(num_replicas: int) -> bool:
        parts = split(engine.workload, num_replicas, routing)
        with under_way(engine, scaled_concurrency(engine, 1 / num_replicas)):
            trials = engine.evaluate_under([(knobs, part, objective) for part in parts])
        return keep_together(trials)

    if kind_of_load(engine.workload, engine.max_concurrency) is LoadKind.NONE:
        return _fewest_of_many(is_kept)
    if load <= 0:
        return None
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


def _fewest_of_many(is_kept: Callable[[int], bool]) -> int | None:
    """The fewest, from 2, where nobody knows how many: doubled, then halved between."""
    most = 2
    while not is_kept(most):
        most *= 2
        if most > MOST_REPLICAS:
            return None
    fewest = most // 2 + 1
    while fewest < most:
        number = (fewest + most) // 2
        if is_kept(number):
            most = number
        else:
            fewest = number + 1
    return most
