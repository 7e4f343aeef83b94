"""Tests for measurements as people have them: CSV, bench serve's results, stored runs."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.fit import fit
from harness.calibration.observation import Served, Step
from harness.calibration.read import SAME_ENGINE, Measurements, read_measurements
from harness.calibration.served_rows import generated
from harness.calibration.step_rows import config_of, stored_steps
from harness.config import resolve_config
from harness.config.resolve import engine_knob
from harness.errors import TraceError, UsageError
from harness.replay import replay
from harness.traces.generation import GenerateOptions
from profiles.gpu_entry import MADE_FOR
from profiles.step_time import BatchShape
from results.errors import RunFolderError
from results.run_info import RunInfo
from results.store import RunStore
from results.stored_run import StoredRun, load_run

FLAGS: Mapping[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.32.0",
}
LOAD = "input_len,output_len,max_concurrency,ttft_ms,tpot_ms\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a writer of a file, in the folder one is in; it gives back the name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.csv") -> str:
        Path(name).write_text(text)
        return name

    return write


def read(*sources: str, **flags: Any) -> Measurements:
    """The measurements of sources under the common flags."""
    return read_measurements(sources, {**FLAGS, **flags})


def served(source: str, **flags: Any) -> Served:
    """The one load of a source."""
    (observation,) = read(source, **flags).observations
    assert isinstance(observation, Served)
    return observation


def test_a_row_is_a_load(write: Write) -> None:
    """Lengths, concurrency and means of a row become what is replayed."""
    found = served(write(f"{LOAD}1000,200,8,120,9.5\n"))

    assert (found.name, found.figures) == ("mine.csv:2", ("ttft", "tpot"))
    assert found.measured_s == pytest.approx((0.120, 0.0095))
    assert (found.max_concurrency, len(found.workload)) == (8, 80)
    assert set(found.workload.input_tokens) == {1000}
    assert set(found.workload.output_tokens) == {200}


@pytest.mark.parametrize(
    "header",
    [
        "input_len,output_len,concurrency,mean_ttft_ms,mean_tpot_ms",
        "isl_mean,osl_mean,concurrency,ttft_ms_mean,tpot_ms_mean",
        "random_input_len,osl,max_concurrency,mean_ttft_ms,tpot_ms",
        " isl , osl , max_concurrency , ttft_ms , tpot_ms ",
    ],
)
def test_columns_go_by_several_names(write: Write, header: str) -> None:
    """Names of bench serve, of published tables and plain ones mean the same."""
    found = served(write(f"{header}\n1000.2,200,8.0,120,9.5\n"))

    assert found.measured_s == pytest.approx((0.120, 0.0095))
    assert set(found.workload.input_tokens) == {1000}


def test_rates_prefixes_and_spreads(write: Write) -> None:
    """A load at a rate has arrivals; prefixes come before the lengths."""
    header = "input_len,output_len,request_rate,burstiness,num_requests,tpot_ms"
    header += ",range_ratio,prefix_len,num_prefixes"
    found = served(write(f"{header}\n100,50,4,2,60,9.5,0.5,64,3\n"))

    assert (found.figures, found.max_concurrency) == (("tpot",), None)
    assert found.workload.duration_s == pytest.approx(60 / 4, rel=0.4)
    assert 64 + 50 <= min(found.workload.input_tokens) < max(found.workload.input_tokens)
    assert max(found.workload.input_tokens) <= 64 + 150


def test_isl_is_of_whole_prompts(write: Write) -> None:
    """Mean prompt lengths of published tables include the shared prefix."""
    text = "isl_mean,osl_mean,concurrency,ttft_ms,prefix_len\n500,50,2,80,128\n"

    assert set(served(write(text)).workload.input_tokens) == {500}


def test_rows_override_the_flags(write: Write) -> None:
    """Engine columns of a row count for it; others have what the flags say."""
    header = f"{LOAD.strip()},max_num_seqs,enable_prefix_caching\n"
    rows = "1000,200,8,120,9.5,32,off\n1000,200,8,120,9.5,,\n"
    first, second = read(write(header + rows), max_num_seqs=64).observations

    assert first.config.max_num_seqs == 32  # type: ignore[attr-defined]
    assert second.config.max_num_seqs == 64  # type: ignore[attr-defined]
    assert not first.config.enable_prefix_caching  # type: ignore[attr-defined]
    assert second.config.enable_prefix_caching  # type: ignore[attr-defined]


def test_columns_that_are_not_read_are_named(write: Write) -> None:
    """Nothing is left out silently."""
    text = f"{LOAD.strip()},p99_ttft_ms,gpu\n1000,200,8,120,9.5,300,H100\n"
    notes = read(write(text)).notes

    assert any("not read: p99_ttft_ms, gpu; flags say" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        (LOAD, "no rows below the header"),
        ("a,b\n1,2\n", "mine.csv:1: no column of a time among a, b"),
        (f"{LOAD}1000,200,8,120\n", "mine.csv:2: 4 cells, and the header names 5"),
        (f"{LOAD}1000,200,8,fast,9\n", "mine.csv:2: ttft_ms is 'fast'; give a number"),
        (f"{LOAD}1000,200,8,-1,9\n", "mine.csv:2: ttft_ms is '-1'; give a number above"),
        (f"{LOAD}1000,200,8,nan,9\n", "mine.csv:2: ttft_ms is 'nan'"),
        (f"{LOAD}1000,200,8,,\n", "mine.csv:2: neither ttft_ms nor tpot_ms; fill in"),
        (f"{LOAD}1000,200,,120,9\n", "neither max_concurrency nor request_rate"),
        (f"{LOAD}1000,200,2.5,120,9\n", "max_concurrency is 2.5; give a whole number"),
        (f"{LOAD},200,8,120,9\n", "mine.csv:2: input_len is missing; fill it in"),
        (f"{LOAD}1000,1,8,120,9\n", "tpot_ms of outputs of one token"),
        (f"{LOAD}1000,200,8,120,9\n\n1000,0,8,120,9\n", "mine.csv:4: output_len is '0'"),
        (
            "input_len,output_len,request_rate,ttft_ms\n9,9,2,80\n",
            "num_requests is missing; at a rate it says for how long",
        ),
        (
            "input_len,output_len,concurrency,max_concurrency,ttft_ms\n9,9,2,4,80\n",
            "are the same figure; keep one of these columns",
        ),
        (
            "input_len,isl,output_len,concurrency,ttft_ms\n9,9,9,2,80\n",
            "both input_len and the length of whole prompts",
        ),
        (
            "gpu,input_len,output_len,concurrency,ttft_ms\nL4,9,9,2,80\nT4,9,9,2,80\n",
            "rows are of gpu 'L4' and 'T4'; a calibration is of one model, GPU",
        ),
        ("ttft_ms,ttft_ms\n1,2\n", "ttft_ms is the name of two columns"),
        (f"{LOAD}1000,200,8,1e-9,9\n", "mine.csv:2: ttft_ms is '1e-9'; give millisec"),
        (f"{LOAD}1000,200,8,120,1e9\n", "mine.csv:2: tpot_ms is '1e9'; give millisec"),
        (
            "input_len,output_len,concurency,ttft_ms\n9,9,2,80\n",
            "fill in how much load there was (columns that are not read: concurency)",
        ),
        (
            "input_length,output_len,concurrency,ttft_ms\n9,9,2,80\n",
            "input_len is missing; fill it in (columns that are not read: input_length)",
        ),
        (
            "input_len,output_len,request_rate,num_requests,ttft_ms\n9,9,1e-300,9,80\n",
            "mine.csv:2: ",
        ),
        (
            "input_len,output_len,concurrency,ttft_ms,max_num_batched_tokens,max_num_seqs"
            "\n9,9,2,80,64,128\n",
            "mine.csv:2: ",
        ),
        (
            "input_len,output_len,concurrency,ttft_ms,range_ratio\n9,9,2,80,1.5\n",
            "range_ratio is 1.5, must be from 0 to below 1; correct the row",
        ),
        (
            "isl,osl,concurrency,ttft_ms,prefix_len\n9,9,2,80,9\n",
            "prompts of 9 tokens begin with 9",
        ),
        (
            "input_len,output_len,concurrency,ttft_ms,enable_prefix_caching\n"
            "9,9,2,80,maybe\n",
            "enable_prefix_caching is 'maybe'; give on or off",
        ),
    ],
)
def test_bad_rows_say_where_and_what(write: Write, text: str, words: str) -> None:
    """A row that cannot be used is refused with its file, its line and a remedy."""
    with pytest.raises(TraceError) as refused:
        read(write(text))

    assert words in str(refused.value)


def test_other_files_are_refused(write: Write, tmp_path: Path) -> None:
    """What is no text, no JSON object or neither file nor run is said to be so."""
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00a")

    with pytest.raises(TraceError, match="no UTF-8 text"):
        read("x.csv")
    with pytest.raises(TraceError, match="no JSON"):
        read(write("{", "x.json"))
    with pytest.raises(TraceError, match="nowhere.csv: there is no such file; check"):
        read("nowhere.csv")
    with pytest.raises(RunFolderError, match="no run folder"):
        read("nowhere")


def test_the_engine_must_be_told(write: Write) -> None:
    """A CSV does not say of which model and GPU it is."""
    source = write(f"{LOAD}1000,200,8,120,9.5\n")

    with pytest.raises(UsageError, match=r"of which model .* add --model"):
        read(source, model=None)
    with pytest.raises(UsageError, match=r"of which GPU .* add --gpu"):
        read(source, gpu=None)


def bench_serve(**changes: Any) -> str:
    """A result as vllm bench serve --save-result writes it."""
    result: dict[str, Any] = {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 100,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
        "duration": 30.0,
        "completed": 100,
        "total_input_tokens": 102_400,
        "total_output_tokens": 12_800,
        "mean_ttft_ms": 95.0,
        "mean_tpot_ms": 8.2,
    }
    return json.dumps(result | changes)


def test_a_result_of_bench_serve_is_a_load(write: Write) -> None:
    """Its means, its mean lengths, its concurrency, and its model where none is given."""
    found = served(write(bench_serve(), "r.json"), model=None)

    assert (found.name, found.max_concurrency, len(found.workload)) == ("r.json", 8, 100)
    assert found.config.model == "meta-llama/Llama-3.1-8B"
    assert found.measured_s == pytest.approx((0.095, 0.0082))
    assert set(found.workload.input_tokens) == {1024}
    assert set(found.workload.output_tokens) == {128}


def test_a_result_at_a_rate_has_arrivals(write: Write) -> None:
    """A finite rate spreads the requests; without concurrency nobody waits outside."""
    text = bench_serve(request_rate=5.0, max_concurrency=None)
    found = served(write(text, "r.json"))

    assert found.max_concurrency is None
    assert found.workload.duration_s == pytest.approx(20, rel=0.3)


def test_another_model_than_the_result_has_is_noted(write: Write) -> None:
    """--model counts; the note names both, and none is there where they are one."""
    source = write(bench_serve(), "r.json")
    notes = read(source, model="Qwen/Qwen3-8B").notes

    assert any("meta-llama/Llama-3.1-8B was" in n and "Qwen/Qwen3-8B" in n for n in notes)
    assert not any("was measured" in note for note in read(source).notes)
    assert not any("was measured" in n for n in read(source, model="Llama-3.1-8B").notes)


def test_prompts_without_tokens_are_none(write: Write) -> None:
    """A step of prompt tokens has at least one prompt."""
    header = "num_prefill_tokens,num_prefill_seqs,step_ms"
    with pytest.raises(TraceError, match="mine.csv:2: 512 tokens of 0 prompts"):
        read(write(f"{header}\n512,0,20\n"))


def test_a_gpu_without_rates_is_none_to_begin_from(write: Write) -> None:
    """The remedy is not what was just asked for."""
    with pytest.raises(UsageError, match="rates of CPU") as refused:
        read(write(f"{LOAD}1000,200,8,120,9.5\n"), gpu="CPU")

    assert "such as H100-80GB" in str(refused.value)
    assert "calibrate" not in str(refused.value)


def test_types_that_nobody_gave_are_auto(write: Write) -> None:
    """Both are the same engine."""
    config = resolve_config(**FLAGS)

    assert engine_knob(config, "dtype") == engine_knob(
        replace(config, dtype="auto"), "dtype"
    )
    assert set(MADE_FOR) == set(SAME_ENGINE) - {"gpu"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_ttft_ms": None}, "no mean_ttft_ms; give a file that vllm bench serve"),
        ({"completed": 0}, "no request was completed"),
        ({"total_input_tokens": "many"}, "no total_input_tokens"),
    ],
)
def test_results_that_lack_figures_are_refused(
    write: Write, changes: dict[str, Any], words: str
) -> None:
    """Another JSON document, or a benchmark that failed, is no measurement."""
    with pytest.raises(TraceError, match=words):
        read(write(bench_serve(**changes), "r.json"))


def test_timed_steps_are_read(write: Write) -> None:
    """Decodes, prefills and what was cached before them become batches."""
    header = "num_prefill_tokens,num_decode,context_tokens,step_ms"
    header += ",num_prefill_seqs,prefill_context_tokens"
    rows = "0,4,4000,8.5,0,\n512,0,512,20,2,\n100,2,50,9,1,300\n"
    found = read(write(f"{header}\n{rows}")).observations
    shapes = [step.shape for step in found if isinstance(step, Step)]

    assert shapes == [
        BatchShape(0, 0, 0, 4, 4000),
        BatchShape(512, 2 * (256 * 257 // 2), 2, 0, 0, num_prefill_context_tokens=512),
        BatchShape(100, 35_050, 1, 2, 50, num_prefill_context_tokens=400),
    ]
    assert sum(range(301, 401)) == 35_050
    assert [step.measured_s[0] for step in found] == pytest.approx([0.0085, 0.02, 0.009])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,0,0,5", "the step computes nothing"),
        ("0,4,2,5", "4 sequences decode over 2 context_tokens"),
        ("0,4,400,", "step_ms is missing"),
        ("0,-4,400,5", "num_decode_seqs is '-4'"),
        ("0,4,400,1e-6", "step_ms is '1e-6'; give milliseconds, from 0.001 to 86,400,0"),
    ],
)
def test_bad_steps_are_refused(write: Write, row: str, words: str) -> None:
    """A step that cannot have been is said to be so, with its line."""
    header = "num_prefill_tokens,num_decode_seqs,num_context_tokens,step_ms"
    with pytest.raises(TraceError, match=f"mine.csv:2: {words}"):
        read(write(f"{header}\n{row}\n"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredRun:
    """A stored run of sixty requests with shared prefixes."""
    monkeypatch.chdir(tmp_path)
    config = resolve_config(**FLAGS)
    workload = generated(
        GenerateOptions(
            num_requests=60,
            input_len=400,
            output_len=40,
            range_ratio=0.5,
            request_rate=20,
            prefix_len=64,
            num_prefixes=2,
        )
    )
    result = replay(workload, config)
    trace = {
        "name": "made",
        "format": "memory",
        "num_requests": 60,
        "num_skipped": 0,
        "duration_s": 3.0,
        "has_sharing": True,
    }
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy="v1",
        config=config.to_dict(),
        trace=trace,
        outcome=result.outcome,
        wall_s=0.1,
    )
    with RunStore("made", info, output=tmp_path / "run") as store:
        store.save(info, result.requests, result.steps, None)
    return load_run(tmp_path / "run")


def test_steps_of_a_run_last_what_the_model_says(run: StoredRun) -> None:
    """What a row keeps of a step is all that its duration depends on."""
    config = config_of(run)
    steps, notes = stored_steps(run, config)

    assert notes == []
    assert any(step.shape.num_prefill_seqs for step in steps)
    for step in steps:
        assert step.predicted_s({})[0] == pytest.approx(step.measured_s[0], abs=2e-9)


def test_a_run_brings_its_own_engine(run: StoredRun) -> None:
    """Model, GPU and flags are the run's; to calibrate from a simulation is noted."""
    measured = read_measurements(["run"], {})

    assert measured.config.model == "meta-llama/Llama-3.1-8B"
    assert any("was simulated" in note for note in measured.notes)
    assert all(abs(move) < 1e-3 for move in fit(measured.observations).moves.values())


