"""Tests for :mod:`results.comparison.interval`, against numpy and scipy."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from results.columns import FloatArray
from results.comparison.interval import (
    CONFIDENCE,
    NUM_BLOCKS,
    Mean,
    RequestResampling,
    mean_of_runs,
    paired_interval,
    unpaired_interval,
)

MANY = 40_000
"""Resamples; a standard error is then known to 0.35 %."""

NEAR = 0.015
"""Of a half width: four times what so many resamples leave open."""

NUMBERS = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
MEASURED = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8)


def times_drawn(resampling: RequestResampling, num_requests: int) -> list[list[int]]:
    """How often each resample drew each request, from the sums of a single one."""
    units = np.eye(num_requests)
    sums = [resampling.statistics(unit, ["sum"])[0] for unit in units]
    return [list(map(int, counts)) for counts in zip(*sums, strict=True)]


def half_width(interval: tuple[float, float]) -> float:
    """Half of what lies between the bounds."""
    return (interval[1] - interval[0]) / 2


def by_block(values: FloatArray) -> FloatArray:
    """Means of equal blocks of consecutive requests."""
    means: FloatArray = values.reshape(NUM_BLOCKS, -1).mean(axis=1)
    return means


def paired(x: FloatArray, y: FloatArray, name: str) -> tuple[float, float]:
    """The interval of a statistic, of many resamples."""
    resampling = RequestResampling(len(x), num_resamples=MANY)
    drawn = [resampling.statistics(side, [name])[0] for side in (x, y)]
    if name in ("mean", "sum"):
        base, value = (getattr(side, name)() for side in (x, y))
    else:
        base, value = (np.percentile(side, float(name[1:])) for side in (x, y))
    return paired_interval(float(base), float(value), *drawn)


# -- resamples ---------------------------------------------------------------------------


@given(
    st.lists(NUMBERS | st.just(math.nan), min_size=NUM_BLOCKS, max_size=45),
    st.integers(0, 2**32 - 1),
)
@example([5.0, *[math.nan] * 19], 0)  # some resamples draw no value
def test_statistics_are_those_of_the_requests_drawn(
    listed: list[float], seed: int
) -> None:
    """Expanding each draw, numpy finds the same mean, sum, maximum and percentiles."""
    values = np.array(listed)
    resampling = RequestResampling(len(values), num_resamples=6, seed=seed)
    names = ["p50", "mean", "p99", "max", "sum", "p12.5", "p0"]

    found = resampling.statistics(values, names)

    for counts, column in zip(times_drawn(resampling, len(values)), found.T, strict=True):
        drawn = np.repeat(values, counts)
        drawn = drawn[~np.isnan(drawn)]
        expected = [math.nan] * len(names)
        if len(drawn):
            p0, p12, p50, p99, p100 = np.percentile(drawn, [0, 12.5, 50, 99, 100])
            expected = [p50, drawn.mean(), p99, p100, drawn.sum(), p12, p0]
        expected[names.index("sum")] = drawn.sum()
        assert column == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("num_requests", [10, 11, 57, 100])
def test_what_is_drawn_are_ten_long_blocks(num_requests: int) -> None:
    """Requests come in ten runs of neighbours, each of a tenth of them."""
    resampling = RequestResampling(num_requests)

    counts = np.array(times_drawn(resampling, num_requests))

    starts = np.flatnonzero((counts[:, 1:] != counts[:, :-1]).any(axis=0)) + 1
    lengths = np.diff([0, *starts, num_requests])
    assert len(lengths) == NUM_BLOCKS
    assert set(lengths) <= {num_requests // NUM_BLOCKS, -(-num_requests // NUM_BLOCKS)}
    drawn = counts[:, [0, *starts]]
    assert set(drawn.sum(axis=1)) == {NUM_BLOCKS}
    assert drawn.mean() == pytest.approx(1.0)
    assert drawn.var() == pytest.approx(1 - 1 / NUM_BLOCKS, rel=0.1)  # with replacement


def test_equal_seeds_draw_the_same() -> None:
    """Two runs are drawn from alike, and another seed draws otherwise."""
    values = np.arange(30.0)

    first, second, other = (
        RequestResampling(30, seed=seed).statistics(values, ["mean"])
        for seed in (4, 4, 5)
    )

    assert (first == second).all()
    assert (first != other).any()


# -- the same requests in two runs -------------------------------------------------------


@pytest.mark.parametrize("name", ["mean", "sum"])
def test_means_have_the_interval_of_a_paired_t_test(name: str) -> None:
    """Where values go below 0, the interval is that of a t test on means of blocks."""
    rng = np.random.default_rng(5)
    x = rng.normal(0.0, 1.0, 200)
    y = x + rng.normal(0.3, 0.5, 200)

    found = paired(x, y, name)

    test = stats.ttest_rel(by_block(y), by_block(x))
    scale = 1 if name == "mean" else len(x)
    expected = np.array(test.confidence_interval(CONFIDENCE)) * scale
    middle = float((y - x).mean()) * scale
    assert sum(found) / 2 == pytest.approx(middle)
    assert half_width(found) == pytest.approx(half_width(tuple(expected)), rel=NEAR)


def test_positive_means_have_the_interval_of_log_ratios() -> None:
    """Where all values exceed 0, the interval is that of a t test on logs of ratios."""
    rng = np.random.default_rng(6)
    x = np.full(200, 5.0)
    y = 4.0 * rng.normal(1.0, 0.04, 200)

    found = paired(x, y, "mean")

    test = stats.ttest_1samp(np.log(by_block(y) / by_block(x)), 0.0)
    expected = 5.0 * np.expm1(np.array(test.confidence_interval(CONFIDENCE)))
    assert half_width(found) == pytest.approx(half_width(tuple(expected)), rel=NEAR)
    assert sum(found) == pytest.approx(sum(expected), rel=1e-3)
    assert found[0] + found[1] > 2 * (y.mean() - x.mean())  # longer to the upper side


def test_percentiles_have_the_standard_error_of_a_paired_bootstrap() -> None:
    """With blocks of one request, scipy's bootstrap of pairs finds the same error."""
    rng = np.random.default_rng(7)
    x = rng.exponential(1.0, NUM_BLOCKS) - 0.5
    y = x * 0.8 + rng.normal(0.0, 0.3, NUM_BLOCKS)

    found = paired(x, y, "p90")

    def difference(x: FloatArray, y: FloatArray, axis: int) -> FloatArray:
        apart: FloatArray = np.percentile(y, 90, axis=axis) - np.percentile(
            x, 90, axis=axis
        )
        return apart

    theirs = stats.bootstrap(
        (x, y), difference, paired=True, n_resamples=MANY, method="basic", rng=rng
    ).standard_error
    times = stats.t.ppf((1 + CONFIDENCE) / 2, NUM_BLOCKS - 1)
    ours = half_width(found) / times / math.sqrt(NUM_BLOCKS / (NUM_BLOCKS - 1))
    assert ours == pytest.approx(theirs, rel=NEAR)


