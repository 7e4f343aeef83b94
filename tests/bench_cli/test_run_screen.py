"""Tests for :mod:`bench_cli.run_screen`: the lines of a run, policy by policy."""

import io
from typing import Any

import pytest
from rich.console import Console

from bench_cli.console import Screen
from bench_cli.run_screen import print_run

GIB = 2**30
CONFIG: dict[str, Any] = {
    "policy": "v1",
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.32.0",
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.92,
    "block_size": 16,
    "num_cpu_blocks": 0,
    "swap_space": None,
    "kv_offloading_size": 0.0,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 8192,
    "async_scheduling": True,
    "scheduling_policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
    "sliding_window": None,
    "watermark": 0.0,
}
COUNTS: dict[str, Any] = {
    "finished": 4,
    "rejected": 0,
    "aborted": 0,
    "failed": 0,
    "preemptions": 0,
    "recompute_preemptions": 0,
    "swap_preemptions": None,
    "swap_out_blocks": None,
    "swap_in_blocks": None,
    "copy_on_write": None,
    "evictions": 0,
    "offload_store_blocks": None,
    "offload_load_blocks": None,
    "offload_store_bytes": None,
    "offload_load_bytes": None,
    "offload_evictions": None,
}
TIER = {
    "offload_store_blocks": 3072,
    "offload_load_blocks": 512,
    "offload_store_bytes": 6 * GIB,
    "offload_load_bytes": GIB,
    "offload_evictions": 2048,
}


def lines_of(
    config: dict[str, Any] | None = None,
    counts: dict[str, Any] | None = None,
    waste: dict[str, Any] | None = None,
    prefix: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Return the lines of a run by their labels, and the configuration's as config."""
    percentiles = dict.fromkeys(("p50", "p90", "p99"), 1.0)
    lost = {"recompute_time_share": 0.0, "swap_time_share": None}
    hits = {"query_tokens": 1000, "hit_rate": 0.5, "recompute_hit_tokens": 0}
    document = {
        "source": "simulated",
        "complete": True,
        "ending": "complete",
        "steady": None,
        "config": CONFIG | (config or {}),
        "trace": {
            "name": "chat",
            "format": "blockbench",
            "num_requests": 4,
            "num_skipped": 0,
            "duration_s": 1.0,
            "has_sharing": True,
            "notes": [],
        },
        "counts": COUNTS | (counts or {}),
        "prefix_cache": hits | {"offload_hit_tokens": None} | (prefix or {}),
        "latency_s": dict.fromkeys(("ttft", "tpot", "e2e"), percentiles),
        "throughput": {"request_per_s": 1.0, "output_token_per_s": 1.0},
        "goodput": None,
        "kv_cache": {
            "num_gpu_blocks": 7,
            "num_cpu_blocks": 1024,
            "block_size": 16,
            "peak_usage": 1.0,
            "mean_usage": 0.5,
            "mean_cached_idle": None,
            "peak_cpu_blocks": 1000,
        },
        "waste": lost | {"regretted_evictions": 0} | (waste or {}),
        "findings": [],
    }
    screen, out = Screen(), io.StringIO()
    screen.console = Console(file=out, width=300, highlight=False, markup=False)
    print_run(screen, document, [])
    _, knobs, *rest = out.getvalue().splitlines()
    facts = {line[:10].strip(): line[12:].strip() for line in rest if line.strip()}
    return facts | {"config": knobs.strip()}


def test_v1_says_nothing_of_swaps() -> None:
    """What it does not have takes no place on the screen."""
    assert lines_of()["pressure"] == "no preemptions"
    assert "offload" not in lines_of()


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1 preemption, recomputed"), (41, "41 preemptions, all recomputed")],
)
def test_v1_recomputes_all_that_it_preempts(number: int, words: str) -> None:
    """One number says it, and the time that went into it."""
    counts = {"preemptions": number, "recompute_preemptions": number}

    assert lines_of(counts=counts)["pressure"] == words
    lost = lines_of(counts=counts, waste={"recompute_time_share": 0.1})
    assert lost["pressure"] == f"{words} · 10 % of the time recomputing"


