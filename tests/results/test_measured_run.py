"""A measured run in summary, findings, comparison and on disk: the unknown is n/a."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import results
from results.columns import Columns
from results.comparison.arm import Arm, ArmRun
from results.comparison.compare import Comparer
from results.comparison.comparison import compare_arms
from results.comparison.verdict import Verdict
from results.findings import find
from results.measured import Measurement
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import MEASURED_KINDS, Ending, Outcome, RunInfo
from results.store import RunStore
from results.summary import summarize

S = 1_000_000_000
MS = 1_000_000
KEPT_OF_STEPS = {"start_ns", "end_ns", "gap_ns", "gap_count"}
SEEN_OF_STEPS = KEPT_OF_STEPS | {"num_running", "num_waiting", "num_used_blocks"}
SEEN_BY_CLIENT = {
    "request_id",
    "arrival_ns",
    "first_token_ns",
    "finished_ns",
    "num_prompt_tokens",
    "num_output_tokens",
    "max_sample_tokens",
    "num_requested_tokens",
    "n",
    "status",
    "reason",
}
UNKNOWN = {
    "num_gpu_blocks": None,
    "num_cpu_blocks": None,
    "block_size": None,
    "block_bytes": None,
    "watermark": None,
    "enable_prefix_caching": None,
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "max_model_len": None,
}

Document = dict[str, Any]
Served = Callable[..., tuple[RunInfo, list[RequestRecord], list[StepRecord]]]


def hidden(seen_of_steps: set[str] = KEPT_OF_STEPS) -> tuple[str, ...]:
    """Columns that a client in front of a server cannot see."""
    of_requests = {f.name for f in fields(RequestRecord)} - SEEN_BY_CLIENT
    of_steps = {f.name for f in fields(StepRecord)} - seen_of_steps
    return (
        *(f"requests.{name}" for name in sorted(of_requests)),
        *(f"steps.{name}" for name in sorted(of_steps)),
    )


@pytest.fixture
def served(make_info: Any, make_request: Any, make_step: Any) -> Served:
    """Return a maker of a run as a client saw it: 4 requests, 3 gaps, nothing else."""

    def make(
        measurement: dict[str, Any] | None = None, **changes: Any
    ) -> tuple[RunInfo, list[RequestRecord], list[StepRecord]]:
        known = {"unmeasured": hidden(), **(measurement or {})}
        given = {
            "source": "measured",
            "engine": "server",
            "policy": "v1",
            **changes,
            "config": UNKNOWN | changes.get("config", {}),
            "trace": {"num_requests": 4, "has_sharing": False, "is_observed": True}
            | changes.get("trace", {}),
        }
        info = make_info(measurement=Measurement(**known), **given)
        requests = [make_request(request_id=i, arrival_ns=i * S // 2) for i in range(4)]
        step = make_step(
            end_ns=6 * S,
            first_step_ns=0,
            last_step_ns=0,
            num_steps=0,
            num_decode_seqs=0,
            gap_ns=[10 * MS, 30 * MS],
            gap_count=[2, 1],
        )
        return info, requests, [step]

    return make


def columns(
    info: RunInfo, requests: list[RequestRecord], steps: list[StepRecord]
) -> tuple[Columns, Columns]:
    """The rows as every reader has them."""
    return (
        Columns.of(RequestRecord, requests, info.unmeasured_in("requests")),
        Columns.of(StepRecord, steps, info.unmeasured_in("steps")),
    )


def document_of(
    run: tuple[RunInfo, list[RequestRecord], list[StepRecord]],
) -> Document:
    """The summary of a run."""
    return summarize(run[0], *columns(*run))


def codes(run: tuple[RunInfo, list[RequestRecord], list[StepRecord]]) -> list[str]:
    """Codes of the findings of a run."""
    return [finding.code for finding in find(run[0], *columns(*run))]


def nothing_but_null(section: Document, *besides: str) -> bool:
    """Whether all figures of a section but these are null."""
    return all(value is None for name, value in section.items() if name not in besides)


# -- the summary -------------------------------------------------------------------------


def test_what_a_client_cannot_see_is_null(served: Served) -> None:
    """Preemptions, blocks, hits and waste of a server without metrics are null, not 0."""
    document = document_of(served())

    assert nothing_but_null(document["kv_cache"])
    assert nothing_but_null(document["waste"])
    assert nothing_but_null(document["prefix_cache"])
    counts = document["counts"]
    assert nothing_but_null(counts, "finished", "rejected", "aborted", "failed")
    assert counts["finished"] == 4
    assert document["latency_s"]["queue"]["p50"] is None
    json.dumps(document, allow_nan=False)


def test_what_a_client_sees_is_there(served: Served) -> None:
    """TTFT, TPOT, ITL, E2E and throughput need no engine."""
    document = document_of(served())

    latency = document["latency_s"]
    assert latency["ttft"]["max"] == 2.0
    assert latency["tpot"]["max"] == 0.5
    assert latency["itl"]["p50"] == 0.01
    assert latency["itl"]["max"] == 0.03
    assert latency["e2e"]["max"] == 4.0
    assert document["throughput"]["request_per_s"] == 1.0  # 4 in 0 s to 4 s


def test_the_clients_clock_counts_where_no_row_tells(served: Served) -> None:
    """Requests without a time of sending have a rate all the same, and no trend."""
    document = document_of(served({"duration_s": 8.0}))

    assert document["throughput"]["request_per_s"] == 0.5
    assert document["steady"] is None


def test_counters_take_the_place_of_rows(served: Served) -> None:
    """What only /metrics counts over the whole run is the figure of the run."""
    counters = {
        "preemptions": 3.0,
        "prefix_cache_query_tokens": 400.0,
        "prefix_cache_hit_tokens": 100.0,
        "external_prefix_cache_hit_tokens": 60.0,
        "offload_load_bytes": 2048.0,
        "offload_store_bytes": 4096.0,
    }
    document = document_of(served({"counters": counters}))

    counts, prefix = document["counts"], document["prefix_cache"]
    assert counts["preemptions"] == counts["recompute_preemptions"] == 3
    assert counts["offload_load_bytes"] == 2048
    assert counts["offload_store_blocks"] is None
    assert prefix["query_tokens"] == 400
    assert (prefix["gpu_hit_tokens"], prefix["offload_hit_tokens"]) == (100, 60)
    assert prefix["hit_rate"] == 0.4
    assert document["measurement"]["counters"] == counters


def test_a_counter_of_zero_is_zero(served: Served) -> None:
    """An engine that counted none had none."""
    counters = {"preemptions": 0.0, "prefix_cache_query_tokens": 0.0}
    document = document_of(served({"counters": counters}))

    assert document["counts"]["preemptions"] == 0
    assert document["prefix_cache"]["hit_rate"] is None


def test_a_v0_servers_swaps_come_from_counters(served: Served) -> None:
    """V0 swaps; what its counters do not tell stays null."""
    run = served({"counters": {"swap_out_blocks": 7.0}}, policy="v0")

    counts = document_of(run)["counts"]

    assert counts["swap_out_blocks"] == 7
    assert counts["swap_in_blocks"] is None
    assert counts["recompute_preemptions"] is None


def test_hits_of_each_request_are_hits(served: Served) -> None:
    """A server that says what it found for each request has a hit rate."""
    info, requests, steps = served()
    assert info.measurement is not None
    shown = tuple(n for n in hidden() if n != "requests.num_cached_tokens")
    info = replace(info, measurement=replace(info.measurement, unmeasured=shown))
    found = [replace(request, num_cached_tokens=25) for request in requests]

    prefix = document_of((info, found, steps))["prefix_cache"]

    assert (prefix["query_tokens"], prefix["hit_tokens"]) == (400, 100)
    assert prefix["hit_rate"] == 0.25


def test_samples_of_a_server_have_usage(served: Served, make_step: Any) -> None:
    """Blocks in use at a few moments give peak and mean, and nothing else."""
    info, requests, _ = served(
        {"unmeasured": hidden(SEEN_OF_STEPS)}, config={"num_gpu_blocks": 11}
    )
    steps = [
        make_step(start_ns=i * S, end_ns=(i + 1) * S, num_used_blocks=used)
        for i, used in enumerate((2, 8))
    ]
    steps = [replace(step, num_used_blocks_end=0) for step in steps]

    usage = document_of((info, requests, steps))["kv_cache"]

    assert usage["peak_usage"] == 0.8
    assert usage["mean_usage"] == 0.5
    assert usage["fragmentation"] is None
    assert usage["mean_cached_idle"] is None


def test_a_limit_that_nobody_measured_is_not_met(served: Served) -> None:
    """Without first tokens no TTFT is inside a limit, nor outside of it."""
    slo = {"ttft_s": 1.0, "e2e_s": 9.0, "queue_p99_s": 1.0}
    info, requests, steps = served(
        {"unmeasured": (*hidden(), "requests.first_token_ns")}, slo=slo
    )

    goodput = document_of((info, requests, steps))["goodput"]

    assert goodput["fraction"] is None
    assert goodput["conditions"][0]["met"] is None


# -- findings ----------------------------------------------------------------------------


def test_findings_need_what_they_speak_of(served: Served) -> None:
    """Of a healthy run that only its client saw, nothing is said."""
    assert codes(served()) == []


@pytest.mark.parametrize("kind", MEASURED_KINDS)
def test_each_way_to_fail_has_a_finding(served: Served, kind: str) -> None:
    """An engine that failed is an error with what it said and what to do."""
    outcome = Outcome(ending=Ending.DIED, kind=kind, message="signal 9")
    info, requests, steps = served(outcome=outcome)

    found = find(info, *columns(info, requests, steps))[0]

    assert (found.code, found.severity) == (kind, "error")
    assert "signal 9" in found.message
    assert "kept" in found.message
    assert found.advice


@pytest.mark.parametrize(("median", "is_said"), [(0.004, False), (0.006, True)])
def test_a_late_client_is_a_finding(served: Served, median: float, is_said: bool) -> None:
    """Above 5 ms in the median latencies are partly the client's."""
    late = {"p50": median, "p99": 0.02, "max": 0.5}
    info, requests, steps = served({"lateness_s": late})

    found = {f.code: f for f in find(info, *columns(info, requests, steps))}

    assert ("client_late" in found) is is_said
    if is_said:
        assert "another machine" in found["client_late"].advice
        assert "6 ms late in the median" in found["client_late"].message