def test_no_fall_goes_below_zero() -> None:
    """However wide, the interval of what exceeds 0 keeps above a fall to nothing."""
    rng = np.random.default_rng(8)
    x = rng.lognormal(0.0, 2.0, 100)

    low, high = paired(x, rng.permutation(x), "mean")

    assert low > -x.mean()
    assert high > x.mean()


def test_what_is_equal_in_every_resample_differs_by_nothing() -> None:
    """Two equal runs have the interval from 0 to 0, by logs or not."""
    values = np.arange(1.0, 31.0)

    assert paired(values, values, "p99") == (0.0, 0.0)
    assert paired(values - 9, values - 9, "mean") == (0.0, 0.0)


def test_a_shift_of_all_is_known_for_sure() -> None:
    """A difference that is the same in every resample has no width."""
    values = np.arange(30.0)

    assert paired(values - 20, values - 22, "mean") == pytest.approx((-2.0, -2.0))
    assert paired(values + 1, 1.1 * (values + 1), "mean") == pytest.approx((1.55, 1.55))


def share_interval(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The interval of the difference of two shares of requests."""
    resampling = RequestResampling(len(x))
    drawn = [resampling.statistics(side, ["mean"])[0] for side in (x, y)]
    return paired_interval(float(x.mean()), float(y.mean()), *drawn, is_share=True)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=10, max_size=60))
def test_shares_are_no_further_apart_than_shares_can_be(
    pairs: list[tuple[bool, bool]],
) -> None:
    """Neither below 0 % nor above 100 %, and around what was seen."""
    x, y = np.array(pairs, dtype=float).T

    low, high = share_interval(x, y)

    apart = y.mean() - x.mean()
    assert -x.mean() <= low <= apart + 1e-12
    assert apart - 1e-12 <= high <= 1 - x.mean()


def test_all_inside_where_two_fifths_were_is_no_chance() -> None:
    """A queue that grows loses all later requests, and none where it does not grow."""
    x = np.repeat([1.0, 0.0], [80, 100])

    low, high = share_interval(x, np.ones(180))

    assert low > 0
    assert high == 1 - x.mean()


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_equal_shares_are_seldom_called_different(share: float) -> None:
    """Of intervals at 99 % one in a hundred leaves 0 out."""
    rng = np.random.default_rng(9)
    pairs = [rng.random((2, 300)) < share for _ in range(400)]

    found = [share_interval(x.astype(float), y.astype(float)) for x, y in pairs]

    false = sum(low > 0 or high < 0 for low, high in found)
    assert false <= stats.binom.ppf(0.999, len(pairs), 1 - CONFIDENCE)


def test_resamples_without_a_value_are_left_out() -> None:
    """What only some blocks hold is judged by those resamples that drew it."""
    drawn = np.array([3.0, math.nan, 5.0])

    with_nan = paired_interval(4.0, 5.0, drawn, drawn + 1.0)

    assert with_nan == paired_interval(4.0, 5.0, drawn[[0, 2]], drawn[[0, 2]] + 1.0)
    assert not any(map(math.isnan, with_nan))


# -- repeats -----------------------------------------------------------------------------


@given(MEASURED, MEASURED)
def test_repeats_have_the_interval_of_welch(x: list[float], y: list[float]) -> None:
    """Two sides of repeats differ as in scipy's t test of unequal variances."""
    if min(np.std(x), np.std(y)) < 1e-3:
        return

    found = unpaired_interval(mean_of_runs(x), mean_of_runs(y))

    test = stats.ttest_ind(y, x, equal_var=False)
    assert found == pytest.approx(tuple(test.confidence_interval(CONFIDENCE)), rel=1e-6)


def test_one_exact_side_leaves_a_t_test_of_the_other() -> None:
    """Beside a simulated run, repeats differ as in scipy's t test of one sample."""
    y = [1.0, 1.2, 0.9, 1.4]
    exact = Mean(value=0.8, error=0.0, num_runs=None)

    low, high = unpaired_interval(exact, mean_of_runs(y))

    expected = stats.ttest_1samp(y, 0.8).confidence_interval(CONFIDENCE)
    assert (low + 0.8, high + 0.8) == pytest.approx(tuple(expected))
    assert unpaired_interval(mean_of_runs(y), exact) == pytest.approx((-high, -low))


def test_repeats_that_all_agree_have_no_width() -> None:
    """Without any variance the difference is taken for exact, not for unknown."""
    same = mean_of_runs([2.0, 2.0, 2.0])

    assert unpaired_interval(same, same) == (0.0, 0.0)
    assert unpaired_interval(same, mean_of_runs([3.0, 3.0])) == (1.0, 1.0)


def test_a_single_run_has_no_standard_error() -> None:
    """One measured run tells nothing of others: NaN, not 0."""
    single = mean_of_runs([3.0])

    assert math.isnan(single.error)
    assert (single.value, single.num_runs) == (3.0, 1)
