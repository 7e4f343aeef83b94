"""Tests for :mod:`harness.vllm_engine.server.metrics` and its histograms."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.vllm_engine.server.detect import policy_of
from harness.vllm_engine.server.histogram import Histogram
from harness.vllm_engine.server.metrics import Difference, Snapshot

V1 = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 50.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",\
engine="0",gpu_memory_utilization="0.92",num_cpu_blocks="None",num_gpu_blocks="500",\
sliding_window="None",user_specified="inf"} 1.0
process_start_time_seconds 1.79e+09
"""
V0 = """\
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.9
vllm:cpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.5
vllm:num_preemptions_total{model_name="m"} 11.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 3.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.05
"""


def snapshot(text: str, **how: Any) -> Snapshot:
    return Snapshot.of(text, 0, **how)


@pytest.mark.parametrize("brief", [False, True])
def test_names_of_v1(brief: bool) -> None:
    """Numbers of engines are added, shares averaged, and the newer name of one counts."""
    seen = snapshot(V1, brief=brief)

    assert seen.gauge("num_running") == 7
    assert seen.gauge("kv_cache_usage") == pytest.approx(0.6)
    assert seen.gauge("num_swapped") is None
    assert seen.counter("preemptions") == 5
    assert seen.counter("prefix_cache_hit_tokens") == 300
    assert seen.counter("finished_requests") == 9
    assert seen.counter("offload_load_bytes") is None


def test_names_of_v0() -> None:
    """A V0 server tells swapped requests and how full its CPU blocks are."""
    seen = snapshot(V0)

    assert seen.gauge("num_swapped") == 2
    assert seen.gauge("kv_cache_usage") == 0.9
    assert seen.gauge("cpu_cache_usage") == 0.25
    assert seen.counter("preemptions") == 11
    assert seen.counter("prefix_cache_hit_tokens") is None
    times = seen.histogram("itl_s")
    assert times is not None
    assert (times.num_values, times.mean) == (4, 0.0125)


def test_names_of_vllm_0_8() -> None:
    """Early V1 names its prefix counters after the GPU."""
    text = "vllm:gpu_prefix_cache_queries_total 40\nvllm:gpu_prefix_cache_hits_total 8\n"
    seen = snapshot(text)

    assert seen.counter("prefix_cache_query_tokens") == 40
    assert seen.counter("prefix_cache_hit_tokens") == 8


def test_hits_in_blocks_become_tokens() -> None:
    """What early V1 counts in blocks, as it says, is told in tokens."""
    name = "vllm:gpu_prefix_cache_hits"
    text = (
        f"# HELP {name}_total GPU prefix cache hits, in terms of number of cached %s.\n"
    )
    text += f"# TYPE {name}_total counter\n{name}_total 8\n"
    text += 'vllm:cache_config_info{block_size="32"} 1\n'

    assert snapshot(text % "blocks").counter("prefix_cache_hit_tokens") == 256
    assert snapshot(text % "tokens").counter("prefix_cache_hit_tokens") == 8


def test_a_share_below_nothing_is_nothing() -> None:
    """Some builds tell a negative usage, which no one can have."""
    assert snapshot("vllm:kv_cache_usage_perc -0.4\n").gauge("kv_cache_usage") == 0


def test_older_names_of_offloading() -> None:
    """Bytes that were counted by direction are told apart."""
    text = (
        'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"} 100\n'
        'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"} 30\n'
    )
    seen = snapshot(text)

    assert seen.counter("offload_load_bytes") == 100
    assert seen.counter("offload_store_bytes") == 30


def test_configuration_is_read() -> None:
    """Labels become what they were made from; what JSON has not stays a text."""
    (config,) = snapshot(V1).config_info()

    assert config["num_gpu_blocks"] == 500
    assert config["gpu_memory_utilization"] == 0.92
    assert config["enable_prefix_caching"] is True
    assert config["num_cpu_blocks"] is None
    assert config["user_specified"] == "inf"


def test_difference_of_counters() -> None:
    """Counters are told by how much they rose, ours and vLLM's own."""
    after = V1.replace("num_preemptions_total{engine", "num_preemptions_total{x").replace(
        "} 5.0", "} 9.0"
    )
    counters = Difference(snapshot(V1), snapshot(after)).counters()

    assert counters["preemptions"] == 4
    assert counters["prefix_cache_hit_tokens"] == 0
    assert counters["offload_load_bytes"] is None
    assert counters["raw"]["vllm:num_preemptions_total"] == 4


@pytest.mark.parametrize(
    "after",
    [
        V1.replace("} 1000.0", "} 10.0"),
        V1.replace("process_start_time_seconds 1.79e+09", "process_start_time_seconds 2"),
    ],
)
def test_restart_is_noticed(after: str) -> None:
    """After a restart counters say nothing, rather than something wrong."""
    difference = Difference(snapshot(V1), snapshot(after))

    assert difference.is_restarted
    assert difference.counter("preemptions") is None
    assert difference.counters()["raw"] == {}


@pytest.mark.parametrize(
    ("version", "text", "policy"),
    [
        ("0.32.0", "", "v1"),
        ("0.11.0rc1", "", "v1"),
        ("0.5.5", "", "v0"),
        ("0.9.2", V1, "v1"),
        ("0.9.2", V0, "v0"),
        (None, V0, "v0"),
        (None, "vllm:x 1\n", None),
        ("dev", V1, "v1"),
    ],
)
def test_which_engine_decides(version: str | None, text: str, policy: str) -> None:
    """Between 0.8 and 0.10 the metrics tell V0 from V1, elsewhere the version does."""
    assert policy_of(version, snapshot(text) if text else None) == policy


def test_what_is_no_text_of_metrics() -> None:
    """A page of something else is refused."""
    with pytest.raises(ValueError, match=r"."):
        snapshot("<html> </html>")
    assert not snapshot("python_info 1\n").has_vllm


BOUNDS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, math.inf]


def histogram(values: list[float]) -> Histogram:
    counts = [(bound, float(sum(v <= bound for v in values))) for bound in BOUNDS]
    return Histogram.of(counts, sum(values))


@given(
    st.lists(st.floats(0.5, 49), min_size=1, max_size=50), st.sampled_from([50, 90, 99])
)
def test_percentile_lies_in_its_bucket(values: list[float], percent: int) -> None:
    """A percentile lies within the bucket that holds it, and the mean is exact."""
    seen = histogram(values)
    true = float(np.percentile(values, percent, method="inverted_cdf"))
    bucket = next(i for i, bound in enumerate(BOUNDS) if true <= bound)
    low, high = seen.edges(bucket)
    told = seen.percentile(percent)

    assert told is not None
    assert low <= told <= high
    assert seen.mean == pytest.approx(np.mean(values))


def test_what_came_since() -> None:
    """Two looks give what came between them; without any there is no figure."""
    before, after = histogram([1, 3]), histogram([1, 3, 30, 40])
    between = after.less(before)

    assert between.num_values == 2
    assert between.mean == 35
    assert between.percentile(50) == 35
    assert between.percentile(100) == 50
    assert after.less(after).summary()["p99"] is None
    assert histogram([70.0]).percentile(50) == 50  # the last finite bound


def test_a_wide_bucket_is_filled_as_the_mean_tells() -> None:
    """Waits of microseconds in a bucket of 0.3 s have no median of 150 ms."""
    waits = Histogram.of([(0.3, 100.0), (math.inf, 100.0)], 100 * 2e-5)
    median, mean = waits.percentile(50), waits.mean

    assert median is not None
    assert median < 1e-3
    assert mean == pytest.approx(2e-5)
