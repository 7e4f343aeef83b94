"""Results of other clients: their own statistics come back from their records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import TraceError, UsageError
from harness.vllm_engine.imports.build import measured_run, run_info
from harness.vllm_engine.imports.imported import ImportedResult
from harness.vllm_engine.imports.read import ImportFormat, read_result
from harness.vllm_engine.imports.reported import Reported, beside, note_of
from results.columns import Columns
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending
from results.summary import summarize

DATA = Path(__file__).parents[2] / "data" / "imports"
BENCH, OLD_BENCH = DATA / "vllm_bench_0.32.json", DATA / "vllm_bench_0.9.json"
GUIDELLM, OLD_GUIDELLM = DATA / "guidellm_0.8.json", DATA / "guidellm_0.3.json"
AIPERF = DATA / "aiperf" / "profile_export.jsonl"
CLIENT = DATA / "vllm_bench_client.json"
"""What the client of vLLM 0.32.0 itself wrote of a server that a test could have made."""

FILES = [
    (CLIENT, None),
    (BENCH, None),
    (OLD_BENCH, None),
    (OLD_GUIDELLM, None),
    (GUIDELLM, 1),
]
FILES += [(AIPERF, None)]

Document = dict[str, Any]
Changed = Callable[..., Path]


def summary_of(result: ImportedResult) -> Document:
    """The summary of the run that a result makes."""
    run = measured_run(result)
    info = run_info(result, "file.json", run, label="x")
    return summarize(info, *columns_of(result))


def columns_of(result: ImportedResult) -> tuple[Columns, Columns]:
    """Its rows."""
    run = measured_run(result)
    hidden = run.measurement.unmeasured_in
    return (
        Columns.of(RequestRecord, run.requests, hidden("requests")),
        Columns.of(StepRecord, run.steps, hidden("steps")),
    )


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """Return a maker of a sample with something changed: a function of its document."""

    def change(path: Path, edit: Callable[[Any], object]) -> Path:
        document = json.loads(path.read_text())
        edit(document)
        copy = tmp_path / path.name
        copy.write_text(json.dumps(document))
        return copy

    return change


# -- figures -----------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "part"), FILES)
def test_the_files_own_statistics_come_back(path: Path, part: int | None) -> None:
    """Every mean and percentile of a file agrees with its records as they are read."""
    result = read_result(path, part=part)

    compared = beside(result.reported_s, *columns_of(result))

    assert len(compared) >= 12
    assert all(each.rows_s is not None for each in compared)
    assert note_of(compared) == ""


@pytest.mark.parametrize("path", [CLIENT, BENCH, OLD_BENCH])
def test_vllm_bench_has_the_same_statistics_to_the_nanosecond(path: Path) -> None:
    """The definitions of vLLM are ours, and percentiles are numpy's for both."""
    document = json.loads(path.read_text())

    latency = summary_of(read_result(path))["latency_s"]

    for ours, theirs in (
        ("ttft", "ttft"),
        ("tpot", "tpot"),
        ("itl", "itl"),
        ("e2e", "e2el"),
    ):
        for statistic, word in (("mean", "mean"), ("p50", "median"), ("p99", "p99")):
            expected = document[f"{word}_{theirs}_ms"] / 1000
            assert latency[ours][statistic] == pytest.approx(expected, abs=1e-9)


def test_vllm_bench_has_the_same_throughput() -> None:
    """Requests and tokens per second are those of the file."""
    document = json.loads(BENCH.read_text())

    rates = summary_of(read_result(BENCH))["throughput"]

    assert rates["request_per_s"] == pytest.approx(document["request_throughput"])
    assert rates["output_token_per_s"] == pytest.approx(document["output_throughput"])


def test_without_times_of_sending_the_clients_clock_counts() -> None:
    """Files of older vLLM have their own duration, and no trend of a queue."""
    document = json.loads(OLD_BENCH.read_text())

    summary = summary_of(read_result(OLD_BENCH))

    expected = document["request_throughput"]
    assert summary["throughput"]["request_per_s"] == pytest.approx(expected)
    assert summary["steady"] is None
    assert "not say when" in " ".join(summary["measurement"]["notes"])


def test_guidellm_has_no_gaps_between_tokens() -> None:
    """Its inter-token latency is a mean of each request, which is TPOT and not ITL."""
    summary = summary_of(read_result(OLD_GUIDELLM))

    assert summary["latency_s"]["itl"]["p50"] is None
    assert summary["latency_s"]["tpot"]["p50"] is not None


