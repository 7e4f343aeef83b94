"""Tests for :mod:`results.comparison.verdict`."""

import pytest

from results.comparison.interval import Interval
from results.comparison.metric import Metric, metric_named
from results.comparison.verdict import (
    Evidence,
    MetricResult,
    Verdict,
    describe_change,
    judge,
    relative_to,
)

BETTER, WORSE, SAME = Verdict.BETTER, Verdict.WORSE, Verdict.SAME


def metric(name: str) -> Metric:
    """The metric of this name."""
    found = metric_named(name)
    assert found is not None
    return found


def said(
    name: str, base: float, value: float, interval: Interval | None = None
) -> Verdict:
    """The verdict on a change."""
    return judge(metric(name), base, value - base, interval)[0]


@pytest.mark.parametrize(
    ("name", "base", "value", "expected"),
    [
        ("prefill_tokens", 1000, 1011, WORSE),
        ("prefill_tokens", 1000, 1009, SAME),
        ("prefill_tokens", 1000, 989, BETTER),
        ("prefill_tokens", 1000, 991, SAME),
        ("output_token_per_s", 1000, 1011, BETTER),
        ("output_token_per_s", 1000, 989, WORSE),
    ],
)
def test_an_exact_figure_counts_from_one_percent(
    name: str, base: float, value: float, expected: Verdict
) -> None:
    """Less than 1 % is no difference; more is better or worse as the metric goes."""
    assert said(name, base, value) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1.04, SAME), (0.96, SAME), (1.06, WORSE), (0.94, BETTER)]
)
def test_a_latency_without_an_interval_counts_from_five_percent(
    value: float, expected: Verdict
) -> None:
    """Nothing tells chance from less, for gaps between tokens as for any latency."""
    assert said("itl_p99", 1.0, value) is expected
    assert said("ttft_mean", 1.0, value) is expected


def test_a_latency_with_an_interval_counts_from_one_percent() -> None:
    """What the interval supports is judged from 1 % on, and not below."""
    assert said("ttft_mean", 1.0, 1.02, (0.015, 0.025)) is WORSE
    assert said("ttft_mean", 1.0, 1.009, (0.008, 0.010)) is SAME


@pytest.mark.parametrize("interval", [(-0.1, 0.5), (0.0, 0.4), (-0.5, 0.0)])
def test_an_interval_with_zero_in_it_is_no_difference(interval: Interval) -> None:
    """However large the change, chance may have made it; the bounds count as inside."""
    middle = sum(interval) / 2

    assert said("ttft_mean", 1.0, 1.0 + middle, interval) is SAME
    assert said("goodput_fraction", 0.5, 0.5 + middle, interval) is SAME


def test_a_share_counts_from_half_a_point() -> None:
    """Points decide, not percents: 0.4 of 1 point is little, however much it grew."""
    assert said("goodput_fraction", 0.010, 0.014) is SAME
    assert said("goodput_fraction", 0.010, 0.016) is BETTER
    assert said("hit_rate", 0.900, 0.894) is WORSE
    assert said("peak_usage", 0.900, 0.894) is BETTER


def test_a_lost_request_always_counts() -> None:
    """One in a million that did not finish is worse, one more that did is better."""
    assert said("finished", 1e6, 1e6 - 1) is WORSE
    assert said("finished", 1e6, 1e6 + 1) is BETTER
    assert said("finished", 1e6, 1e6) is SAME


def test_what_was_not_there_before_counts() -> None:
    """From 0 anything is a difference; from 0 to 0 there is none."""
    assert said("preemptions", 0, 1) is WORSE
    assert said("hit_tokens", 0, 16) is BETTER
    assert said("preemptions", 0, 0) is SAME
    assert relative_to(0, 5) is None


def test_equal_figures_are_the_same_in_both() -> None:
    """An exact nothing is said so; a nothing with bounds says what chance may be."""
    ttft = metric("ttft_mean")

    assert judge(ttft, 2.0, 0.0, None) == (SAME, "the same in both")
    assert judge(ttft, 2.0, 0.0, (0.0, 0.0)) == (SAME, "the same in both")
    assert judge(ttft, 2.0, 0.0, (-0.4, 0.4)) == (
        SAME,
        "+0.0 %; below 20 % is chance here",
    )


def test_reasons_say_the_change() -> None:
    """Percents have three digits at most, shares are in points, and 0 has no percent."""
    assert judge(metric("ttft_mean"), 2.0, 0.1, (0.05, 0.15)) == (WORSE, "+5.0 %")
    assert judge(metric("ttft_mean"), 2.0, 0.01, (0.005, 0.015)) == (
        SAME,
        "+0.5 %, too little to count",
    )
    assert describe_change(metric("ttft_mean"), 2.0, -0.5) == "-25 %"
    assert describe_change(metric("hit_rate"), 0.2, 0.123) == "+12.3 points"
    assert describe_change(metric("preemptions"), 0.0, 1234.0) == "from 0 to 1,234"


def test_the_relative_change_is_of_the_baseline() -> None:
    """It has the difference's sign, and there is none where there is no difference."""
    result = MetricResult(
        metric=metric("ttft_mean"),
        values=(4.0, 3.0),
        difference=-1.0,
        interval=None,
        evidence=Evidence.EXACT,
        verdict=BETTER,
        reason="-25 %",
    )

    assert result.relative == -0.25
    assert relative_to(-4.0, 1.0) == 0.25
    assert relative_to(4.0, None) is None