def test_a_warm_cache_is_a_finding(served: Served) -> None:
    """Hits of what was there before are not the trace's; of real traffic they are."""
    trace = {"is_observed": False}

    assert "cache_not_cold" in codes(served({"is_cold": False}, trace=trace))
    assert "cache_not_cold" not in codes(served({"is_cold": False}))
    assert "cache_not_cold" not in codes(served({"is_cold": None}, trace=trace))


def test_requests_that_failed_are_named_with_their_error(served: Served) -> None:
    """One finding for each thing that the server said."""
    info, requests, steps = served()
    requests[1] = replace(requests[1], status=RequestStatus.ABORTED, reason="HTTP 500")

    found = find(info, *columns(info, requests, steps))

    assert [f.code for f in found] == ["requests_failed"]
    assert "1 request (#1) of 4 did not finish: HTTP 500" in found[0].message


def test_preemptions_that_only_a_counter_knows_are_said(served: Served) -> None:
    """From one in twenty requests on, as nobody knows what they cost."""
    assert "preempted" in codes(served({"counters": {"preemptions": 1.0}}))
    assert "preempted" not in codes(served({"counters": {"preemptions": 0.0}}))


@pytest.mark.parametrize(
    ("used", "code"), [(10, "kv_cache_full"), (4, "not_kv_bound"), (7, None)]
)
def test_samples_tell_what_requests_waited_beside(
    served: Served, make_step: Any, used: int, code: str | None
) -> None:
    """Requests that wait beside a full cache want blocks; beside a half empty one not."""
    info, requests, _ = served(
        {"unmeasured": hidden(SEEN_OF_STEPS)}, config={"num_gpu_blocks": 11}
    )
    step = make_step(end_ns=S, num_used_blocks=used, num_waiting=3)

    assert codes((info, requests, [step])) == ([code] if code else [])


