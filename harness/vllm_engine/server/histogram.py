"""Histograms as Prometheus has them: how many values lie below each bound."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values counted by bucket.

    Attributes:
        bounds: Upper bounds, ascending; the last may be infinity.
        counts: Values in each bucket, above the bound before it.
        total: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @classmethod
    def of(cls, buckets: Iterable[tuple[float, float]], total: float) -> "Histogram":
        """From bounds and how many values lie up to each, engines added up.

        No fewer lie up to a higher bound, whatever engines with other bounds say.
        """
        below: dict[float, float] = {}
        for bound, count in buckets:
            below[bound] = below.get(bound, 0.0) + count
        bounds = tuple(sorted(below))
        ends = list(accumulate((below[bound] for bound in bounds), max, initial=0.0))
        return cls(bounds, tuple(b - a for a, b in pairwise(ends)), total)

    def less(self, earlier: "Histogram") -> "Histogram":
        """What came since an earlier look; whole where the buckets are others."""
        if earlier.bounds != self.bounds:
            return self
        pairs = zip(self.counts, earlier.counts, strict=True)
        counts = (max(later - before, 0.0) for later, before in pairs)
        return Histogram(self.bounds, tuple(counts), self.total - earlier.total)

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together; the other alone where the buckets differ."""
        if other.bounds != self.bounds:
            return other
        counts = (a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, tuple(counts), self.total + other.total)

    @property
    def num_values(self) -> float:
        """How many values there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean, which is exact; None without a value."""
        return self.total / self.num_values if self.num_values > 0 else None

    def edges(self, bucket: int) -> tuple[float, float]:
        """Bounds of a bucket; the last, open one has no width."""
        low = self.bounds[bucket - 1] if bucket else 0.0
        high = self.bounds[bucket]
        return low, high if math.isfinite(high) else low

    def skew(self, *, is_whole: bool = False) -> float:
        """What places within buckets are raised to, for values to have the true mean.

        A place from 0 to 1 raised to ``p`` has the mean ``1 / (p + 1)``; with 1 values
        would lie evenly in their bucket, which is far off where that is wide.

        Args:
            is_whole: Values are whole numbers, got by rounding up.
        """
        edges = [self.edges(bucket) for bucket in range(len(self.counts))]
        pairs = list(zip(self.counts, edges, strict=True))
        room = sum(count * (high - low) for count, (low, high) in pairs)
        if room <= 0:
            return 1.0
        over = self.total - sum(count * low for count, (low, _) in pairs)
        over -= self.num_values / 2 if is_whole else 0.0
        return 1 / min(max(over / room, 1e-6), 1.0) - 1

    def percentile(self, percent: float) -> float | None:
        """A percentile, between the bounds of its bucket; None without a value.

        Where in the bucket follows from the mean. Above the last finite bound it is that
        bound, which is too low.
        """
        rank, passed = self.num_values * percent / 100, 0.0
        if self.num_values <= 0:
            return None
        for bucket, count in enumerate(self.counts):
            if count > 0 and passed + count >= rank:
                low, high = self.edges(bucket)
                place = max(rank - passed, 0.0) / count
                return low + (high - low) * math.pow(place, self.skew())
            passed += count
        return self.edges(len(self.counts) - 1)[0]

    def summary(self) -> dict[str, float | None]:
        """Mean and percentiles, by the names of a run's summary."""
        return {
            "mean": self.mean,
            **{f"p{p}": self.percentile(p) for p in (50, 90, 95, 99)},
        }
