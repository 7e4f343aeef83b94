"""How far a difference could be chance: intervals by the bootstrap.

A simulated run is exact, so the question is what other requests of the same kind would
have shown: long blocks of consecutive requests are drawn anew, the same blocks for both
runs, because neighbours share a queue. A measured run is one of many that could have come
about: whole runs are drawn anew, for which the bootstrap has a closed form.

Sources: Efron & Tibshirani, An Introduction to the Bootstrap (1993), on standard errors
and on blocks of a series; Schmeiser, "Batch size effects in the analysis of simulation
output", Operations Research 30 (1982): 10 to 30 batches; Hesterberg, "What Teachers
Should Know About the Bootstrap", The American Statistician 69 (2015): a t interval with
the bootstrap's standard error, which is short by sqrt((k - 1) / k) for k draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from results.columns import FloatArray
from results.rows import IntArray

CONFIDENCE = 0.99
"""Of each interval. Some fifteen outcomes are judged at once: at 95 %, chance alone would
find one in many comparisons of equals."""

NUM_RESAMPLES = 400
"""A standard error is then known to 1 / sqrt(2 * 400) = 3.5 %."""

NUM_BLOCKS = 10
"""Of requests: few and long ones, of which each knows little of the one before."""

Interval = tuple[float, float]


class RequestResampling:
    """Draws of blocks of consecutive requests, the same for every run that they serve.

    Args:
        num_requests: Requests of the trace, at least ``NUM_BLOCKS``.
        num_resamples: How often blocks are drawn.
        seed: Equal seeds give equal draws.
    """

    def __init__(
        self, num_requests: int, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
    ) -> None:
        assert num_requests >= NUM_BLOCKS, "fewer requests than blocks"
        self._block_of = np.arange(num_requests) * NUM_BLOCKS // num_requests
        even = np.full(NUM_BLOCKS, 1 / NUM_BLOCKS)
        rng = np.random.default_rng(seed)
        self._draws = rng.multinomial(NUM_BLOCKS, even, size=num_resamples)

    def statistics(self, values: FloatArray, names: Sequence[str]) -> FloatArray:
        """Statistics of each resample, ``(len(names), num_resamples)``.

        Args:
            values: ``(num_requests,)``; NaN stands for "has none" and is left out.
            names: ``mean``, ``sum``, ``max``, or percentiles as ``p99``; those of a
                resample that drew no value are NaN.
        """
        ranked = [name for name in names if name not in ("mean", "sum")]
        found = dict(zip(ranked, self._percentiles(values, ranked), strict=True))
        known = np.isfinite(values)
        found["sum"] = self._totals(np.where(known, values, 0.0))
        with np.errstate(invalid="ignore"):
            found["mean"] = found["sum"] / self._totals(known.astype(np.float64))
        return np.array([found[name] for name in names])

    def _totals(self, values: FloatArray) -> FloatArray:
        by_block = np.bincount(self._block_of, values, minlength=NUM_BLOCKS)
        totals: FloatArray = self._draws.astype(np.float64) @ by_block
        return totals

    def _percentiles(self, values: FloatArray, names: Sequence[str]) -> FloatArray:
        """As ``numpy.percentile`` (linear) of the requests that each resample drew."""
        order = np.argsort(values)[: int(np.isfinite(values).sum())]  # NaN sorts last
        if not names or not len(order):
            return np.full((len(names), len(self._draws)), np.nan)
        ordered = values[order]
        is_of_block = self._block_of[order, None] == np.arange(NUM_BLOCKS)
        ranks_end = np.cumsum(is_of_block, axis=0)  # of each block, up to each value
        num_drawn = self._draws @ ranks_end[-1]
        shares = np.array([1.0 if n == "max" else float(n[1:]) / 100 for n in names])
        rank = (num_drawn - 1) * shares[:, None]
        below = np.floor(rank)
        above = np.minimum(below + 1, num_drawn - 1)
        low, high = (ordered[self._places(ranks_end, r)] for r in (below, above))
        found: FloatArray = low + (high - low) * (rank - below)
        found[:, num_drawn == 0] = np.nan
        return found

    def _places(self, ranks_end: IntArray, ranks: FloatArray) -> IntArray:
        """Which value has a rank in each resample: all are searched for together.

        Args:
            ranks_end: How many of each block lie up to each value,
                ``(num_values, NUM_BLOCKS)``.
            ranks: From 0, ``(num_ranks, num_resamples)``.
        """
        low = np.zeros(ranks.shape, dtype=np.int64)
        high = np.full(ranks.shape, len(ranks_end) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            is_reached = (ranks_end[middle] * self._draws).sum(axis=-1) > ranks
            high = np.where(is_reached, middle, high)
            low = np.where(is_reached, low, np.minimum(middle + 1, high))
        return low


def paired_interval(
    base: float,
    value: float,
    base_drawn: FloatArray,
    drawn: FloatArray,
    *,
    is_share: bool = False,
) -> Interval:
    """Interval of a difference between two runs of the same requests.

    What cannot be negative is judged by the logarithm of its ratio, so that no interval
    goes below a fall to 0. A share is bounded on both sides, and near either a ratio says
    more of the other than of the difference: it is judged by its points.

    Args:
        base: A statistic of the baseline, as seen.
        value: The same of the other run.
        base_drawn: The baseline's in each resample, ``(num_resamples,)``.
        drawn: The other run's, of the same draws.
        is_share: Whether it lies from 0 to 1.
    """
    known = np.isfinite(base_drawn) & np.isfinite(drawn)
    base_drawn, drawn = base_drawn[known], drawn[known]
    if is_share:
        error = _error(drawn - base_drawn)
        return share_apart(base, _around(value - base, error, NUM_BLOCKS - 1))
    least = min(base, value, base_drawn.min(initial=base), drawn.min(initial=base))
    if least <= 0:
        return _around(value - base, _error(drawn - base_drawn), NUM_BLOCKS - 1)
    error = _error(np.log(drawn / base_drawn))
    low, high = _around(math.log(value / base), error, NUM_BLOCKS - 1)
    return base * math.expm1(low), base * math.expm1(high)


def share_apart(base: float, interval: Interval) -> Interval:
    """The interval of a share's difference, without what no share can be apart by.

    Args:
        base: The baseline's share, from 0 to 1.
        interval: Of a difference from it.
    """
    least, most = -base, 1 - base
    low, high = (min(max(bound, least), most) for bound in interval)
    return low, high


def _error(apart: FloatArray) -> float:
    """Standard error of what differs as much in resamples of blocks."""
    spread = float(apart.std(ddof=1)) if len(apart) > 1 else 0.0
    return spread * math.sqrt(NUM_BLOCKS / (NUM_BLOCKS - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of a figure over repeats of a run.

    Attributes:
        value: The mean.
        error: Its standard error; 0 for a simulated run, which is exact.
        num_runs: Repeats that it is of; None where one is as good as many.
    """

    value: float
    error: float
    num_runs: int | None


def mean_of_runs(values: Sequence[float]) -> Mean:
    """The mean over measured repeats, and its standard error: NaN for a single one.

    Means of resamples of k runs spread by s sqrt((k - 1) / k) / sqrt(k), without drawing
    any; put right, that is s / sqrt(k).
    """
    runs = np.asarray(values, dtype=np.float64)
    spread = float(runs.std(ddof=1)) if len(runs) > 1 else np.nan
    error = spread / len(runs) ** 0.5
    return Mean(value=float(runs.mean()), error=error, num_runs=len(runs))


def unpaired_interval(base: Mean, other: Mean) -> Interval:
    """Interval of a difference between two means, at least one of them of repeats.

    Degrees of freedom are Welch's.
    """
    squares = base.error**2 + other.error**2
    spread = sum(
        mean.error**4 / (mean.num_runs - 1)
        for mean in (base, other)
        if mean.num_runs is not None
    )
    freedom = squares**2 / spread if spread else 1.0
    return _around(other.value - base.value, squares**0.5, freedom)


def _around(difference: float, error: float, freedom: float) -> Interval:
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error if error else 0.0
    return float(difference - half), float(difference + half)