def test_an_overload_shows_in_first_tokens(served: Served, make_request: Any) -> None:
    """A client sees a growing queue by later and later first tokens."""
    info, _, steps = served(trace={"num_requests": 40})
    requests = [
        make_request(
            request_id=i,
            arrival_ns=i * S,
            first_token_ns=i * S + (1 + i) * S,
            finished_ns=i * S + (2 + i) * S,
        )
        for i in range(40)
    ]

    found = {f.code: f for f in find(info, *columns(info, requests, steps))}

    assert "on average for a first token" in found["overloaded"].message
    assert document_of((info, requests, steps))["steady"] is False


def test_hits_that_were_missed_are_said_without_evictions(
    make_info: Any, make_request: Any, make_step: Any
) -> None:
    """An engine that does not tell its evictions shows by its hits that it has some."""
    config = {"enable_prefix_caching": True, "num_cpu_blocks": 0}
    unmeasured = ("steps.num_regretted_evictions",)
    info = make_info(
        source="measured",
        engine="vllm",
        policy="v1",
        config=config,
        measurement=Measurement(unmeasured=unmeasured),
    )
    requests = [
        make_request(request_id=i, num_prompt_tokens=1000, num_shared_tokens=i and 990)
        for i in range(30)
    ]
    prefill = {"num_prefill_tokens": 1000, "num_prefill_seqs": 1, "num_decode_seqs": 0}
    steps = [
        make_step(start_ns=i * S, end_ns=(i + 1) * S, first_step_ns=S, **prefill)
        for i in range(30)
    ]

    found = {f.code: f for f in find(info, *columns(info, requests, steps))}

    assert "0 % of prompt tokens were hits where" in found["hits_missed"].message