def test_guidellm_tells_lateness_and_hits() -> None:
    """0.8 says when a request was due, and what the server found for it."""
    path, document = GUIDELLM, json.loads(GUIDELLM.read_text())
    requests = document["benchmarks"][0]["requests"]["successful"]
    timings = [request["info"]["timings"] for request in requests]
    late = [t["request_start"] - t["targeted_start"] for t in timings]

    summary = summary_of(read_result(path, part=1))

    lateness = summary["measurement"]["lateness_s"]
    assert lateness["p50"] == pytest.approx(float(np.median(late)))
    hits = sum(request["cached_tokens"] for request in requests)
    assert summary["prefix_cache"]["hit_tokens"] == hits > 0


def test_aiperf_leaves_its_warmup_out() -> None:
    """Requests of the warm-up are counted, and are in no row."""
    result = read_result(AIPERF)

    assert result.warmup_requests == 1
    assert len(result.requests) == 25
    assert measured_run(result).requests[0].arrival_ns == 0


def test_aiperf_averages_find_their_records() -> None:
    """The summary of AIPerf stands for the records that lie beside it."""
    averages = AIPERF.with_name("profile_export_aiperf.json")

    assert read_result(averages) == read_result(AIPERF)


@pytest.mark.parametrize(("path", "part"), FILES)
def test_what_the_engine_did_is_not_known(path: Path, part: int | None) -> None:
    """No client sees preemptions, blocks or a queue: they are null, and never 0."""
    summary = summary_of(read_result(path, part=part))

    assert summary["counts"]["preemptions"] is None
    assert summary["kv_cache"]["peak_usage"] is None
    assert summary["latency_s"]["queue"]["p50"] is None
    assert summary["config"]["model"] in ("org/tiny-7b", "tiny")
    assert summary["config"]["num_gpu_blocks"] is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (BENCH, "aiohttp.ClientError: Internal Server Error"),
        (OLD_BENCH, "aiohttp.ClientError: Internal Server Error"),
        (OLD_GUIDELLM, "503 Service Unavailable"),
        (AIPERF, "499 RequestCancellationError: Request was cancelled"),
    ],
)
def test_a_request_that_failed_says_why(path: Path, reason: str) -> None:
    """Its error is its reason, and its times are in no statistic."""
    requests = list(measured_run(read_result(path)).requests)

    failed = [r for r in requests if r.status is RequestStatus.ABORTED]

    assert len(failed) == 1
    assert failed[0].reason.startswith(reason)
    assert sum(r.status is RequestStatus.FINISHED for r in requests) == 24


def test_a_request_under_way_at_the_end_is_unfinished() -> None:
    """GuideLLM stops after some time, whoever is still being served."""
    requests = measured_run(read_result(OLD_GUIDELLM)).requests

    left = [r for r in requests if r.status is RequestStatus.FAILED]

    assert len(left) == 1
    assert left[0].finished_ns is None


def test_the_load_is_in_the_configuration() -> None:
    """Rate and concurrency stand where those of our own runs do."""
    bench, rate = read_result(BENCH), read_result(GUIDELLM, part=1)
    streams = read_result(GUIDELLM, part=2)

    assert bench.load["request_rate"] == rate.load["request_rate"] == 4.0
    assert bench.load["max_concurrency"] is None
    assert streams.load["max_concurrency"] == 8


@pytest.mark.parametrize(
    ("config", "model", "load"),
    [
        (
            {
                "models": {"strategy": "random", "items": [{"name": "a/b"}]},
                "phases": [{"type": "warmup"}, {"rate": 3.0, "concurrency": 8}],
            },
            "a/b",
            {"request_rate": 3.0, "max_concurrency": 8},
        ),
        ({"models": ["a/b", "c"]}, "a/b", {}),
        ({"models": "a/b", "phases": {"concurrency": 2}}, "a/b", {"max_concurrency": 2}),
        ({"endpoint": {"model_names": ["a/b"]}}, "a/b", {}),
        ({"endpoint": "http", "models": [], "phases": []}, "", {}),
        (None, "", {}),
    ],
)
def test_every_form_of_aiperfs_configuration_is_read(
    tmp_path: Path, config: object, model: str, load: Document
) -> None:
    """Model and load stand in other places in other versions, or nowhere."""
    averages = tmp_path / "profile_export_aiperf.json"
    averages.write_text(json.dumps({"aiperf_version": "0.13.0", "input_config": config}))
    averages.with_name(AIPERF.name).write_text(AIPERF.read_text())

    result = read_result(averages)

    assert result.model == model
    assert result.load == {"request_rate": None, "max_concurrency": None} | load


