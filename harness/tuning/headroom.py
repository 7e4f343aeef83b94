"""How much more load a setting takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.load import (
    LoadKind,
    kind_of_load,
    loads_within,
    scaled_concurrency,
    under_way,
)
from harness.tuning.objective import BEYOND, CLOSENESS, Objective
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

LEAST_LIFETIMES = 5
"""A load is to last so many times as long as a request takes in the mean: those that come
before the engine is as full as it gets are then a fifth, and cannot keep an SLO that the
others miss by more than 2.5 points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The highest load that keeps the SLO.

    Attributes:
        load: As a multiple of today's; 0 where none of those tried keeps it.
        first_failing: The lowest load tried that does not; None where all did.
        lasting: The highest load that keeps it for long enough to tell; None where the
            trace is too short for each that does.
        kind: What there is more of. Where there can be no more, today's is all that was
            looked at.
        share: Of requests inside the limits that counts as keeping it.
    """

    load: float
    first_failing: float | None
    lasting: float | None = None
    kind: LoadKind = LoadKind.RATE
    share: float = KEPT_SHARE

    def times(self, factor: float) -> "Headroom":
        """The same, of a load that is so many times as high."""

        def scaled(load: float | None) -> float | None:
            return None if load is None else factor * load

        return replace(
            self,
            load=factor * self.load,
            first_failing=scaled(self.first_failing),
            lasting=scaled(self.lasting),
        )


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
    return [keeps(trial) for trial in _under_loads(engine, knobs, slo, [1.0])] == [True]


def gives_up_slo(base: Trial, other: Trial) -> bool:
    """Whether another run misses an SLO that one keeps.

    Where that one misses it: whether fewer requests are inside. Without an SLO none is
    given up.
    """
    if base.run is None or base.run.summary["goodput"] is None:
        return False
    if keeps(base):
        return not keeps(other)
    return _share_inside(other) < _share_inside(base)


def _share_inside(trial: Trial) -> float:
    if trial.run is None or trial.run.trouble:
        return 0.0
    return float(trial.run.summary["goodput"]["fraction"])


def lasts(trial: Trial) -> bool:
    """Whether a run shows what the load does to an engine that has been under it a while.

    Else the last request comes before the first have left, or queues still grow: that an
    SLO is kept may be for want of time.
    """
    assert trial.run is not None, "it kept its SLO"
    assert trial.num_lifetimes is not None, "it was replayed to its end"
    is_growing = trial.run.summary["steady"] is False
    return trial.num_lifetimes >= LEAST_LIFETIMES and not is_growing


@dataclass(slots=True, kw_only=True)
class _Bracket:
    """What is known of the loads that a setting takes.

    Attributes:
        engine: Replays.
        knobs: The setting.
        slo: Limits.
        low: The highest load up to which all that were tried are kept; 0 for none.
        high: The lowest that is not; None for none.
        lasting: The highest that is kept and lasts; None for none.
    """

    engine: TrialEngine
    knobs: Knobs
    slo: Slo
    low: float = 0.0
    high: float | None = None
    lasting: float | None = None

    def note(self, load: float, trial: Trial | None) -> None:
        """Take down what a load came to."""
        if trial is None or not keeps(trial):
            self.high = load
            return
        self.low = load
        if lasts(trial):
            self.lasting = load

    def narrow(self, loads: Sequence[float]) -> None:
        """Try loads in between, from the lowest up to the first that is not kept."""
        loads = loads_within(self.engine, loads, self.low, self.high)
        trials = _under_loads(self.engine, self.knobs, self.slo, loads)
        for load, trial in zip(loads, trials, strict=False):
            self.note(load, trial)
            if load == self.high:
                return

    def look_between(self) -> None:
        """Try what lies between the highest that is kept and the lowest that is not."""
        assert self.high is not None, "all loads that were tried are kept"
        step = (self.high - self.low) / (NUM_BETWEEN + 1)
        self.narrow([self.low + step * (n + 1) for n in range(NUM_BETWEEN)])

    def found(self, kind: LoadKind) -> Headroom:
        """It as an answer."""
        lasting = self.lasting if self.low else 0.0
        return Headroom(
            load=self.low, first_failing=self.high, lasting=lasting, kind=kind
        )


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
    bracket = _Bracket(engine=engine, knobs=knobs, slo=slo)
    bracket.note(1.0, today)
    if kind is LoadKind.NONE:
        return bracket.found(kind)
    for loads in MORE if bracket.low else LESS:
        bracket.narrow(loads)
        if bracket.low and bracket.high is not None:
            bracket.look_between()
            break
    return bracket.found(kind)


def headroom_of_whole(
    engine: TrialEngine, knobs: Knobs, slo: Slo, today: Trial, near: Headroom
) -> Headroom:
    """What the whole trace takes, from what a stretch of it takes.

    A stretch begins with an empty queue, and ends before one that grows slowly is long.
    Both ends of what is said are of the whole trace: the load that the stretch takes and
    the one that it does not are replayed beside each other. What a stretch takes nothing
    of, the whole trace, of which it is a part, is not taken to take either.

    Args:
        engine: Replays the whole trace.
        knobs: The setting.
        slo: Limits.
        today: What the setting came to on the whole trace.
        near: The headroom on the stretch.
    """
    if near.kind is LoadKind.NONE or (keeps(today) and near.load < 1):
        return headroom(engine, knobs, slo, today)
    if not near.load:
        return near
    bracket = _Bracket(engine=engine, knobs=knobs, slo=slo)
    bracket.note(1.0, today)
    bracket.narrow([load for load in (near.load, near.first_failing) if load])
    for _ in range(MOST_ROUNDS):
        low, high = bracket.low, bracket.high
        is_near = high is not None and high - low <= NEAR_ENOUGH * high
        if high is None or low >= near.load or (low and is_near):
            break
        bracket.look_between()
    return bracket.found(near.kind)


def _of(slo: Slo) -> Objective:
    return Objective(name=ObjectiveName.GOODPUT, slo=slo)


def _under_loads(
    engine: TrialEngine, knobs: Knobs, slo: Slo, loads: Sequence[float]
) -> list[Trial | None]:
    """What each load comes to; in a closed loop none after the first that is not kept."""
    objective = _of(slo)
    cases = [(knobs, engine.workload.retimed(speedup=load), objective) for load in loads]
    if engine.max_concurrency is None:
        return engine.evaluate_under(cases, _most_missed())
    found: list[Trial | None] = []
    for load, case in zip(loads, cases, strict=True):
        with under_way(engine, scaled_concurrency(engine, load)):
            found += engine.evaluate_under([case], _most_missed())
        if not keeps(found[-1]):
            break
    return found


def _most_missed() -> float:
    """A loss beyond which too many requests are outside the limits, come what may."""
    return 1 - KEPT_SHARE + CLOSENESS + BEYOND + 1e-9