def test_outputs_that_ended_early_are_the_models_own(served: Served) -> None:
    """A real model stops where it likes; that is said without any max_model_len."""
    info, requests, steps = served()
    requests[0] = replace(requests[0], num_requested_tokens=9)
    assert info.measurement is not None

    found = {f.code: f for f in find(info, *columns(info, requests, steps))}

    assert "ignore_eos" in found["outputs_cut"].advice


def test_a_missed_limit_has_advice_without_an_engine(served: Served) -> None:
    """What to do about a late first token is said as far as a client can know."""
    info, requests, steps = served(slo={"ttft_s": 0.1, "tpot_s": 0.01})

    found = {f.code: f for f in find(info, *columns(info, requests, steps))}

    assert "--engine vllm sees" in found["slo_missed"].advice


# -- the folder --------------------------------------------------------------------------


def test_a_stored_run_says_the_same(served: Served, tmp_path: Path) -> None:
    """Summary and findings of a stored run are those that were printed."""
    run = served({"counters": {"preemptions": 3.0}, "notes": ("a note",)})
    document = document_of(run)
    with RunStore("served", run[0], output=tmp_path / "run") as store:
        folder = store.save(*run, document)

    stored = results.load(folder)

    again = summarize(stored.info, stored.request_columns, stored.step_columns)
    assert again == document
    assert stored.info == run[0]


def test_the_tables_hold_nulls(served: Served, tmp_path: Path) -> None:
    """Whoever reads the Parquet files without us finds null, and no 0, either."""
    import pyarrow.parquet as pq

    run = served()
    with RunStore("served", run[0], output=tmp_path / "run") as store:
        folder = store.save(*run, document_of(run))

    requests = pq.read_table(folder / "requests.parquet")
    steps = pq.read_table(folder / "steps.parquet")
    assert requests["num_preemptions"].null_count == 4
    assert requests["finished_ns"].null_count == 0
    assert steps["num_used_blocks"].null_count == 1
    assert results.load(folder).requests["num_preemptions"].isna().all()


def test_a_killed_run_hides_what_was_not_measured(served: Served, tmp_path: Path) -> None:
    """The journals of a run that was killed hold zeros, and its readers null."""
    info, requests, steps = served({"counters": {}})
    store = RunStore("served", info, output=tmp_path / "run")
    store.journal.append(requests, steps)
    store.journal.close()

    stored = results.load(tmp_path / "run")

    assert stored.state is Ending.KILLED
    assert stored.steps["num_running"].isna().all()
    document = summarize(stored.info, stored.request_columns, stored.step_columns)
    assert document["counts"]["preemptions"] is None
    assert document["counts"]["finished"] == 4
    assert document["latency_s"]["itl"]["max"] == 0.03


# -- comparisons -------------------------------------------------------------------------


def arm_of(name: str, run: tuple[RunInfo, list[RequestRecord], list[StepRecord]]) -> Arm:
    """An arm of one run."""
    return Arm(name=name, config=run[0].config, runs=[ArmRun.of(run[0], *columns(*run))])


def test_what_one_side_did_not_measure_is_not_compared(
    served: Served, make_info: Any
) -> None:
    """Preemptions that nobody counted are n/a beside those that were, and never 0."""
    counted, blind = served({"counters": {"preemptions": 3.0}}), served()

    results_of = {
        result.metric.name: result
        for result in Comparer(arm_of("a", counted)).compare(arm_of("b", blind))
    }

    preemptions = results_of["preemptions"]
    assert preemptions.values == (3.0, None)
    assert preemptions.verdict is Verdict.NOT_TESTED
    assert preemptions.reason == "n/a in b"
    assert "recomputed_tokens" not in results_of
    assert results_of["ttft_p50"].values == (1.25, 1.25)


def test_hits_that_nobody_measured_are_not_zero(served: Served) -> None:
    """A side without a cache has 0 hits; one of which it is not known has n/a."""
    counters = {"prefix_cache_query_tokens": 400.0, "prefix_cache_hit_tokens": 100.0}
    hit = arm_of("a", served({"counters": counters}))
    blind = arm_of("b", served())
    off = arm_of("c", served(config={"enable_prefix_caching": False}))

    by_arm = {
        arm.name: {r.metric.name: r for r in Comparer(hit).compare(arm)}
        for arm in (blind, off)
    }

    assert by_arm["b"]["hit_tokens"].difference is None
    assert by_arm["c"]["hit_tokens"].difference == -100.0


def test_arms_that_nobody_looked_into_are_compared(served: Served) -> None:
    """Two imports are set side by side without a word on causes."""
    compared = compare_arms(arm_of("a", served()), [arm_of("b", served())])

    assert compared.arms[0].metrics
    assert {r.verdict for r in compared.arms[0].metrics} == {Verdict.NOT_TESTED}
