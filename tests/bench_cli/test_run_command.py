"""Tests for ``blockbench run``: flags, output and exit codes.

In most tests the engine is a stand-in; the last ones replay the bundled trace.
"""

import csv
import hashlib
import inspect
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import results
from bench_cli.commands.run import run
from bench_cli.main import main
from bench_cli.measured_flags import MeasuredFlags
from harness.workload import Workload
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome
from results.table import write_records

CONFIG = {
    "policy": "v0",
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.6.3",
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4.0,
    "block_size": 16,
    "block_bytes": 2**21,
    "gpu_memory_gib": 80.0,
    "watermark": 0.01,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "preemption_mode": None,
    "num_gpu_blocks": 100,
    "num_cpu_blocks": 50,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "notes": [],
}
S = 1_000_000_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"


@dataclass
class Bench:
    """The command with a stand-in for the engine.

    Attributes:
        trace: A trace of four requests.
        status: How the engine lets each request end.
        interrupted: Whether the user pressed Ctrl-C meanwhile.
        holders: Who held blocks when nothing could go on any more, if it came to that.
        config: What the library was asked for.
        replayed: The workload and the settings that the engine was given.
    """

    trace: Path
    call: Callable[..., int]
    status: RequestStatus = RequestStatus.FINISHED
    interrupted: bool = False
    holders: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    replayed: dict[str, Any] = field(default_factory=dict)

    def resolve_config(self, **knobs: Any) -> SimpleNamespace:
        """Remember the knobs; all runs have the same configuration."""
        self.config = knobs
        return SimpleNamespace(**CONFIG, to_dict=lambda: dict(CONFIG))

    def replay(self, workload: Workload, config: Any, **settings: Any) -> Any:
        """Serve each request in 4 s, one after another."""
        self.replayed = {"workload": workload, **settings}
        return SimpleNamespace(
            requests=[self._request(i) for i in range(len(workload))],
            steps=[self._step()],
            outcome=Outcome(ending=self._ending(), holders=self.holders),
            wall_s=0.25,
        )

    def _ending(self) -> Ending:
        if self.holders:
            return Ending.STUCK
        return Ending.INTERRUPTED if self.interrupted else Ending.COMPLETE

    def _request(self, number: int) -> RequestRecord:
        begin = number * 4 * S
        return RequestRecord(
            request_id=number,
            arrival_ns=begin,
            queued_ns=begin,
            num_prompt_tokens=100,
            num_output_tokens=5,
            max_sample_tokens=5,
            first_scheduled_ns=begin,
            first_token_ns=begin + 2 * S,
            finished_ns=begin + 4 * S,
            status=self.status,
        )

    @staticmethod
    def _step() -> StepRecord:
        counts = dict.fromkeys(inspect.signature(StepRecord).parameters, 0)
        counts.pop("gap_ns")
        counts.pop("gap_count")
        counts.update(end_ns=4 * S, num_steps=1, num_used_blocks=50)
        counts.update(num_used_blocks_end=50, num_used_tokens=700)
        return StepRecord(**counts)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return the command, in an empty folder, with a trace beside it."""
    trace = tmp_path / "chat_trace.jsonl"
    row = {"input_length": 600, "output_length": 5}
    lines = [{"timestamp": 1000 * i, **row, "hash_ids": [i, 9 + i]} for i in range(4)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "110")

    def call(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["blockbench", "run", str(trace), *args])
        with pytest.raises(SystemExit) as raised:
            main()
        assert isinstance(raised.value.code, int)
        return raised.value.code

    made = Bench(trace, call)
    for name in ("config", "replay"):
        module = ModuleType(f"harness.{name}")
        vars(module)["resolve_config"] = made.resolve_config
        vars(module)["replay"] = made.replay
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_screen_says_what_ran_and_how_it_went(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """One screen names trace, model, GPU and version, and where the run lies."""
    assert bench.call("--slo", "ttft=2s") == 0

    out = capsys.readouterr().out
    first, second, *_ = out.splitlines()
    assert first.startswith("chat_trace.jsonl · mooncake · 4 requests over 3.0 s")
    assert first.endswith("simulated")
    assert second.startswith("Llama-3.1-8B on H100-80GB, as vLLM 0.6.3")
    assert "100 blocks (1.6k tokens)   peak 50 %   mean 50 %   ▅▅▅" in out
    assert "no preemptions" in out
    assert "n/a (prefix caching is off)" in out
    assert "TTFT 2.0 s  2.0 s  2.0 s" in out
    assert "100 % of requests inside the SLO" in out
    (folder,) = Path(".blockbench/runs").iterdir()
    assert f"saved {folder}" in out
    assert folder.name.endswith("-chat")


def test_json_is_one_strict_document(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json, stdout is the summary alone and equals what was saved."""
    assert bench.call("--json") == 0

    printed = capsys.readouterr()
    document = json.loads(printed.out, parse_constant=pytest.fail)
    (folder,) = Path(".blockbench/runs").iterdir()
    assert document["trace"]["num_requests"] == 4
    assert document["latency_s"]["e2e"]["p50"] == 4.0
    assert document == json.loads((folder / "run.json").read_text())["summary"]
    assert printed.err == f"saved {folder}\n"


