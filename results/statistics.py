"""Columns of records, and the mean, percentiles and maximum of samples."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
SampleSummary = dict[str, float | None]

PERCENTAGES = (50, 90, 95, 99)
NS_PER_S = 1e9


def column(records: Iterable[object], name: str) -> FloatArray:
    """One attribute of all records, NaN where it is None.

    Whole numbers stay exact up to 2**53, which is 104 days of nanoseconds.
    """
    return np.array(list(map(attrgetter(name), records)), dtype=np.float64)


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
    if weights is None:
        weights = np.ones(len(values))
    counted = ~np.isnan(values) & (weights > 0)
    values, weights = values[counted], weights[counted]
    if not len(values):
        return dict.fromkeys(names)
    mean = np.average(values, weights=weights)
    middle = weighted_percentiles(values, weights, PERCENTAGES)
    return dict(zip(names, map(float, (mean, *middle, values.max())), strict=True))
