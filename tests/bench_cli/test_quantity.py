"""Tests for :mod:`bench_cli.quantity`; what it refuses is tested with ``run``."""

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
from results.goodput import Slo


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
