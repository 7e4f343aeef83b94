"""Tests for :mod:`results.summary`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from results.columns import Columns
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome, RunInfo
from results.summary import run_duration_s, summarize
from results.table import rows_frame

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]

S = 1_000_000_000
TENTH = S // 10
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
        "offload_store_bytes",
        "offload_load_bytes",
        "offload_evictions",
        "prefill_tokens",
        "steps",
    },
    "prefix_cache": {
        "query_tokens",
        "hit_tokens",
        "gpu_hit_tokens",
        "offload_hit_tokens",
        "hit_rate",
        "recompute_hit_tokens",
    },
    "latency_s": {"ttft", "tpot", "itl", "e2e", "queue"},
    "throughput": {"request_per_s", "output_token_per_s", "total_token_per_s"},
    "goodput": {"slo", "request_per_s", "fraction", "conditions"},
    "kv_cache": {
        "num_gpu_blocks",
        "num_cpu_blocks",
        "block_size",
        "peak_usage",
        "mean_usage",
        "peak_cached_idle",
        "mean_cached_idle",
        "fragmentation",
        "peak_cpu_blocks",
    },
    "waste": {
        "recomputed_tokens",
        "recompute_time_share",
        "swap_time_share",
        "forced_stores",
        "regretted_evictions",
        "head_of_line_s",
        "head_of_line_requests",
    },
}
TOP = {"schema_version", "kind", "source", "engine", "policy", "complete", "config"}
TOP |= {*KEYS, "steady", "findings", "simulated_s", "wall_s", "measurement"}

CACHED: dict[str, Any] = {"enable_prefix_caching": True}
NEVER_RAN: dict[str, Any] = {"first_scheduled_ns": None, "first_token_ns": None}


def document_of(
    info: RunInfo,
    requests: Sequence[RequestRecord] = (),
    steps: Sequence[StepRecord] = (),
) -> dict[str, Any]:
    """Return the summary of these rows."""
    return summarize(
        info, Columns.of(RequestRecord, requests), Columns.of(StepRecord, steps)
    )


# -- the document --------------------------------------------------------------------


def test_document_has_the_keys_that_scripts_rely_on(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Every key of the published document is there, and the document is strict JSON."""
    cut = make_request(num_requested_tokens=9)
    info = make_info(slo={"e2e_s": 5.0, "ttft_p99_s": 1.0})

    document = document_of(info, [cut], [make_step()])

    assert set(document) == TOP
    assert (document["schema_version"], document["kind"]) == (1, "run")
    assert {name: set(document[name]) for name in KEYS} == KEYS
    assert all(set(document["latency_s"][m]) == LATENCY for m in KEYS["latency_s"])
    assert document["findings"]
    finding_keys = {"code", "severity", "message", "advice"}
    assert all(set(finding) == finding_keys for finding in document["findings"])
    (condition,) = document["goodput"]["conditions"]
    assert set(condition) == {"name", "limit_s", "value_s", "met"}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