def test_a_terminal_without_utf_8_gets_ascii(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sign is printed that the encoding lacks, and none becomes a question mark."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)

    assert bench.call() == 0

    stream.flush()
    shown = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "mooncake | 4 requests" in shown
    assert "?" not in shown
    assert "\\u" not in shown


def test_narrow_terminals_lose_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty columns wrap the lines; no figure is cut."""
    monkeypatch.setenv("COLUMNS", "40")
    assert bench.call() == 0

    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 40
    words = out.split()
    assert all(w in words for w in ("simulated", "0.6.3", "TTFT", "TPOT", "E2E"))


def test_tables_are_for_other_programs(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """--table csv gives every figure a row, an empty cell where there is none."""
    assert bench.call("--table", "csv") == 0

    rows = dict(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows["metric"] == "value"
    assert rows["latency_s.ttft.p99"] == "2.0"
    assert rows["prefix_cache.hit_rate"] == ""


@pytest.mark.parametrize("style", ["github", "latex", "plain"])
def test_tables_show_what_does_not_apply(
    bench: Bench, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    """Tables for people say n/a, never 0."""
    assert bench.call("--table", style) == 0

    (line,) = [ln for ln in capsys.readouterr().out.splitlines() if "hit" in ln][2:3]
    assert "n/a" in line


def test_findings_change_no_exit_code(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with a finding is still fine; the finding carries its remedy."""
    bench.holders = "2 waiting (#3, #4)"

    assert bench.call() == 0
    lines = capsys.readouterr().out.splitlines()
    found = lines.index("x nothing could progress: 2 waiting (#3, #4)  [no_progress]")
    assert lines[found + 1].strip().startswith("-> a larger pool")


def test_nothing_finished_exits_4(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """When no request could finish, the run is saved and the code is 4."""
    bench.status = RequestStatus.REJECTED

    assert bench.call() == 4
    printed = capsys.readouterr()
    assert "0 finished · 4 rejected" in printed.out
    assert printed.err.startswith("error: no request could finish")
    assert len(list(Path(".blockbench/runs").iterdir())) == 1


def test_ctrl_c_keeps_what_was_recorded(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted run is saved, marked incomplete, and the code is 130."""
    bench.interrupted = True

    assert bench.call() == 130
    (folder,) = Path(".blockbench/runs").iterdir()
    assert json.loads((folder / "run.json").read_text())["summary"]["complete"] is False
    assert "INCOMPLETE" in capsys.readouterr().out


def test_more_ctrl_c_does_not_lose_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an interrupted run is saved Ctrl-C does nothing; afterwards it does again."""
    before = signal.getsignal(signal.SIGINT)

    def write(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_records(*args)

    monkeypatch.setattr("results.store.write_records", write)
    bench.interrupted = True

    assert bench.call() == 130
    (folder,) = Path(".blockbench/runs").iterdir()
    assert results.load(folder).state is Ending.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before


def test_constant_gaps_are_saved(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """An infinite burstiness is a word in the summary, which JSON has no number for."""
    assert bench.call("--request-rate", "1", "--burstiness", "inf", "--json") == 0

    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["config"]["burstiness"] == "inf"
    assert bench.replayed["workload"].arrival_ns.tolist() == [0, S, 2 * S, 3 * S]


def test_what_json_lacks_is_found_before_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact that cannot be saved costs no replay."""
    monkeypatch.setitem(CONFIG, "watermark", float("nan"))

    with pytest.raises(ValueError, match="not JSON compliant"):
        bench.call()
    assert bench.replayed == {}


def test_a_run_that_cannot_be_saved_is_still_shown(
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk costs the folder, not the figures, and the code is 5."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("results.store.write_records", fail)

    assert bench.call() == 5
    printed = capsys.readouterr()
    assert "KV cache" in printed.out
    assert "No space left on device" in printed.err


def test_output_names_the_folder(bench: Bench, tmp_path: Path) -> None:
    """-o takes the run, and takes another only with --force."""
    target = str(tmp_path / "my run")

    assert bench.call("-o", target) == 0
    assert bench.call("-o", target) == 2
    assert bench.call("-o", target, "--force") == 0


def test_flags_not_given_stay_open(bench: Bench) -> None:
    """Defaults of vLLM's own flags are left to the library, which knows the version."""
    assert bench.call() == 0

    given = {k: v for k, v in bench.config.items() if v is not None}
    assert given == {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "H100-80GB",
        "engine": "sim",
        "tensor_parallel_size": 1,
        "enforce_eager": False,
    }


ENGINE_FLAGS = {
    "--model": ("model", "Qwen/Qwen3-8B"),
    "--gpu": ("gpu", "A100-80GB"),
    "--tensor-parallel-size": ("tensor_parallel_size", 2),
    "--dtype": ("dtype", "half"),
    "--quantization": ("quantization", "awq"),
    "--kv-cache-dtype": ("kv_cache_dtype", "fp8"),
    "--vllm-version": ("vllm_version", "0.6.3"),
    "--gpu-memory-utilization": ("gpu_memory_utilization", 0.5),
    "--kv-cache-gib": ("kv_cache_gib", 1.5),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", 7),
    "--num-cpu-blocks-override": ("num_cpu_blocks_override", 8),
    "--block-size": ("block_size", 32),
    "--swap-space": ("swap_space", 2.5),
    "--max-model-len": ("max_model_len", 4096),
    "--max-num-seqs": ("max_num_seqs", 3),
    "--max-num-batched-tokens": ("max_num_batched_tokens", 5000),
    "--watermark": ("watermark", 0.02),
    "--preemption-mode": ("preemption_mode", "swap"),
    "--kv-offloading-size": ("kv_offloading_size", 6.5),
    "--long-prefill-token-threshold": ("long_prefill_token_threshold", 9),
    "--scheduling-policy": ("scheduling_policy", "priority"),
}
SWITCHES = {
    "--enforce-eager": ("enforce_eager", True),
    "--enable-prefix-caching": ("enable_prefix_caching", True),
    "--no-enable-chunked-prefill": ("enable_chunked_prefill", False),
    "--no-async-scheduling": ("async_scheduling", False),
    "--no-scheduler-reserve-full-isl": ("scheduler_reserve_full_isl", False),
}


def test_every_engine_flag_arrives(bench: Bench) -> None:
    """Each flag reaches the library under its own name and with its value."""
    args = [
        str(part) for flag, (_, value) in ENGINE_FLAGS.items() for part in (flag, value)
    ]

    assert bench.call(*args, *SWITCHES, "--policy", "v0", "--engine", "sim") == 0
    assert bench.config == {
        "policy": "v0",
        "engine": "sim",
        **dict(ENGINE_FLAGS.values()),
        **dict(SWITCHES.values()),
    }


def test_no_flag_is_left_out_of_these_tests() -> None:
    """Each option of the command is an engine flag here or one of the named rest."""
    rest = {"trace", "trace_format", "limit", "slice", "request_rate", "burstiness"}
    rest |= {"seed", "max_concurrency", "speedup", "skip_bad_rows", "slo", "as_json"}
    rest |= {"output", "force", "check", "table", "policy", "engine"}
    rest |= {field.name for field in fields(MeasuredFlags)}  # test_measured_run.py
    engine = {name for name, _ in (ENGINE_FLAGS | SWITCHES).values()}

    assert set(inspect.signature(run).parameters) == engine | rest


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        (["--limit", "2"], [0, 1]),
        (["--limit", "99"], [0, 1, 2, 3]),
        (["--slice", "1:3"], [1, 2]),
        (["--slice", "2:"], [2, 3]),
        (["--slice", "1:", "--limit", "1"], [1]),
    ],
)
def test_a_part_of_the_trace_is_replayed(
    bench: Bench, args: list[str], ids: list[int]
) -> None:
    """--slice counts from 0 and --limit counts within it."""
    whole = bench.call() or bench.replayed["workload"]

    assert bench.call(*args) == 0
    part = bench.replayed["workload"]
    assert [part.prompts.runs(i) for i in range(len(part))] == [
        whole.prompts.runs(i) for i in ids
    ]


def test_arrivals_can_be_drawn_anew(bench: Bench) -> None:
    """--request-rate replaces the times, and the seed decides which."""
    drawn = []
    for seed in ("1", "1", "2"):
        rate = ["--request-rate", "240/min", "--seed", seed, "--burstiness", "0.5"]
        assert bench.call(*rate) == 0
        drawn.append(bench.replayed["workload"].arrival_ns.tolist())

    assert drawn[0] == drawn[1] != drawn[2]


def test_speedup_divides_the_times(bench: Bench) -> None:
    """Twice the speed halves every arrival time."""
    assert bench.call("--speedup", "2x") == 0
    assert bench.replayed["workload"].arrival_ns.tolist() == [0, S // 2, S, 3 * S // 2]


def test_engine_settings_reach_the_loop(bench: Bench) -> None:
    """--max-concurrency and --check are the loop's; no bar without a terminal."""
    assert bench.call("--max-concurrency", "3", "--check") == 0

    assert bench.replayed["max_concurrency"] == 3
    assert bench.replayed["check"] is True
    assert bench.replayed["on_progress"] is None


def test_bad_rows_stop_a_run_unless_skipped(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad row is code 3 with its line; --skip-bad-rows counts it and goes on."""
    with bench.trace.open("a") as trace:
        trace.write('{"timestamp": -1}\n')

    assert bench.call() == 3
    assert "chat_trace.jsonl:5: " in capsys.readouterr().err
    assert bench.call("--skip-bad-rows") == 0
    assert "1 bad row skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--request-rate", "2", "--speedup", "2"], "give one of them"),
        (["--seed", "1"], "add --request-rate"),
        (["--burstiness", "1"], "add --request-rate"),
        (["--force"], "add -o"),
        (["--json", "--table", "csv"], "--json and --table"),
        (["--slo", "ttft=2"], "no unit"),
        (["--slo", "ttft=1e308h"], "too long a time"),
        (["--slo", "ttft=2 parsecs"], "unknown unit 'parsecs'"),
        (["--slo", "ttft=-2s"], "not a number"),
        (["--slo", "ttft=0s"], "can never be met"),
        (["--slo", "ttft=1s,ttft=2s"], "twice"),
        (["--slo", "latency=1s"], "ttft, tpot, itl, e2e"),
        (["--slo", "ttft"], "ttft=2s"),
        (["--slo", "ttft_p101=1s"], "of the whole run"),
        (["--slo", "queue=1s"], "of a single request"),
        (["--slice", "3"], "A:B"),
        (["--slice", "3:3"], "holds no request"),
        (["--slice", "90:"], "slice 90: selects none of the trace's 4 requests"),
        (["--slice", "30:40", "--limit", "2"], "slice 30:40 selects none"),
        (["-o", ""], "it is empty; name what to write"),
        (["--vllm-version", " "], "it is empty; give one as 0.32.0"),
        (["--request-rate", "0"], "exceed 0"),
        (["--request-rate", "fast"], "4/s"),
        (["--request-rate", "4/parsec"], "no rate"),
        (["--speedup", "0"], "above 0"),
        (["--speedup", "2s"], "2 or 0.5x"),
        (["--limit", "0"], "--limit"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--preemption-mode", "both"], "recompute"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    bench: Bench, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    """Code 2, one error that says what to write, and nothing was replayed or saved."""
    assert bench.call(*args) == 2

    error, *hints = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert len(hints) <= 1
    assert bench.replayed == {}
    assert not Path(".blockbench").exists()


def real_run(tmp_path: Path, name: str, *args: str) -> tuple[int, Path]:
    """Run the installed script on the bundled trace; return its code and folder."""
    folder = tmp_path / name
    script = Path(sys.executable).with_name("blockbench")
    command = [script, "run", EXAMPLE, "--policy", "v0", "-o", folder, "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, folder


def test_equal_runs_leave_equal_folders(tmp_path: Path) -> None:
    """Two runs of one trace differ in when they ran and how long, and in nothing else."""
    tight = ["--num-gpu-blocks-override", "900", "--max-model-len", "8192"]
    tight += ["--speedup", "8", "--enable-prefix-caching", "--check", "--limit", "200"]
    folders = [real_run(tmp_path, name, *tight)[1] for name in ("a", "b")]

    rows = [
        (folder / f"{table}.parquet").read_bytes()
        for table in ("requests", "steps")
        for folder in folders
    ]
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    one, two = (json.loads((folder / "run.json").read_text()) for folder in folders)
    assert one["summary"]["counts"]["preemptions"] > 0
    for run_ in (one, two):
        del run_["created_at"], run_["history"]
        del run_["wall_s"], run_["summary"]["wall_s"]
    assert one == two


def test_types_of_a_run_size_its_pool(tmp_path: Path) -> None:
    """fp8 halves a block and float32 doubles it; run.json has the types in force."""
    few = ("--limit", "5", "--kv-cache-gib", "8", "--max-model-len", "8192")
    types = {
        "plain": (),
        "fp8": ("--kv-cache-dtype", "fp8"),
        "wide": ("--dtype", "float32", "--enforce-eager"),
    }

    configs = {}
    for name, flags in types.items():
        code, folder = real_run(tmp_path, name, *few, *flags)
        assert code == 0
        configs[name] = results.load(folder).info.config

    num_blocks = {name: config["num_gpu_blocks"] for name, config in configs.items()}
    assert num_blocks == {"plain": 4096, "fp8": 8192, "wide": 2048}
    keys = ("dtype", "quantization", "kv_cache_dtype", "enforce_eager")
    assert [configs["plain"][key] for key in keys] == [None, None, None, False]
    assert configs["fp8"]["kv_cache_dtype"] == "fp8"
    assert [configs["wide"][key] for key in keys] == ["float32", None, None, True]


def test_a_pool_for_nobody_exits_4(tmp_path: Path) -> None:
    """Where no request of the trace fits, the run says so with code 4."""
    tiny = ["--num-gpu-blocks-override", "2", "--max-model-len", "32", "--limit", "20"]

    assert real_run(tmp_path, "tiny", *tiny)[0] == 4


def test_a_request_counts_once_in_every_figure(tmp_path: Path) -> None:
    """The summary agrees with the rows that the same folder holds."""
    code, folder = real_run(tmp_path, "a", "--limit", "100", "--enable-prefix-caching")
    stored = results.load(folder)

    summary, requests = stored.run["summary"], stored.requests
    ttft = (requests["first_token_ns"] - requests["arrival_ns"]) / S
    assert code == 0
    assert summary["counts"]["finished"] == len(requests) == 100
    assert summary["latency_s"]["ttft"]["p99"] == pytest.approx(ttft.quantile(0.99))
    assert summary["prefix_cache"]["hit_tokens"] == requests["num_cached_tokens"].sum()
    assert summary["counts"]["steps"] == stored.steps["num_steps"].sum()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engine", "torch"], "'torch' is not one of 'sim', 'vllm', 'server'"),
        (["--policy", "v0", "--vllm-version", "0.32.0"], "has no v0 engine"),
        (["--policy", "v1", "--vllm-version", "0.6.3"], "use --policy v0"),
        (["--device", "cuda"], "No such option: --device"),
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size is not there yet"),
        (["--dtypes", "half"], "No such option: --dtypes"),
    ],
)
def test_what_is_not_there_yet_is_refused_in_words(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    words: str,
) -> None:
    """A policy, engine or version without its part exits 2 and says what there is."""
    trace = Path(__file__).resolve().parents[2] / "examples" / "chat_1000.jsonl"
    monkeypatch.setattr(sys, "argv", ["blockbench", "run", str(trace), *args])

    with pytest.raises(SystemExit) as raised:
        main()

    assert raised.value.code == 2
    assert words in capsys.readouterr().err


def test_a_run_knows_its_trace_by_content(tmp_path: Path) -> None:
    """run.json has the SHA-256 of the file, whatever its name."""
    _, folder = real_run(tmp_path, "a", "--limit", "5")

    known = json.loads((folder / "run.json").read_text())["trace"]
    assert known["content_hash"] == hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()


def test_latencies_of_a_growing_queue_are_marked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside the percentiles stands that they depend on the trace's length."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    args = ["--policy", "v0"]
    args += ["--num-gpu-blocks-override", "500", "--max-model-len", "4096"]
    monkeypatch.setattr(sys, "argv", ["blockbench", "run", str(EXAMPLE), *args])
    with pytest.raises(SystemExit):
        main()

    assert "(p50 p90 p99; the longer the trace, the longer)" in capsys.readouterr().out
