"""Tests for :mod:`bench_cli.quantity`; most that it refuses is tested with ``run``."""

import math

import pytest

from bench_cli.quantity import (
    format_count,
    format_duration,
    format_share,
    format_thousands,
    parse_duration,
    parse_rate,
    parse_slice,
    parse_slo,
    parse_speedup,
)
from harness.errors import UsageError
from results.goodput import Condition, Slo


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("50ms", 0.05), ("1.5 min", 90), ("1h", 3600), ("7e2us", 7e-4)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    """A number and its unit, with or without a space, are seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("4", 4), ("4/s", 4), ("240/min", 4), ("0.5 / ms", 500), ("inf", math.inf)],
)
def test_rates_are_per_second(text: str, rate: float) -> None:
    """A rate without a unit is per second."""
    assert parse_rate(text) == pytest.approx(rate)


def test_speedups_and_slices_read_as_written() -> None:
    """The x of a factor and either end of a slice may be left out."""
    assert parse_speedup("2x") == parse_speedup("2") == 2
    assert parse_slice(":50") == slice(None, 50)
    assert parse_slice("100:") == slice(100, None)


def test_limits_may_come_in_any_order() -> None:
    """Each limit is set once, the others stay open."""
    assert parse_slo("tpot=50ms, ttft=2s") == Slo(ttft_s=2.0, tpot_s=0.05)


def test_limits_of_the_whole_run_stand_beside_those_of_requests() -> None:
    """A metric with a statistic behind it is a condition, and they keep their order."""
    slo = parse_slo("ttft_p99=5s, ttft=2s ,e2e_mean = 1min,itl_p99.9=500ms")

    assert list(slo.limits()) == [("ttft_s", 2.0)]
    assert slo.conditions == (
        Condition(metric="ttft", statistic="p99", limit_s=5.0),
        Condition(metric="e2e", statistic="mean", limit_s=60.0),
        Condition(metric="itl", statistic="p99.9", limit_s=0.5),
    )


def test_a_whole_run_may_be_all_that_is_limited() -> None:
    """Conditions need no limit of single requests beside them."""
    slo = parse_slo("queue_max=3s")

    assert list(slo.limits()) == []
    assert slo.to_dict() == {"queue_max_s": 3.0}


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2e", "queue"])
@pytest.mark.parametrize(
    "statistic", ["mean", "max", "p0", "p5", "p50", "p99", "p99.9", "p99.99", "p100"]
)
def test_every_metric_has_every_statistic(metric: str, statistic: str) -> None:
    """Mean, maximum and any percentile of any latency can be limited."""
    (condition,) = parse_slo(f"{metric}_{statistic}=1s").conditions

    assert (condition.metric, condition.statistic) == (metric, statistic)
    assert condition.name == f"{metric}_{statistic}"


@pytest.mark.parametrize(
    "text",
    [
        "queue=1s",
        "ttft_p=1s",
        "ttft_p101=1s",
        "ttft_p100.1=1s",
        "ttft_p999=1s",
        "ttft_p99.=1s",
        "ttft_p-1=1s",
        "ttft_median=1s",
        "ttft_p99_s=1s",
        "ttft_=1s",
        "p99=1s",
        "TTFT_p99=1s",
        "ttft_p99",
        "ttft_p99=1s,",
        "",
    ],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    """A name that is no latency or no statistic of one is refused with an example."""
    with pytest.raises(UsageError, match="--slo cannot read.*ttft=2s,tpot=50ms,ttft_p99"):
        parse_slo(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p99=1s,ttft_p99=2s", "names ttft_p99 twice"),
        ("ttft_p99=0s", "'ttft_p99=0s' can never be met"),
        ("ttft_p99=5", "no unit"),
        ("ttft_p99=", "not a number"),
    ],
)
def test_conditions_are_read_as_limits_are(text: str, words: str) -> None:
    """A condition has one limit, above 0, with a unit."""
    with pytest.raises(UsageError, match=words):
        parse_slo(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "n/a"),
        (0, "0 s"),
        (0.0000123, "12 us"),
        (0.0009996, "1.0 ms"),
        (0.0312, "31 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (3537, "58 min 57 s"),
        (3599.7, "1 h 0 min"),
    ],
)
def test_durations_print_in_the_unit_that_fits(seconds: float | None, shown: str) -> None:
    """Rounding never prints 1000 of a unit or 60 s."""
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "n/a"), (0, "0 %"), (0.0012, "0.1 %"), (0.712, "71 %"), (0.998, "99.8 %")],
)
def test_shares_near_the_ends_keep_a_digit(share: float | None, shown: str) -> None:
    """Almost nothing and almost all do not look like nothing and all."""
    assert format_share(share) == shown


def test_counts_are_grouped() -> None:
    """Thousands are told apart; what does not apply is no number."""
    assert format_count(12031) == "12,031"
    assert format_count(3.41) == "3.4"
    assert format_count(None) == "n/a"
    assert [format_thousands(n) for n in (812, 1600, 429_488)] == ["812", "1.6k", "429k"]
