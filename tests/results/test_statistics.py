"""Tests for :mod:`results.statistics`."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from results.columns import FloatArray
from results.statistics import (
    IntArray,
    statistic_of,
    summarize_samples,
    sums_at_or_above,
    weighted_percentiles,
)

FINITE = st.floats(min_value=0, max_value=1e12)
WEIGHTED = st.lists(st.tuples(FINITE, st.integers(1, 9)), min_size=1, max_size=60)


def arrays(samples: list[tuple[float, int]]) -> tuple[FloatArray, FloatArray]:
    """Make arrays of values and of how often each occurs."""
    values, weights = zip(*samples, strict=True)
    return np.array(values), np.array(weights, dtype=np.float64)


def expanded(samples: list[tuple[float, int]]) -> FloatArray:
    """List each value as often as it occurs."""
    return np.array([value for value, weight in samples for _ in range(weight)])


@example([(0.3, 1), (0.9, 1)], [50.0])  # half way, where numpy counts from above
@given(WEIGHTED, st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_weighted_percentiles_equal_numpys_of_the_expansion(
    samples: list[tuple[float, int]], percentages: list[float]
) -> None:
    """A weight of k is the same as k equal samples, to the last bit."""
    ours = weighted_percentiles(*arrays(samples), percentages)

    assert ours.tolist() == np.percentile(expanded(samples), percentages).tolist()


def test_percentiles_lie_between_ranks() -> None:
    """Of 10, 20, 20, 20, 50 the middle is 20 and p90 lies 60 % of the way to 50."""
    values, weights = np.array([50.0, 10.0, 20.0]), np.array([1.0, 1.0, 3.0])

    percentiles = weighted_percentiles(values, weights, [0, 25, 50, 90, 100])

    assert percentiles.tolist() == pytest.approx([10, 20, 20, 38, 50])


@given(st.lists(FINITE, min_size=1, max_size=60))
def test_summary_agrees_with_scipy(samples: list[float]) -> None:
    """Mean and percentiles are those of scipy's linear definition."""
    summary = summarize_samples(np.array(samples))

    for name, percentage in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        theirs = stats.scoreatpercentile(samples, percentage)
        assert summary[name] == pytest.approx(theirs, rel=1e-9, abs=1e-300)
    assert summary["mean"] == pytest.approx(stats.tmean(samples), rel=1e-9, abs=1e-300)
    assert summary["max"] == max(samples)


@given(WEIGHTED)
def test_percentiles_stand_at_their_rank(samples: list[tuple[float, int]]) -> None:
    """By scipy's count, p % of the samples lie below a percentile, give or take one."""
    listed = expanded(samples)
    one = 100 / len(listed)

    summary = summarize_samples(*arrays(samples))

    for percentage in (50, 90, 95, 99):
        value = summary[f"p{percentage}"]
        below = stats.percentileofscore(listed, value, kind="strict")
        up_to = stats.percentileofscore(listed, value, kind="weak")
        assert below <= percentage + one
        assert up_to >= percentage - one


@given(WEIGHTED)
def test_weighted_summary_is_that_of_the_expansion(
    samples: list[tuple[float, int]],
) -> None:
    """A value that occurs k times has k parts in the mean."""
    values, weights = arrays(samples)

    summary = summarize_samples(values, weights)

    mean = expanded(samples).mean()
    assert summary["mean"] == pytest.approx(mean, rel=1e-9, abs=1e-300)
    assert summary["mean"] == np.average(values, weights=weights)
    assert summary["max"] == expanded(samples).max()


def test_no_samples_leave_every_figure_empty() -> None:
    """Without samples the keys stay and the values are None, never 0 or NaN."""
    summary = summarize_samples(np.array([np.nan]))

    names = ["mean", "p50", "p90", "p95", "p99", "max"]
    assert summary == dict.fromkeys(names)
    assert [statistic_of(name, np.array([])) for name in names] == [None] * 6


def test_values_that_never_occurred_are_left_out() -> None:
    """A weight of 0 removes a value, even from the maximum; NaN is no sample."""
    values, weights = np.array([1.0, 99.0, np.nan]), np.array([3.0, 0.0, 5.0])

    assert summarize_samples(values, weights)["max"] == 1.0
    assert statistic_of("max", values, weights) == 1.0
    assert statistic_of("mean", values, weights) == 1.0