def test_flags_that_contradict_a_run_are_refused(run: StoredRun) -> None:
    """Only the GPU to begin from may be another one."""
    with pytest.raises(UsageError, match="ran with tensor_parallel_size 1, and"):
        read_measurements(["run"], {"tensor_parallel_size": 2})

    assert read_measurements(["run"], {"gpu": "h200"}).config.gpu == "H200"


def test_sources_of_several_engines_are_refused(write: Write) -> None:
    """One calibration is of one engine."""
    mine = write(bench_serve(), "r.json")
    other = write(bench_serve(model_id="Qwen/Qwen3-8B"), "q.json")
    with pytest.raises(UsageError, match=r"q.json of Qwen/Qwen3-8B; .* calibrate twice"):
        read(mine, other, model=None)


def test_many_steps_are_sampled_evenly(run: StoredRun) -> None:
    """At most so many different steps are used, and the note says so."""
    config = config_of(run)
    every, _ = stored_steps(run, config)
    some, notes = stored_steps(run, config, most=10)

    assert len(every) > len(some) == 10
    assert (some[0], some[-1]) == (every[0], every[-1])
    assert notes == [f"10 of the {len(every)} different steps of {run.folder} are used"]
    assert stored_steps(run, config, most=10) == (some, notes)


def test_runs_without_prefill_work_give_their_decodes(run: StoredRun) -> None:
    """Rows of older versions do not say what prefills attend to."""
    run.steps[["num_prefill_attention", "num_prefill_context_tokens"]] = 0
    steps, (note,) = stored_steps(run, config_of(run))

    assert steps
    assert not any(step.shape.num_prefill_seqs for step in steps)
    assert "only its decode steps are used" in note


def test_infinite_rates_need_no_gaps(write: Write) -> None:
    """All at once is a load, too."""
    header = "input_len,output_len,request_rate,num_requests,ttft_ms\n"
    found = served(write(f"{header}100,20,inf,30,900\n"))

    assert found.workload.duration_s == 0
    assert math.isfinite(found.predicted_s({})[0])