def test_guidellm_ends_with_the_last_token() -> None:
    """E2E ends there and not with the stream: TPOT is its inter-token latency."""
    reported = read_result(OLD_GUIDELLM).reported_s

    latency = summary_of(read_result(OLD_GUIDELLM))["latency_s"]

    assert latency["tpot"]["mean"] == pytest.approx(reported["tpot_mean"], abs=1e-6)
    ends_later_s = reported["e2e_mean"] - latency["e2e"]["mean"]
    assert ends_later_s == pytest.approx(0.0004, abs=1e-5)


def test_a_cancelled_benchmark_did_not_come_to_its_end(tmp_path: Path) -> None:
    """What AIPerf marks as cancelled is compared with nothing."""
    records, averages = tmp_path / AIPERF.name, tmp_path / "profile_export_aiperf.json"
    records.write_text(AIPERF.read_text())
    known = json.loads(AIPERF.with_name(averages.name).read_text())
    averages.write_text(json.dumps(known | {"was_cancelled": True}))

    assert measured_run(read_result(records)).outcome.ending is Ending.INTERRUPTED


def test_records_stand_without_averages(tmp_path: Path) -> None:
    """The records of AIPerf are a run by themselves."""
    records = tmp_path / "mine.jsonl"
    records.write_text(AIPERF.read_text())

    result = read_result(records)

    assert result.reported_s == {}
    assert summary_of(result)["latency_s"]["ttft"]["p50"] is not None


def test_equal_prompts_are_the_same_trace(changed: Changed) -> None:
    """Runs of prompts of the same lengths can be set side by side; others cannot."""

    def shorten(document: Document) -> None:
        document["input_lens"][0] -= 1

    def hash_of(path: Path) -> str:
        result = read_result(path)
        trace = run_info(result, "f", measured_run(result), label="x").trace
        return str(trace["content_hash"])

    assert hash_of(BENCH) == hash_of(OLD_BENCH)
    assert hash_of(BENCH) != hash_of(changed(BENCH, shorten))


# -- statistics that disagree ------------------------------------------------------------


def test_statistics_of_other_records_are_noticed(changed: Changed) -> None:
    """A file whose averages are not those of its records says so."""

    def slow_down(document: Document) -> None:
        document["p99_ttft_ms"] *= 2

    result = read_result(changed(BENCH, slow_down))

    note = note_of(beside(result.reported_s, *columns_of(result)))

    assert "ttft_p99 480 ms, of its records 240 ms" in note


def test_a_percentile_may_be_any_of_its_neighbours() -> None:
    """Clients choose or interpolate; between the values on both sides all is right."""
    near = Reported(name="ttft_p50", file_s=1.0, rows_s=1.5, between_s=(1.0, 2.0))

    assert near.agrees
    assert not Reported(
        name="ttft_p50", file_s=0.9, rows_s=1.5, between_s=(1.0, 2.0)
    ).agrees


# -- files that cannot be used -----------------------------------------------------------


def refusal(path: Path, format: ImportFormat | None = None) -> str:
    """What is said of a file that cannot be used."""
    with pytest.raises(TraceError) as caught:
        read_result(path, format)
    assert caught.value.path == str(path)
    assert caught.value.remedy
    return str(caught.value)


def test_averages_of_vllm_bench_make_no_run() -> None:
    """Without records of requests the remedy is the flag that keeps them."""
    said = refusal(DATA / "vllm_bench_averages.json")

    assert "no input_lens, output_lens, ttfts, itls, errors" in said
    assert "--save-detailed" in said


def test_averages_of_aiperf_make_no_run(tmp_path: Path) -> None:
    """Without records beside them the remedy is the level that exports them."""
    averages = tmp_path / "profile_export_aiperf.json"
    averages.write_text(AIPERF.with_name(averages.name).read_text())

    assert "--export-level records" in refusal(averages)


def test_a_sample_of_requests_makes_no_run(changed: Changed) -> None:
    """GuideLLM may keep a few of its requests: that is another load."""

    def drop(document: Document) -> None:
        del document["benchmarks"][0]["requests"]["successful"][5:]

    said = refusal(changed(OLD_GUIDELLM, drop))

    assert "holds 7 of its 26 requests" in said


