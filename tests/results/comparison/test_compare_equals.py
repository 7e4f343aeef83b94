"""Equals are called equal, what differs is found: ``benchmarks/compare_equals.py``."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

sys.path.append(str(BENCHMARKS))
compare_equals: Any = importlib.import_module("compare_equals")

NUM_PAIRS = 150
MOST_FALSE = float(stats.binom.ppf(0.975, NUM_PAIRS, 0.05)) / NUM_PAIRS
"""What so few pairs may show of a share of 5 %; the seed is the script's."""


def test_waits_are_those_of_a_single_server() -> None:
    """Step by step, each request waits for those before it."""
    rng = np.random.default_rng(4)
    gaps, services = rng.exponential(1.0, 50), rng.exponential(0.9, 50)
    free_at, now, waited = 0.0, 0.0, []
    for gap, service in zip(gaps, services, strict=True):
        now += gap
        waited.append(max(0.0, free_at - now))
        free_at = max(now, free_at) + service

    assert compare_equals.waits(gaps, services) == pytest.approx(waited)
    assert max(waited) > 1


@pytest.mark.parametrize("num_requests", [200, 1000])
def test_equal_simulated_arms_are_called_equal(num_requests: int) -> None:
    """At a load of 60 %, no more than one in twenty finds a difference in TTFT."""
    pairs = compare_equals.simulated_pairs(NUM_PAIRS, load=0.6, num_requests=num_requests)

    assert compare_equals.share_judged(pairs, compare_equals.TTFT) <= MOST_FALSE


def test_equal_measured_arms_are_called_equal() -> None:
    """Of five repeats a side, no more than one in twenty finds any difference."""
    pairs = compare_equals.measured_pairs(NUM_PAIRS)

    assert len(compare_equals.OUTCOMES) > 12
    assert compare_equals.share_judged(pairs, compare_equals.OUTCOMES) <= MOST_FALSE


def test_what_is_a_tenth_faster_is_found() -> None:
    """Services that are 10 % shorter are told from equals, simulated or measured."""
    simulated = compare_equals.simulated_pairs(
        50, load=0.6, num_requests=1000, faster=0.1
    )
    measured = compare_equals.measured_pairs(50, faster=0.1)

    assert compare_equals.share_judged(simulated, compare_equals.TTFT) >= 0.95
    assert compare_equals.share_judged(measured, compare_equals.OUTCOMES) >= 0.95


def test_the_script_prints_a_table() -> None:
    """Each load and length has a row, and so have measured repeats."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "compare_equals.py", "3"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "load 0.9, 1,000 requests" in done.stdout
    assert "5 repeats a side" in done.stdout
