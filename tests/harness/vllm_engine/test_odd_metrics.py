"""Metrics that no vLLM writes, and some proxy may: none of them is a traceback."""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_cli.observe_screen import observation_document, print_observation
from harness.errors import ConfigError
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    Difference,
    Snapshot,
)
from harness.vllm_engine.server.observation import Observation
from harness.vllm_engine.server.observed_workload import MOST_REQUESTS, workload_rows
from harness.vllm_engine.server.rows import StepRows

SERVER = Server(
    model="m", served=("m",), config={"num_gpu_blocks": 100, "block_size": 16}
)
TTFT = "vllm:time_to_first_token_seconds"


def snapshot(*lines: str) -> Snapshot:
    return Snapshot.of("\n".join(lines) + "\n", 0)


def names() -> list[str]:
    """Every series that is read."""
    plain = [n for of in (GAUGES, COUNTERS) for names in of.values() for n in names]
    parts = ("_bucket", "_sum", "_count")
    return plain + [n + p for names in HISTOGRAMS.values() for n in names for p in parts]


VALUES = st.one_of(
    st.sampled_from(["0", "1", "7", "0.5", "-3", "NaN", "+Inf", "-Inf", "1e300"]),
    st.integers(0, 2**64).map(str),
)
BOUNDS = st.sampled_from(["0.1", "1", "1.0", "20", "+Inf", "x", "", "NaN", "-5", "1e300"])
SERIES = st.tuples(
    st.sampled_from(names()),
    st.dictionaries(st.sampled_from(["engine", "model_name"]), st.sampled_from("01")),
    st.one_of(st.none(), BOUNDS),
    VALUES,
)
CONFIG = st.sampled_from(["16", "0", "-1", "auto", "None", "1e99", "0.5"]).map(
    'vllm:cache_config_info{{block_size="{}",num_gpu_blocks="9"}} 1'.format
)


def line(name: str, labels: dict[str, str], bound: str | None, value: str) -> str:
    if bound is not None:
        labels = labels | {"le": bound}
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}"


LOOK = st.lists(SERIES, max_size=25).map(lambda rows: [line(*row) for row in rows])


@given(st.lists(LOOK, min_size=2, max_size=4), CONFIG)
@settings(max_examples=100, deadline=None)
def test_whatever_is_told_is_watched_to_the_end(
    looks: list[list[str]], config: str
) -> None:
    """Gauges, counters, buckets and bounds of any kind: a document in strict JSON."""
    seen, steps = Observation(SERVER), StepRows(lambda ns: ns, 99)
    for number, lines in enumerate(looks):
        told = Snapshot.of("\n".join([config, *lines, ""]), number * 10**9)
        seen.take(told)
        steps.look(told.time_ns, told)
    if seen.arrivals().sum() < 10_000 or seen.arrivals().sum() > MOST_REQUESTS:
        with suppress(ConfigError):
            assert all(row["prompt"][0][1] > 0 for row in workload_rows(seen)[1:])
    document = observation_document(seen, "http://h:1")

    assert json.dumps(document, allow_nan=False)
    print_observation(document)
    assert steps.rows.column("num_used_blocks").max(initial=0) <= 99
    both = Difference(seen.stretches[-1].before, seen.stretches[-1].after)
    assert json.dumps(both.counters(), allow_nan=False)


@pytest.mark.parametrize("bound", ["x", "", "NaN", "-1", "1e999999x"])
def test_a_bucket_without_a_bound_is_left_out(bound: str) -> None:
    """What the other buckets say stays: they count all below their own bound."""
    seen = snapshot(
        f'{TTFT}_bucket{{le="{bound}"}} 1',
        f"{TTFT}_bucket 1",
        f'{TTFT}_bucket{{le="0.5"}} 3',
        f'{TTFT}_bucket{{le="+Inf"}} 4',
        f"{TTFT}_sum 2",
    ).histogram("ttft_s")

    assert seen is not None
    assert (seen.bounds, seen.counts) == ((0.5, math.inf), (3, 1))


def test_a_histogram_without_a_sum_is_none() -> None:
    """A mean of 0 would be a lie; ``_count`` is not needed."""
    bucket = f'{TTFT}_bucket{{le="+Inf"}} 4'

    assert snapshot(bucket).histogram("ttft_s") is None
    assert snapshot(bucket, f"{TTFT}_sum 2").histogram("ttft_s") is not None


def test_engines_with_other_bounds_never_count_backwards() -> None:
    """No bucket of their sum holds less than nothing."""
    seen = snapshot(
        f'{TTFT}_bucket{{engine="0",le="1"}} 5',
        f'{TTFT}_bucket{{engine="0",le="10"}} 6',
        f'{TTFT}_bucket{{engine="1",le="2"}} 3',
        f'{TTFT}_bucket{{engine="1",le="10"}} 4',
        f"{TTFT}_sum 9",
    ).histogram("ttft_s")

    assert seen is not None
    assert seen.counts == (5, 0, 5)


def test_series_of_engines_and_models_are_added() -> None:
    """By whatever label they differ; a number that is none counts for nothing."""
    name = "vllm:prompt_tokens_total"
    seen = snapshot(
        f'{name}{{engine="0",model_name="a"}} 5',
        f'{name}{{engine="1",model_name="a"}} 6',
        f'{name}{{engine="0",model_name="b"}} 7',
        f'{name}{{engine="0",model_name="c"}} NaN',
        'vllm:num_requests_running{engine="0"} +Inf',
        'vllm:num_requests_running{engine="1"} 2',
    )

    assert seen.counter("prompt_tokens") == 18
    assert seen.gauge("num_running") == 2


def test_blocks_of_no_size_count_as_they_are() -> None:
    """Hits in blocks cannot become tokens where the size of a block is not told."""
    name = "vllm:gpu_prefix_cache_hits"
    seen = snapshot(
        f"# HELP {name}_total In terms of number of cached blocks.",
        f"# TYPE {name}_total counter",
        f"{name}_total 8",
        'vllm:cache_config_info{block_size="auto"} 1',
    )

    assert seen.counter("prefix_cache_hit_tokens") == 8