def test_a_report_without_requests_makes_no_run(changed: Changed) -> None:
    """Nor does a report that keeps none of them."""

    def drop(document: Document) -> None:
        requests = document["benchmarks"][0]["requests"]
        requests.update(successful=[], errored=[], incomplete=[])

    assert "holds no requests, only averages" in refusal(changed(OLD_GUIDELLM, drop))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ttfts", [0.1], "ttfts has 1 entries and input_lens 25"),
        ("duration", "long", 'duration is "long", which is not a number from 0'),
        ("duration", float("nan"), "duration is NaN"),
        ("itls", 3, "itls is 3, which is not a list"),
        ("itls", [[-1.0]] * 25, "itls[0][0] is -1.0"),
        ("input_lens", [1.5] * 25, "input_lens[0] is 1.5, which is not a whole number"),
        ("errors", [7] * 25, "errors[0] is 7, which is not a text"),
        ("p99_ttft_ms", [], "p99_ttft_ms is []"),
        ("ttfts", [1e300] * 25, "holds times or numbers of tokens that cannot be"),
        ("input_lens", [10**30] * 25, "holds times or numbers of tokens that cannot be"),
    ],
)
def test_a_damaged_result_names_the_place(
    changed: Changed, key: str, value: object, said: str
) -> None:
    """What is wrong, where it stands, and what it should be."""
    path = changed(BENCH, lambda document: document.update({key: value}))

    assert said in refusal(path)


def test_a_result_of_no_request_makes_no_run(changed: Changed) -> None:
    """Its lists are there, and empty."""

    def empty(document: Document) -> None:
        document.update({k: [] for k, v in document.items() if isinstance(v, list)})

    assert "holds no request" in refusal(changed(BENCH, empty))


def test_a_benchmark_of_which_all_failed_is_a_run(changed: Changed) -> None:
    """As of a server that was not there: no latencies, and each request says why."""

    def fail(document: Document) -> None:
        document.update(errors=["refused"] * 25, itls=[[]] * 25, ttfts=[0.0] * 25)
        document.update(output_lens=[0] * 25)

    summary = summary_of(read_result(changed(BENCH, fail)))

    assert summary["counts"]["aborted"] == 25


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    """Some editors write one."""
    path = tmp_path / "result.json"
    path.write_bytes(b"\xef\xbb\xbf" + BENCH.read_bytes())

    assert len(read_result(path).requests) == 25


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("requests",), [], "benchmarks[0].requests is []"),
        (("requests", "successful"), {}, "benchmarks[0].requests.successful is {}"),
        (("requests", "successful"), [{}], "request_start_time is null"),
        (("metrics",), 3, "benchmarks[0].metrics is 3, which is not an object"),
    ],
)
def test_a_damaged_report_names_the_place(
    changed: Changed, keys: tuple[str, ...], value: object, said: str
) -> None:
    """The same of GuideLLM."""

    def edit(document: Document) -> None:
        place = document["benchmarks"][0]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    assert said in refusal(changed(OLD_GUIDELLM, edit))


def test_a_damaged_record_names_its_line(tmp_path: Path) -> None:
    """Records are lines, and the one that is wrong is named."""
    lines = AIPERF.read_text().splitlines()
    bad = json.loads(lines[2])
    bad["metrics"]["request_latency"]["unit"] = "fortnights"
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join([*lines[:2], json.dumps(bad), *lines[3:]]))

    said = refusal(path)

    assert f"{path}:3: metrics.request_latency.unit" in said


def test_records_that_were_cut_off_name_their_line(tmp_path: Path) -> None:
    """A line that ends in its middle is the last that was written."""
    lines = AIPERF.read_text().splitlines()
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join([*lines[:3], lines[3][:50]]))

    assert f"{path}:4: is no JSON" in refusal(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("hello", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "is JSON, but no result of vllm bench serve, GuideLLM or AIPerf"),
        ("[1, 2]", "is JSON, but no result of"),
        ('{"benchmarks": []}', "holds no benchmark"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """What is no result of a known client is named, with what would be."""
    path = tmp_path / "file.json"
    path.write_text(content)

    assert said in refusal(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """So is a folder, and what is no text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")

    assert "No such file" in refusal(tmp_path / "missing.json")
    assert "Is a directory" in refusal(tmp_path)
    assert "no text in UTF-8" in refusal(tmp_path / "bytes")


def test_another_client_than_named_is_refused() -> None:
    """Who says which client it was learns that it was another."""
    said = refusal(BENCH, ImportFormat.GUIDELLM)

    assert "is a result of vllm-bench, not of guidellm" in said


def test_one_of_several_benchmarks_has_to_be_named() -> None:
    """A sweep is several runs; the error lists them."""
    with pytest.raises(UsageError, match=r"1 \(poisson 4\), 2 \(concurrent 8\)"):
        read_result(GUIDELLM)
    with pytest.raises(UsageError, match="has no benchmark 3"):
        read_result(GUIDELLM, part=3)


def test_results_that_were_appended_are_several(tmp_path: Path) -> None:
    """``--append-result`` writes one result a line."""
    one = json.dumps(json.loads(BENCH.read_text()))
    path = tmp_path / "appended.json"
    path.write_text(f"{one}\n{one}")

    with pytest.raises(UsageError, match="several benchmarks"):
        read_result(path)
    assert read_result(path, part=2) == read_result(BENCH)
