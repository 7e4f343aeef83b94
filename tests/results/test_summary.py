"""Tests for :mod:`results.summary`."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from results.findings import Finding
from results.goodput import Slo
from results.record import RequestRecord, RequestStatus, StepRecord
from results.summary import RunInfo, summarize

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

LATENCY = {"mean", "p50", "p90", "p95", "p99", "max"}
KEYS: dict[str, set[str]] = {
    "trace": {
        "name",
        "format",
        "num_requests",
        "num_skipped",
        "duration_s",
        "has_sharing",
    },
    "counts": {
        "finished",
        "rejected",
        "aborted",
        "failed",
        "preemptions",
        "recompute_preemptions",
        "swap_preemptions",
        "swap_out_blocks",
        "swap_in_blocks",
        "copy_on_write",
        "evictions",
        "offload_store_blocks",
        "offload_load_blocks",
        "steps",
    },
    "prefix_cache": {"query_tokens", "hit_tokens", "hit_rate", "recompute_hit_tokens"},
    "latency_s": {"ttft", "tpot", "itl", "e2e", "queue"},
    "throughput": {"request_per_s", "output_token_per_s", "total_token_per_s"},
    "goodput": {"slo", "request_per_s", "fraction"},
    "kv_cache": {
        "num_gpu_blocks",
        "num_cpu_blocks",
        "block_size",
        "peak_usage",
        "mean_usage",
        "fragmentation",
    },
}
TOP = {"schema_version", "kind", "source", "engine", "policy", "complete", "config"}
TOP |= {*KEYS, "findings", "simulated_s", "wall_s"}

INFO = RunInfo(
    source="simulated",
    engine="sim",
    policy="v0",
    complete=True,
    config={
        "num_gpu_blocks": 10,
        "num_cpu_blocks": 5,
        "block_size": 16,
        "enable_prefix_caching": True,
    },
    trace=dict.fromkeys(KEYS["trace"]) | {"has_sharing": True},
    wall_s=0.5,
)
UNSHARED = replace(INFO, trace={**INFO.trace, "has_sharing": False})
UNCACHED = replace(INFO, config={**INFO.config, "enable_prefix_caching": False})


def test_document_has_the_keys_that_scripts_rely_on(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Every key of the published document is there, and the document is strict JSON."""
    finding = Finding(code="a", severity="info", message="b", advice="c")
    document = summarize(INFO, [make_request()], [make_step()], [finding], Slo(e2e_s=5))

    assert set(document) - {"workload"} == TOP
    assert {name: set(document[name]) for name in KEYS} == KEYS
    assert all(set(document["latency_s"][m]) == LATENCY for m in KEYS["latency_s"])
    assert set(document["findings"][0]) == {"code", "severity", "message", "advice"}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_throughput_runs_from_first_arrival_to_last_finish(
    make_request: MakeRequest,
) -> None:
    """Two requests of 100 + 5 tokens between 1 s and 6 s."""
    requests = [
        make_request(arrival_ns=1_000_000_000),
        make_request(arrival_ns=2_000_000_000, finished_ns=6_000_000_000),
    ]

    document = summarize(INFO, requests, [])

    assert document["simulated_s"] == 5.0
    assert document["throughput"] == {
        "request_per_s": 2 / 5,
        "output_token_per_s": 10 / 5,
        "total_token_per_s": 210 / 5,
    }


def test_counts_add_up(make_request: MakeRequest, make_step: MakeStep) -> None:
    """Preemptions are the sum of both kinds; steps count every step of a stretch."""
    requests = [make_request(), make_request(status=RequestStatus.REJECTED)]
    steps = [
        make_step(num_steps=7, num_preempted_recompute=2, num_swap_out_blocks=3),
        make_step(num_preempted_swap=1, num_copy_on_write=4, num_evictions=6),
    ]

    counts = summarize(INFO, requests, steps)["counts"]

    assert counts["finished"] == counts["rejected"] == 1
    assert counts["preemptions"] == 3
    assert counts["swap_preemptions"] == 1
    assert counts["swap_out_blocks"] == 3
    assert counts["copy_on_write"] == 4
    assert counts["evictions"] == 6
    assert counts["steps"] == 8


def test_what_does_not_apply_is_null(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Without caching, offload or SLO there is no figure for them, not a 0."""
    document = summarize(UNCACHED, [make_request()], [make_step()])

    assert set(document["prefix_cache"].values()) == {None}
    assert document["counts"]["evictions"] is None
    assert document["counts"]["offload_store_blocks"] is None
    assert document["goodput"] is None


def test_trace_that_says_nothing_of_sharing_has_no_hits(
    make_request: MakeRequest,
) -> None:
    """Without sharing information hits are unknown, not 0, though caching is on."""
    prefix = summarize(UNSHARED, [make_request()], [])["prefix_cache"]

    assert set(prefix.values()) == {None}


def test_hits_count_at_first_admission_only(make_request: MakeRequest) -> None:
    """Hits after a preemption stand apart; a request never admitted asked nothing."""
    requests = [
        make_request(num_cached_tokens=25, num_recompute_cached_tokens=60),
        make_request(first_scheduled_ns=None, status=RequestStatus.REJECTED),
    ]

    prefix = summarize(INFO, requests, [])["prefix_cache"]

    assert prefix == {
        "query_tokens": 100,
        "hit_tokens": 25,
        "hit_rate": 0.25,
        "recompute_hit_tokens": 60,
    }


def test_goodput_is_a_share_of_all_requests(make_request: MakeRequest) -> None:
    """A request that was refused is outside the SLO."""
    requests = [make_request(), make_request(status=RequestStatus.REJECTED)]

    goodput: dict[str, Any] = summarize(INFO, requests, [], slo=Slo(ttft_s=2))["goodput"]

    assert goodput == {"slo": {"ttft_s": 2}, "request_per_s": 0.25, "fraction": 0.5}


def test_an_empty_run_has_a_summary() -> None:
    """A run stopped before its first step still gives strict JSON."""
    document = summarize(INFO, [], [])

    assert document["throughput"]["request_per_s"] is None
    assert document["kv_cache"]["peak_usage"] is None
    json.dumps(document, allow_nan=False)


def test_an_unfinished_run_lasts_to_its_last_step(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Where nothing finished, simulated time ends with the last step."""
    failed = make_request(status=RequestStatus.FAILED, finished_ns=None)

    document = summarize(INFO, [failed], [make_step(end_ns=3_000_000_000)])

    assert document["simulated_s"] == 3.0
    assert document["throughput"]["request_per_s"] == pytest.approx(0)


def test_what_json_cannot_hold_is_found_before_the_run() -> None:
    """Facts that strict JSON lacks fail where they are stated, not when saved."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(INFO, workload={"burstiness": float("inf")})
