"""Tests for :mod:`results.comparison.metric`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from results.comparison.arm import ArmRun
from results.comparison.metric import METRICS, metric_named
from results.comparison.samples import RequestSamples

SECONDS = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
SAMPLES = RequestSamples(values={"ttft": SECONDS, "preemptions": SECONDS}, num_requests=5)


def value(name: str) -> float | None:
    """The figure of a metric over the samples above, with an empty summary."""
    metric = metric_named(name)
    assert metric is not None
    return metric.value({}, SAMPLES)


def test_names_are_found_again() -> None:
    """Every metric goes by its own name, and no two share one."""
    assert [metric_named(metric.name) for metric in METRICS] == list(METRICS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("name", ["ttft_p99.9", "queue_max", "e2e_p5", "tpot_p100"])
def test_any_percentile_of_a_request_can_be_asked_for(name: str) -> None:
    """It is a statistic over requests, named as it was asked for."""
    metric = metric_named(name)

    assert metric is not None
    assert (metric.name, f"{metric.sample}_{metric.statistic}") == (name, name)
    assert metric.is_latency


@pytest.mark.parametrize(
    "name", ["", "ttft", "ttft_p101", "ttft_p", "itl_p80", "p99", "speed_p99", "ttft_sum"]
)
def test_other_names_have_no_metric(name: str) -> None:
    """What is no percentile, or of gaps no statistic of a summary, is not found."""
    assert metric_named(name) is None


def test_statistics_leave_out_what_has_none() -> None:
    """NaN is no value, and a run without any values has no figure."""
    assert value("ttft_mean") == 2.5
    assert value("ttft_p50") == 2.5
    assert value("ttft_max") == 4.0
    assert value("preemptions") == 10.0
    assert value("tpot_mean") is None


def test_figures_of_a_run_lie_at_their_path() -> None:
    """What is missing, or null, or stands below a null, is None."""
    rate = metric_named("request_per_s")
    assert rate is not None

    assert rate.value({"throughput": {"request_per_s": 3}}, SAMPLES) == 3.0
    assert rate.value({"throughput": {"request_per_s": None}}, SAMPLES) is None
    assert rate.value({"throughput": None}, SAMPLES) is None
    assert rate.value({}, SAMPLES) is None


def test_paths_are_those_of_a_summary(make_run: Callable[..., ArmRun]) -> None:
    """Each figure of a whole run is a key of the document that a run writes."""
    for metric in METRICS:
        found: Any = make_run().summary
        for key in metric.path:
            assert isinstance(found, Mapping), metric.name
            assert key in found, metric.name
            found = found[key]


def test_requests_beyond_a_percentile_are_counted() -> None:
    """One in a hundred lies beyond p99, nothing but itself beyond the largest."""
    beyond = {
        name: found.num_beyond(200)
        for name in ("ttft_p99", "ttft_p90", "ttft_p5", "ttft_max", "ttft_mean")
        if (found := metric_named(name))
    }

    assert beyond == pytest.approx(
        {
            "ttft_p99": 2.0,
            "ttft_p90": 20.0,
            "ttft_p5": 10.0,
            "ttft_max": 1.0,
            "ttft_mean": 200,
        }
    )
