"""What a server's metrics said while somebody watched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from harness.run_columns import IntArray
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.histogram import Histogram
from harness.vllm_engine.server.metrics import COUNTERS, Difference, Snapshot
from results.columns import FloatArray

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Observation:
    """Looks at one server, in time order, cut where it was started anew.

    Attributes:
        server: What it said of itself.
        looks: Gauges of each look, by name; NaN where there is none such.
        times_ns: When each look was, since the first, ``(num_looks,)`` as a list.
        stretches: First and last snapshot of each life of the server.
        num_arrived: Requests that had come by each look, since the first.
        num_missed: Looks that were not answered.
        fault: Why watching ended early; empty if it did not.
        fault_kind: The same as a word for scripts.
        is_interrupted: Somebody ended it.
    """

    server: Server
    times_ns: list[int] = field(default_factory=list)
    looks: list[dict[str, float]] = field(default_factory=list)
    num_arrived: list[float] = field(default_factory=list)
    stretches: list[Difference] = field(default_factory=list)
    num_missed: int = 0
    fault: str = ""
    fault_kind: str = ""
    is_interrupted: bool = False

    def take(self, snapshot: Snapshot) -> None:
        """Add a look."""
        if not self.stretches:
            self.stretches.append(Difference(snapshot, snapshot))
        last = self.stretches[-1]
        if Difference(last.after, snapshot).is_restarted:
            self.stretches.append(Difference(snapshot, snapshot))
        else:
            self.stretches[-1] = Difference(last.before, snapshot)
        first_ns = self.stretches[0].before.time_ns
        self.times_ns.append(snapshot.time_ns - first_ns)
        self.looks.append({name: _gauge(snapshot, name) for name in WATCHED})
        self.num_arrived.append(self._arrived(snapshot))

    @property
    def num_restarts(self) -> int:
        """How often the server was started anew meanwhile."""
        return max(len(self.stretches) - 1, 0)

    @property
    def duration_s(self) -> float:
        """Seconds from the first look to the last."""
        return self.times_ns[-1] / _NS_PER_S if self.times_ns else 0.0

    def gauge(self, name: str) -> FloatArray:
        """A gauge at each look, ``(num_looks,)``; NaN where there is none such."""
        return np.array([look[name] for look in self.looks], dtype=np.float64)

    def counter(self, name: str) -> float | None:
        """By how much a counter rose in all lives of the server; None if not counted."""
        return _summed(self.stretches, lambda stretch: stretch.counter(name))

    def counters(self) -> dict[str, float | None]:
        """All counters by our names."""
        return {name: self.counter(name) for name in COUNTERS}

    def histogram(self, name: str) -> Histogram | None:
        """What a histogram took up in all lives of the server."""
        found = [stretch.histogram(name) for stretch in self.stretches]
        present = [each for each in found if each is not None]
        return reduce(Histogram.plus, present) if present else None

    def lifetime_histogram(self, name: str) -> Histogram | None:
        """The same since the server was started, before anybody watched too."""
        return self.stretches[-1].after.histogram(name) if self.stretches else None

    def arrivals(self) -> IntArray:
        """Requests that came between two looks, ``(num_looks - 1,)``.

        They are those that finished and those that are in the server and were not. A
        look between the two counts of one moment may see a request in both or in
        neither: what rises counts, once.
        """
        seen = np.maximum.accumulate(np.array([0.0, *self.num_arrived])[1:])
        return np.rint(np.diff(np.rint(seen))).astype(np.int64)

    def _arrived(self, snapshot: Snapshot) -> float:
        """Requests that have come since the first look."""
        past = self.counter("finished_requests") or 0.0
        if self.num_restarts:
            return past + _in_server(snapshot)
        return past + _in_server(snapshot) - _in_server(self.stretches[0].before)


WATCHED = (
    "num_running",
    "num_waiting",
    "num_swapped",
    "kv_cache_usage",
    "cpu_cache_usage",
)


def _gauge(snapshot: Snapshot, name: str) -> float:
    value = snapshot.gauge(name)
    return float("nan") if value is None else value


def _in_server(snapshot: Snapshot) -> float:
    names = ("num_running", "num_waiting", "num_swapped")
    return sum(snapshot.gauge(name) or 0.0 for name in names)


def _summed(
    stretches: list[Difference], count: Callable[[Difference], float | None]
) -> float | None:
    numbers = [count(stretch) for stretch in stretches]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