@given(WEIGHTED)
def test_one_statistic_is_the_one_of_the_summary(
    samples: list[tuple[float, int]],
) -> None:
    """Asked for by name, a figure is the summary's to the last bit."""
    summary = summarize_samples(*arrays(samples))

    assert {name: statistic_of(name, *arrays(samples)) for name in summary} == summary


@given(WEIGHTED, st.sampled_from(["p0", "p5", "p37.5", "p99.9", "p99.99", "p100"]))
def test_any_percentile_can_be_asked_for(
    samples: list[tuple[float, int]], name: str
) -> None:
    """A percentile between whole ones is numpy's too."""
    theirs = np.percentile(expanded(samples), float(name[1:]))

    assert statistic_of(name, *arrays(samples)) == theirs


def sums(
    values: Iterable[float],
    weights: Iterable[float],
    queries: list[tuple[int, int, float]],
) -> list[float]:
    """Ask for the weight in each ``(start, end)`` that reaches the threshold."""
    starts: IntArray = np.array([start for start, _, _ in queries], dtype=np.int64)
    ends: IntArray = np.array([end for _, end, _ in queries], dtype=np.int64)
    thresholds = np.array([threshold for _, _, threshold in queries], dtype=np.float64)
    found = sums_at_or_above(
        np.array(list(values), dtype=np.float64),
        np.array(list(weights), dtype=np.float64),
        starts,
        ends,
        thresholds,
    )
    return [float(each) for each in found]


@given(st.data())
def test_sums_equal_those_of_a_loop_over_every_range(data: st.DataObject) -> None:
    """All queries together find what each finds on its own, to the unit."""
    value = st.integers(-5, 12) | st.floats(-5, 12)
    weight = st.integers(0, 2**40)
    pairs = data.draw(st.lists(st.tuples(value, weight), max_size=40))
    place = st.integers(0, len(pairs))
    query = st.tuples(place, place, value).map(
        lambda q: (min(q[0], q[1]), max(q[0], q[1]), q[2])
    )
    queries = data.draw(st.lists(query, max_size=40))
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]

    naive = [
        sum(weights[i] for i in range(start, end) if values[i] >= threshold)
        for start, end, threshold in queries
    ]

    assert sums(values, weights, queries) == naive


def test_sums_take_what_reaches_the_threshold() -> None:
    """Of 5, 1, 3 with weights 10, 20, 40: all reach 1, two reach 3, none exceeds 5."""
    queries = [(0, 3, 1), (0, 3, 3), (0, 3, 5), (0, 3, 5.1), (1, 3, 2), (0, 2, 0.5)]

    assert sums([5, 1, 3], [10, 20, 40], queries) == [70, 50, 10, 0, 40, 30]


def test_sums_over_nothing_are_zero() -> None:
    """An empty range, no values or no queries have no weight."""
    assert sums([5], [10], [(0, 0, 1), (1, 1, 1)]) == [0, 0]
    assert sums([], [], [(0, 0, 1)]) == [0]
    assert sums([5], [10], []) == []


def test_sums_leave_their_arguments_alone() -> None:
    """The arrays that were given are as they were."""
    values, weights = np.array([2.0, 1.0]), np.array([1.0, 2.0])
    starts, ends = np.array([0]), np.array([2])

    sums_at_or_above(values, weights, starts, ends, np.array([1.5]))

    assert (values.tolist(), weights.tolist()) == ([2, 1], [1, 2])
    assert (starts.tolist(), ends.tolist()) == ([0], [2])


def test_sums_stay_exact_to_2_to_the_53() -> None:
    """104 days in nanoseconds come out to the nanosecond."""
    weights = [2**52, 2**51 - 1, 2**51 - 1]

    assert sums([1, 0, 1], weights, [(0, 3, 1)]) == [2**52 + 2**51 - 1]
    assert sums([1, 0, 1], weights, [(0, 3, 0)]) == [2**53 - 2]
