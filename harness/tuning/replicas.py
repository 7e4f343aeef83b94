"""How many replicas a load needs: the trace is shared out among more, or fewer."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.headroom import KEPT_SHARE, keep_together
from harness.tuning.load import under_way
from harness.tuning.objective import BEYOND, CLOSENESS, Objective
from harness.tuning.routing import split
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.goodput import Slo

MOST_REPLICAS = 64
"""Tried, unless there are more already."""

AT_A_TIME = 8
"""Replicas that are replayed before those outside the limits are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """What all replicas get together.

    Attributes:
        workload: The requests of all.
        routing: How replicas share them.
        num_replicas: That share them now.
        max_concurrency: Of all together, in a closed loop; None for none.
    """

    workload: Workload
    routing: Routing = Routing.ROUND_ROBIN
    num_replicas: int = 1
    max_concurrency: int | None = None

    @property
    def most_replicas(self) -> int:
        """With more, some would have no conversation, or nothing under way."""
        num_conversations = int(np.count_nonzero(self.workload.parent < 0))
        most = min(max(MOST_REPLICAS, self.num_replicas), num_conversations)
        return most if self.max_concurrency is None else min(most, self.max_concurrency)

    def during(self, stretch: slice) -> "SharedLoad":
        """What all get while one gets a stretch of its requests: about as many each."""
        begin, end = stretch.start * self.num_replicas, stretch.stop * self.num_replicas
        return replace(self, workload=self.workload.select(slice(begin, end)))

    def parts(self, num_replicas: int) -> Iterator[tuple[Workload, int | None]]:
        """The requests of each replica, and how many of them are under way at a time."""
        parts = split(self.workload, num_replicas, self.routing)
        for place, part in enumerate(parts):
            if self.max_concurrency is None:
                yield part, None
            else:
                each, more = divmod(self.max_concurrency, num_replicas)
                yield part, max(1, each + (place < more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many it takes.

    Attributes:
        fewest: That keep the SLO together; None where none of the numbers tried do.
        most_tried: The largest number that was tried.
    """

    fewest: int | None
    most_tried: int


def fewest_replicas(
    engine: TrialEngine, knobs: Knobs, slo: Slo, shared: SharedLoad, load: float
) -> Replicas:
    """Replicas that together keep the SLO for today's load.

    Each is replayed with its part of the trace: requests that come together are parted,
    as by no slower load. From what the headroom lets one expect the number is doubled
    until it does, then halved between.

    Args:
        engine: Of one replica.
        knobs: The setting of each.
        slo: Limits.
        shared: What they share.
        load: The highest that one of today's keeps, as a multiple of its own; 0 for none.
    """
    now, most = shared.num_replicas, shared.most_replicas
    if now == 1 and load >= 1:
        return Replicas(fewest=1, most_tried=1)
    numbers = _Numbers(engine=engine, knobs=knobs, slo=slo, shared=shared)
    expected = now if load >= 1 else max(now + 1, math.ceil(now / load) if load else 0)
    not_enough = 1 if now == 1 else 0
    fewest = fewest_of(numbers.is_kept, min(expected, most), not_enough, most)
    return Replicas(fewest=fewest, most_tried=max(numbers.tried, default=now))


def fewest_of(
    is_kept: Callable[[int], bool], first: int, not_enough: int, most: int
) -> int | None:
    """The fewest that do; None where as many as may be tried do not.

    Args:
        is_kept: Whether a number does; more than one that does do as well.
        first: Tried first.
        not_enough: Does not.
        most: May be tried.
    """
    enough = max(first, not_enough + 1)
    if enough > most:
        return None
    while not is_kept(enough):
        if enough == most:
            return None
        not_enough, enough = enough, min(2 * enough, most)
    while enough - not_enough > 1:
        middle = (not_enough + enough) // 2
        if is_kept(middle):
            enough = middle
        else:
            not_enough = middle
    return enough


@dataclass(slots=True, kw_only=True)
class _Numbers:
    """Whether numbers of replicas keep an SLO.

    Attributes:
        engine: Of one replica.
        knobs: The setting of each.
        slo: Limits.
        shared: What they share.
        tried: Numbers.
    """

    engine: TrialEngine
    knobs: Knobs
    slo: Slo
    shared: SharedLoad
    tried: list[int] = field(default_factory=list)

    def is_kept(self, num_replicas: int) -> bool:
        """Whether so many do: replayed until too many of all requests are outside."""
        self.tried.append(num_replicas)
        parts = list(self.shared.parts(num_replicas))
        trials: list[Trial | None] = []
        missed, may_miss = 0.0, (1 - KEPT_SHARE) * len(self.shared.workload) + 1e-6
        for begin in range(0, len(parts), AT_A_TIME):
            batch = parts[begin : begin + AT_A_TIME]
            found = self._replay(batch, may_miss - missed)
            missed += sum(_num_outside(trial) for trial in found)
            trials += found
            if missed > may_miss:
                return False
        return keep_together(trials)

    def _replay(
        self, parts: Sequence[tuple[Workload, int | None]], may_miss: float
    ) -> list[Trial | None]:
        """Each part, by itself; given up where it alone misses more than may be."""
        objective = Objective(name=ObjectiveName.GOODPUT, slo=self.slo)
        least = min(len(part) for part, _ in parts)
        give_up_above = may_miss / least + CLOSENESS + BEYOND + 1e-9
        found: list[Trial | None] = []
        for limit in Counter(limit for _, limit in parts):
            cases = [(self.knobs, part, objective) for part, n in parts if n == limit]
            with under_way(self.engine, limit):
                found += self.engine.evaluate_under(cases, give_up_above)
        return found


def _num_outside(trial: Trial | None) -> float:
    """Requests outside the limits; more than any where the run does not count."""
    if trial is None or trial.run is None or trial.run.trouble:
        return float("inf")
    summary = trial.run.summary
    assert summary["goodput"] is not None, "an SLO is set"
    inside = summary["trace"]["num_requests"] * summary["goodput"]["fraction"]
    return float(summary["trace"]["num_requests"] - inside)
