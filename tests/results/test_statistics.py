"""Tests for :mod:`results.statistics`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results.record import RequestRecord
from results.statistics import column, summarize_samples, weighted_percentiles

FINITE = st.floats(min_value=0, max_value=1e12)


@given(
    st.lists(st.tuples(FINITE, st.integers(1, 9)), min_size=1, max_size=60),
    st.lists(st.floats(0, 100), min_size=1, max_size=8),
)
def test_weighted_percentiles_equal_numpys_of_the_expansion(
    samples: list[tuple[float, int]], percentages: list[float]
) -> None:
    """A weight of k is the same as k equal samples, to the last bit."""
    values = np.array([value for value, _ in samples])
    weights = np.array([weight for _, weight in samples])
    expanded = np.repeat(values, weights)

    ours = weighted_percentiles(values, weights.astype(float), percentages)

    assert ours.tolist() == np.percentile(expanded, percentages).tolist()


@given(st.lists(FINITE, min_size=1, max_size=60))
def test_summary_agrees_with_scipy(samples: list[float]) -> None:
    """Mean and percentiles are those of scipy's linear definition."""
    summary = summarize_samples(np.array(samples))

    for name, percentage in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        theirs = stats.scoreatpercentile(samples, percentage)
        assert summary[name] == pytest.approx(theirs, rel=1e-9, abs=1e-300)
    assert summary["mean"] == pytest.approx(stats.tmean(samples), rel=1e-9, abs=1e-300)
    assert summary["max"] == max(samples)


def test_no_samples_leave_every_figure_empty() -> None:
    """Without samples the keys stay and the values are None, never 0 or NaN."""
    summary = summarize_samples(np.array([np.nan]))

    names = ["mean", "p50", "p90", "p95", "p99", "max"]
    assert summary == dict.fromkeys(names)


def test_values_that_never_occurred_are_left_out() -> None:
    """A weight of 0 removes a value, even from the maximum."""
    summary = summarize_samples(np.array([1.0, 99.0]), np.array([3.0, 0.0]))

    assert summary["max"] == 1.0


def test_column_marks_what_never_came() -> None:
    """A time that is None becomes NaN."""
    waiting = RequestRecord(request_id=0, arrival_ns=5, num_prompt_tokens=1)

    assert column([waiting], "arrival_ns").tolist() == [5.0]
    assert np.isnan(column([waiting], "first_token_ns")).all()