@pytest.mark.parametrize("caching", [False, True])
def test_a_stored_run_has_the_document_of_the_run(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo, caching: bool
) -> None:
    """Frames give the figures that records gave, to the last bit."""
    requests = [
        make_request(
            request_id=k,
            arrival_ns=k**2 * S // 7,
            first_scheduled_ns=k**2 * S // 7 + k * S // 3 if k % 5 else None,
            first_token_ns=k**2 * S // 7 + k * S // 3 + S // 11 if k % 5 else None,
            finished_ns=k**2 * S // 7 + k * S if k % 7 else None,
            num_cached_tokens=k,
            max_sample_tokens=1 + k % 4,
            num_shared_tokens=k if k % 2 else None,
            status=RequestStatus.FINISHED if k % 5 and k % 7 else RequestStatus.ABORTED,
            reason="" if k % 5 else "no_cpu_blocks",
        )
        for k in range(40)
    ]
    steps = [
        make_step(
            start_ns=k * S // 3,
            end_ns=(k + 1) * S // 3 - k * S // 97,
            num_steps=1 + k % 3,
            first_step_ns=S // 13 + k,
            last_step_ns=S // 11 + 7 * k,
            swap_ns=S // 19,
            num_prefill_tokens=k % 5,
            num_recomputed_tokens=k % 2,
            num_used_blocks=k % 9,
            num_used_blocks_end=k % 9 + 1,
            num_cached_blocks_end=k % 3,
            num_head_blocks=k % 2,
            num_room_blocks=k % 11,
            gap_ns=[S // 17 + k] * (k % 3),
            gap_count=[k % 7] * (k % 3),
        )
        for k in range(50)
    ]
    slo = {"ttft_s": 1.5, "itl_p99.9_s": 0.05, "queue_mean_s": 1.0}
    info = make_info(
        slo=slo,
        config={"enable_prefix_caching": caching},
        trace={"num_requests": len(requests)},
    )

    stored = summarize(
        info,
        Columns(rows_frame(RequestRecord, list(map(asdict, requests))), len(requests)),
        Columns(rows_frame(StepRecord, list(map(asdict, steps))), len(steps)),
    )

    assert json.dumps(stored) == json.dumps(document_of(info, requests, steps))


def test_what_does_not_apply_is_null(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Without caching, offload or SLO there is no figure for them, not a 0."""
    document = document_of(make_info(), [make_request()], [make_step()])

    assert set(document["prefix_cache"].values()) == {None}
    assert document["counts"]["evictions"] is None
    assert document["counts"]["offload_store_blocks"] is None
    assert document["waste"]["regretted_evictions"] is None
    assert document["kv_cache"]["peak_cached_idle"] is None
    assert document["kv_cache"]["mean_cached_idle"] is None
    assert document["goodput"] is None


def test_measured_time_is_not_simulated(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """A run on a real engine has no simulated time."""
    document = document_of(make_info(source="measured"), [make_request()])

    assert document["simulated_s"] is None
    assert document["wall_s"] == 0.5


# -- counts and rates ----------------------------------------------------------------


def test_throughput_runs_from_first_arrival_to_last_finish(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """Two requests of 100 + 5 tokens between 1 s and 6 s."""
    requests = [
        make_request(arrival_ns=1 * S),
        make_request(arrival_ns=2 * S, finished_ns=6 * S),
    ]

    document = document_of(make_info(), requests)

    assert document["simulated_s"] == 5.0
    assert document["throughput"] == {
        "request_per_s": 2 / 5,
        "output_token_per_s": 10 / 5,
        "total_token_per_s": 210 / 5,
    }


def test_a_run_of_half_a_second_has_rates(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """One request and 5 tokens in half a second are 2 requests and 10 tokens a second."""
    document = document_of(make_info(), [make_request(finished_ns=S // 2)])

    assert document["throughput"]["request_per_s"] == 2.0
    assert document["throughput"]["output_token_per_s"] == 10.0


def test_counts_add_up(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Preemptions are the sum of both kinds; steps count every step of a stretch."""
    requests = [make_request(), make_request(status=RequestStatus.REJECTED)]
    steps = [
        make_step(num_steps=7, num_preempted_recompute=2, num_swap_out_blocks=3),
        make_step(num_preempted_swap=1, num_copy_on_write=4, num_evictions=6),
    ]
    info = make_info(config=CACHED, trace={"num_requests": 2})

    counts = document_of(info, requests, steps)["counts"]

    assert counts["finished"] == counts["rejected"] == 1
    assert counts["failed"] == counts["aborted"] == 0
    assert counts["preemptions"] == 3
    assert counts["recompute_preemptions"] == 2
    assert counts["swap_preemptions"] == 1
    assert counts["swap_out_blocks"] == 3
    assert counts["swap_in_blocks"] == 0
    assert counts["copy_on_write"] == 4
    assert counts["evictions"] == 6
    assert counts["steps"] == 8


def test_requests_without_a_row_have_failed(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """Of 7 requests a killed run had come to 3: the other 4 count as failed, too."""
    requests = [
        make_request(),
        make_request(status=RequestStatus.ABORTED),
        make_request(status=RequestStatus.FAILED, finished_ns=None),
    ]
    info = make_info(
        trace={"num_requests": 7},
        outcome=Outcome(ending=Ending.KILLED),
        slo={"ttft_s": 2.0},
    )

    document = document_of(info, requests)

    counts = document["counts"]
    assert (counts["finished"], counts["aborted"], counts["failed"]) == (1, 1, 5)
    assert sum(counts[status] for status in RequestStatus) == 7
    assert document["goodput"]["fraction"] == 1 / 7


def test_trace_that_says_nothing_of_sharing_has_no_hits(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """Without sharing information hits are unknown, not 0, though caching is on."""
    info = make_info(config=CACHED, trace={"has_sharing": False})

    prefix = document_of(info, [make_request()])["prefix_cache"]

    assert set(prefix.values()) == {None}


def test_hits_count_at_first_admission_only(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """Hits after a preemption stand apart; a request never admitted asked nothing."""
    requests = [
        make_request(num_cached_tokens=25, num_recompute_cached_tokens=60),
        make_request(first_scheduled_ns=None, status=RequestStatus.REJECTED),
    ]

    prefix = document_of(make_info(config=CACHED), requests)["prefix_cache"]

    assert prefix == {
        "query_tokens": 100,
        "hit_tokens": 25,
        "gpu_hit_tokens": 25,
        "offload_hit_tokens": None,
        "hit_rate": 0.25,
        "recompute_hit_tokens": 60,
    }


def test_goodput_is_a_share_of_all_requests(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """A request that was refused is outside the SLO."""
    requests = [make_request(), make_request(status=RequestStatus.REJECTED)]
    info = make_info(trace={"num_requests": 2}, slo={"ttft_s": 2})

    goodput = document_of(info, requests)["goodput"]

    assert goodput == {
        "slo": {"ttft_s": 2},
        "request_per_s": 0.25,
        "fraction": 0.5,
        "conditions": [],
    }


def test_goodput_holds_what_became_of_conditions(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """With conditions alone, all that finished is inside and the run is judged apart."""
    requests = [make_request(), make_request(status=RequestStatus.REJECTED)]
    info = make_info(trace={"num_requests": 2}, slo={"ttft_p99.9_s": 1.5})

    goodput = document_of(info, requests)["goodput"]

    assert goodput == {
        "slo": {"ttft_p99.9_s": 1.5},
        "request_per_s": 0.25,
        "fraction": 0.5,
        "conditions": [
            {"name": "ttft_p99.9", "limit_s": 1.5, "value_s": 2.0, "met": False}
        ],
    }


def test_waste_adds_up_what_was_lost(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Half of 0.4 s was recomputed, 0.1 of 0.8 s swapped; one of two waited 0.4 s."""
    requests = [
        make_request(num_prompt_tokens=80, first_scheduled_ns=S),
        make_request(num_prompt_tokens=81, first_scheduled_ns=S),
    ]
    steps = [
        make_step(
            end_ns=4 * TENTH,
            num_prefill_tokens=8,
            num_recomputed_tokens=4,
            num_decode_seqs=0,
            num_head_blocks=8,
            num_room_blocks=5,
            num_regretted_evictions=3,
        ),
        make_step(
            start_ns=4 * TENTH,
            end_ns=8 * TENTH,
            swap_ns=TENTH,
            num_regretted_evictions=2,
        ),
    ]

    waste = document_of(make_info(config=CACHED), requests, steps)["waste"]

    assert waste == {
        "recomputed_tokens": 4,
        "recompute_time_share": 0.25,
        "swap_time_share": 0.125,
        "forced_stores": None,
        "regretted_evictions": 5,
        "head_of_line_s": 0.4,
        "head_of_line_requests": 1,
    }


# -- policy v1 -----------------------------------------------------------------------


@pytest.mark.parametrize("num_cpu_blocks", [0, 5])
def test_what_v1_does_not_have_is_null(
    make_step: MakeStep, make_info: MakeInfo, num_cpu_blocks: int
) -> None:
    """v1 neither swaps nor copies on write; the tier's figures are for v1 alone."""
    config = {"num_cpu_blocks": num_cpu_blocks}

    v0 = document_of(make_info(config=config), steps=[make_step()])
    v1 = document_of(make_info(config=config, policy="v1"), steps=[make_step()])

    swaps = {"swap_preemptions", "swap_out_blocks", "swap_in_blocks", "copy_on_write"}
    tier = {name for name in v1["counts"] if name.startswith("offload_")}
    assert {v1["counts"][name] for name in swaps} == {None}
    assert {v0["counts"][name] for name in swaps} == {0}
    assert {v0["counts"][name] for name in tier} == {None}
    assert {v1["counts"][name] is None for name in tier} == {num_cpu_blocks == 0}
    assert v0["waste"]["forced_stores"] is None
    assert (v1["waste"]["forced_stores"] is None) == (num_cpu_blocks == 0)
    assert (v1["waste"]["swap_time_share"] is None) == (num_cpu_blocks == 0)
    assert (v1["kv_cache"]["peak_cpu_blocks"] is None) == (num_cpu_blocks == 0)


def test_tier_is_counted_in_blocks_and_bytes_of_all_gpus(
    make_step: MakeStep, make_info: MakeInfo
) -> None:
    """7 blocks stored of which 4 are left: 3 evictions; 2 MiB a block on two GPUs."""
    steps = [
        make_step(num_offload_store_blocks=5, num_used_cpu_blocks=5),
        make_step(
            num_offload_store_blocks=2,
            num_offload_load_blocks=3,
            num_forced_stores=1,
            num_used_cpu_blocks=4,
        ),
    ]

    document = document_of(
        make_info(config={"tensor_parallel_size": 2}, policy="v1"), steps=steps
    )

    counts = document["counts"]
    assert {
        name: counts[f"offload_{name}"] for name in ("store_blocks", "load_blocks")
    } == {
        "store_blocks": 7,
        "load_blocks": 3,
    }
    assert (counts["offload_store_bytes"], counts["offload_load_bytes"]) == (
        14 * 2**20,
        6 * 2**20,
    )
    assert counts["offload_evictions"] == 3
    assert document["waste"]["forced_stores"] == 1
    assert document["kv_cache"]["peak_cpu_blocks"] == 5


def test_hits_are_split_by_tier(make_request: MakeRequest, make_info: MakeInfo) -> None:
    """Of 60 tokens found 40 came from the tier, so 20 from the GPU's blocks."""
    info = make_info(config=CACHED, policy="v1")
    request = make_request(num_cached_tokens=60, num_offload_cached_tokens=40)

    prefix = document_of(info, [request])["prefix_cache"]

    assert prefix["hit_tokens"] == 60
    assert prefix["gpu_hit_tokens"] == 20
    assert prefix["offload_hit_tokens"] == 40


def test_usage_of_v1_leaves_out_block_0(make_step: MakeStep, make_info: MakeInfo) -> None:
    """9 of 10 blocks are all that sequences can hold."""
    step = make_step(num_used_blocks=9, num_used_blocks_end=9)

    v1 = document_of(make_info(policy="v1"), steps=[step])["kv_cache"]
    v0 = document_of(make_info(), steps=[step])["kv_cache"]

    assert (v1["peak_usage"], v1["mean_usage"]) == (1.0, 1.0)
    assert v0["peak_usage"] == 0.9
    assert v1["num_gpu_blocks"] == 10


# -- runs that are not whole ---------------------------------------------------------


@pytest.mark.parametrize("slo", [None, {}, {"ttft_s": 1.0, "itl_max_s": 1.0}])
@pytest.mark.parametrize("num_requests", [0, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_an_empty_run_has_a_summary(
    make_info: MakeInfo, slo: dict[str, float] | None, num_requests: int, caching: bool
) -> None:
    """A run stopped before its first step still gives strict JSON."""
    info = make_info(
        slo=slo,
        config={"enable_prefix_caching": caching},
        trace={"num_requests": num_requests},
    )

    document = document_of(info)

    assert document["throughput"]["request_per_s"] is None
    assert document["kv_cache"]["peak_usage"] is None
    assert document["latency_s"]["itl"] == dict.fromkeys(LATENCY)
    assert document["counts"]["failed"] == num_requests
    assert document["simulated_s"] == 0.0
    assert document["steady"] is None
    if slo is not None:
        fraction = 0.0 if num_requests else None
        assert document["goodput"]["fraction"] == fraction
    json.dumps(document, allow_nan=False)


def test_a_run_of_refusals_has_a_summary(
    make_request: MakeRequest, make_info: MakeInfo
) -> None:
    """Where every request was refused at the door, no time passed and nothing is met."""
    refused = make_request(finished_ns=0, status=RequestStatus.REJECTED, **NEVER_RAN)
    info = make_info(
        config=CACHED, trace={"num_requests": 30}, slo={"e2e_s": 9.0, "e2e_max_s": 9.0}
    )

    document = document_of(info, [refused] * 30)

    assert document["counts"]["rejected"] == 30
    assert document["counts"]["failed"] == 0
    assert document["simulated_s"] == 0.0
    assert document["prefix_cache"]["hit_rate"] is None
    assert document["goodput"]["fraction"] == 0.0
    assert document["goodput"]["conditions"][0]["met"] is None
    assert document["waste"]["head_of_line_s"] == 0.0
    json.dumps(document, allow_nan=False)


def test_an_unfinished_run_lasts_to_its_last_step(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Where nothing finished, simulated time ends with the last step."""
    failed = make_request(status=RequestStatus.FAILED, finished_ns=None)

    document = document_of(make_info(), [failed], [make_step(end_ns=3 * S)])

    assert document["simulated_s"] == 3.0
    assert document["throughput"]["request_per_s"] == pytest.approx(0)


def test_a_run_lasts_until_the_last_request_finishes(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Once something has finished, what was dismissed or ran on later adds nothing."""
    requests = [
        make_request(arrival_ns=1 * S),
        make_request(finished_ns=9 * S, status=RequestStatus.ABORTED),
    ]
    steps = Columns.of(StepRecord, [make_step(end_ns=8 * S)])

    assert run_duration_s(Columns.of(RequestRecord, requests), steps) == 4.0
    assert run_duration_s(Columns.of(RequestRecord, requests[1:]), steps) == 8.0
    assert run_duration_s(Columns.of(RequestRecord, []), steps) == 0.0
