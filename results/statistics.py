"""The mean, percentiles and maximum of samples, and sums over ranges of steps."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from results.columns import FloatArray

IntArray = NDArray[np.int64]
SampleSummary = dict[str, float | None]

PERCENTAGES = (50, 90, 95, 99)
NS_PER_S = 1e9


def weighted_percentiles(
    values: FloatArray, weights: FloatArray, percentages: Sequence[float]
) -> FloatArray:
    """Percentiles of the samples in which ``values[i]`` occurs ``weights[i]`` times.

    Equal to ``numpy.percentile`` (linear) of the expanded samples, to the last bit.

    Args:
        values: Distinct or repeated values, at least one.
        weights: Whole numbers of at least 1, one for each value.
        percentages: Between 0 and 100.
    """
    order = np.argsort(values)
    ordered = values[order]
    ranks_end = np.cumsum(weights[order])
    rank = (ranks_end[-1] - 1) * (np.asarray(percentages, dtype=np.float64) / 100)
    below = np.floor(rank)
    above = np.minimum(below + 1, ranks_end[-1] - 1)
    low = ordered[np.searchsorted(ranks_end, below, side="right")]
    high = ordered[np.searchsorted(ranks_end, above, side="right")]
    return _interpolate(low, high, rank - below)


def _interpolate(low: FloatArray, high: FloatArray, share: FloatArray) -> FloatArray:
    # numpy counts from the nearer end, so that both ends are met exactly.
    step = high - low
    return np.where(share >= 0.5, high - step * (1 - share), low + step * share)


def summarize_samples(
    values: FloatArray, weights: FloatArray | None = None
) -> SampleSummary:
    """Mean, p50, p90, p95, p99 and max, each None when there are no samples.

    Args:
        values: The samples; NaN stands for "has none" and is left out.
        weights: How often each value occurs; once where not given.
    """
    names = ["mean", *(f"p{p}" for p in PERCENTAGES), "max"]
    values, weights = _counted(values, weights)
    if not len(values):
        return dict.fromkeys(names)
    mean = np.average(values, weights=weights)
    middle = weighted_percentiles(values, weights, PERCENTAGES)
    return dict(zip(names, map(float, (mean, *middle, values.max())), strict=True))


def statistic_of(
    name: str, values: FloatArray, weights: FloatArray | None = None
) -> float | None:
    """One statistic of samples by its name: ``mean``, ``max``, or ``p99``, ``p99.9``.

    Samples count as in :func:`summarize_samples`; None when there are none.
    """
    values, weights = _counted(values, weights)
    if not len(values):
        return None
    if name == "mean":
        return float(np.average(values, weights=weights))
    if name == "max":
        return float(values.max())
    return float(weighted_percentiles(values, weights, [float(name[1:])])[0])


def _counted(
    values: FloatArray, weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    if weights is None:
        weights = np.ones(len(values))
    counted = ~np.isnan(values) & (weights > 0)
    return values[counted], weights[counted]


def sums_at_or_above(
    values: FloatArray,
    weights: FloatArray,
    starts: IntArray,
    ends: IntArray,
    thresholds: FloatArray,
) -> FloatArray:
    """For each query, the weight of the values in a range that reach its threshold.

    Query ``q`` sums ``weights[i]`` over ``starts[q] <= i < ends[q]`` with ``values[i] >=
    thresholds[q]``. All queries descend together through the bits of the values' ranks (a
    wavelet matrix): ``O((values + queries) log thresholds)``, where asking one by one
    would cost the sum of all ranges.

    Args:
        values: ``(num_values,)``.
        weights: ``(num_values,)``; sums are exact where these are whole numbers that
            together stay below 2**53.
        starts: ``(num_queries,)``, from 0 to ``num_values``.
        ends: ``(num_queries,)``, not below ``starts``.
        thresholds: ``(num_queries,)``.
    """
    levels, wanted = np.unique(thresholds, return_inverse=True)
    wanted = wanted.astype(np.int64) + 1
    ranks = np.searchsorted(levels, values, side="right")
    low, high = starts.astype(np.int64), ends.astype(np.int64)
    found = np.zeros(len(thresholds))
    for bit in reversed(range(len(levels).bit_length())):
        is_one = (ranks >> bit) & 1 == 1
        ones = np.concatenate(([0], np.cumsum(is_one)))
        one_weight = np.concatenate(([0.0], np.cumsum(weights * is_one)))
        num_zeros = len(ranks) - ones[-1]
        takes_ones = (wanted >> bit) & 1 == 1
        found += np.where(takes_ones, 0.0, one_weight[high] - one_weight[low])
        low = np.where(takes_ones, num_zeros + ones[low], low - ones[low])
        high = np.where(takes_ones, num_zeros + ones[high], high - ones[high])
        order = np.argsort(is_one, kind="stable")
        ranks, weights = ranks[order], weights[order]
    total = np.concatenate(([0.0], np.cumsum(weights)))
    return found + total[high] - total[low]