def test_tier_has_a_line() -> None:
    """What went there and came back, what it was good for, and how full it got."""
    lines = lines_of(counts=TIER, prefix={"offload_hit_tokens": 340})

    assert lines["offload"] == (
        "6.0 GiB stored, 1.0 GiB loaded · 34 % of prompt tokens from there · 1,000 of"
        " 1,024 CPU blocks used · 2,048 evictions"
    )


def test_tier_of_a_trace_without_sharing_has_no_hit_rate() -> None:
    """Hits are not known, and nothing is said of them."""
    unknown = {"query_tokens": None, "offload_hit_tokens": None}

    line = lines_of(counts=TIER | {"offload_evictions": 0}, prefix=unknown)["offload"]

    assert line == ("6.0 GiB stored, 1.0 GiB loaded · 1,000 of 1,024 CPU blocks used")


def test_waiting_for_stores_is_pressure() -> None:
    """It stands where swaps stand in v0."""
    hits = {"offload_hit_tokens": 0}
    lines = lines_of(counts=TIER, waste={"swap_time_share": 0.06}, prefix=hits)

    assert lines["pressure"] == (
        "no preemptions · 6.0 % of the time waiting for forced stores"
    )


def test_pool_counts_tokens_without_block_0() -> None:
    """6 of 7 blocks hold tokens in v1, and all of them in v0."""
    v0 = {"policy": "v0", "swap_space": 4.0}

    assert lines_of()["KV cache"].startswith("7 blocks (96 tokens)")
    moved = {"swap_preemptions": 0, "swap_out_blocks": 0, "swap_in_blocks": 0}
    old = lines_of(v0, moved | {"copy_on_write": 3})
    assert old["KV cache"].startswith("7 blocks (112 tokens)")
    assert old["pressure"] == "no preemptions · 3 copy-on-write"


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"async_scheduling": False}, "async scheduling off"),
        ({"scheduling_policy": "priority"}, "by priority"),
        ({"sliding_window": 4096}, "window of 4,096 tokens"),
        ({"watermark": 0.02}, "watermark 0.02"),
        ({"long_prefill_token_threshold": 2048}, "long prefills by 2,048 tokens"),
        ({"scheduler_reserve_full_isl": False}, "admits by first chunk"),
        ({"enable_chunked_prefill": False}, "whole prompts"),
        ({"kv_offloading_size": 8.0, "num_cpu_blocks": 4096}, "offloading 8 GiB"),
        ({"num_cpu_blocks": 4096}, "offloading 4,096 blocks"),
        ({"dtype": "float32"}, "float32"),
        ({"quantization": "awq"}, "weights in awq"),
        ({"kv_cache_dtype": "fp8"}, "KV cache in fp8"),
        ({"enforce_eager": True}, "no CUDA graphs"),
    ],
)
def test_knobs_stand_where_they_differ(knobs: dict[str, Any], words: str) -> None:
    """Each of them is named once it is other than the default, and not before."""
    assert words in lines_of(knobs)["config"].split(" · ")
    assert words not in lines_of()["config"].split(" · ")


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"dtype": None, "quantization": None, "kv_cache_dtype": None},
        {"dtype": "auto", "kv_cache_dtype": "auto", "enforce_eager": False},
    ],
)
def test_defaults_of_v1_take_no_place(types: dict[str, Any]) -> None:
    """Model, GPU, version, utilization, block size, caching and chunks are enough."""
    assert lines_of(types)["config"] == (
        "Llama-3.1-8B on H100-80GB, as vLLM 0.32.0 (v1) · utilization 0.92 · block 16 ·"
        " prefix caching on · chunks of 8,192 tokens"
    )
