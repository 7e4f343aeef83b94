"""``run --engine vllm`` as a person types it, with a process that only speaks as ours."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine, Policy
from bench_cli.measured_flags import MeasuredFlags, given_to_vllm
from bench_cli.measured_run import said_of_gpu
from bench_cli.repeats import dispersion_of
from harness.errors import UsageError
from harness.vllm_engine import started
from harness.vllm_engine.measured_config import measured_config
from results import load
from results.run_info import RunInfo

Call = Callable[..., tuple[int, str, str]]
FAKE = Path(__file__).parents[1] / "harness" / "vllm_engine" / "fake_child.py"
ROWS = [
    {"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [number]}
    for number in range(3)
]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of three requests, in an empty folder that one is in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "three.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what puts a process that ends in a given way in the place of vLLM's."""

    def fail(how: str) -> None:
        command = [sys.executable, str(FAKE), how]
        faked = functools.partial(started.StartedVllm, command=command)
        monkeypatch.setattr(started, "StartedVllm", faked)

    return fail


def test_a_measured_run_is_saved_and_shown(
    call: Call, trace: Path, fail: Callable[[str], None]
) -> None:
    """The document is that of a measured run, and the folder has vLLM's log."""
    fail("well")

    code, out, err = call("run", trace, "--engine", "vllm", "--json", "-o", "run")

    document = json.loads(out)
    assert code == 0, err
    assert (document["source"], document["engine"]) == ("measured", "vllm")
    assert document["config"]["num_gpu_blocks"] == 100
    assert document["counts"]["preemptions"] == 0
    stored = load("run")
    assert stored.info.measurement is not None
    assert stored.info.measurement.notes == ("a note",)
    assert Path("run", "vllm.log").exists()


@pytest.mark.parametrize(
    ("asked", "ran_on", "told"),
    [
        ("H200", "NVIDIA H200", ""),
        ("H200", "NVIDIA L40S", "vLLM ran on NVIDIA L40S"),
        ("my.toml", "NVIDIA L40S", "--gpu my.toml is for simulations"),
        ("H200", None, ""),  # vLLM did not start
        ("H200", "cpu", "vLLM ran on a CPU"),
        (EngineFlags().gpu, "NVIDIA L40S", ""),
    ],
)
def test_a_gpu_that_vllm_did_not_run_on_is_noted(
    asked: str, ran_on: str | None, told: str
) -> None:
    """``--gpu`` chooses nothing where vLLM itself runs."""
    info = RunInfo(
        source="measured",
        engine="vllm",
        policy="v1",
        config={"gpu": ran_on},
        trace={},
    )
    notes = said_of_gpu(EngineFlags(engine=Engine.VLLM, gpu=asked), info)

    assert [told in note for note in notes] == ([True] if told else [])
    assert not said_of_gpu(EngineFlags(engine=Engine.SERVER, gpu=asked), info)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("killed", "vllm_crashed", "error: vLLM's process ended: by SIGKILL"),
        ("hangs", "vllm_hung", "no step for 0.5 s"),
        ("fails", "vllm_out_of_memory", "ran out of memory: RuntimeError: CUDA out of"),
        ("no_start", "vllm_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory"),
        ("start_hangs", "vllm_did_not_start", "vLLM did not start: no start within 1 s"),
    ],
)
def test_a_failure_is_a_finding_and_ends_with_5(
    call: Call, trace: Path, fail: Callable[[str], None], how: str, kind: str, said: str
) -> None:
    """The rows so far are saved, the finding names the kind, stderr the reason."""
    fail(how)
    patience = ("--hang-after", "0.5s", "--start-timeout", "1s")

    code, out, err = call(
        "run", trace, "--engine", "vllm", "--json", "-o", "run", *patience
    )

    assert code == 5
    assert said in err
    assert kind in [finding["code"] for finding in json.loads(out)["findings"]]
    stored = load("run")
    assert stored.info.outcome.kind == kind
    num_finished = (stored.requests["status"] == "finished").sum()
    assert num_finished == (0 if "start" in how else 1)
    assert len(stored.requests) == 3


def test_repeats_are_runs_of_their_own(
    call: Call, trace: Path, fail: Callable[[str], None]
) -> None:
    """Each has a folder; the document has them all, and how far apart they lie."""
    fail("well")

    code, out, err = call("run", trace, "--engine", "vllm", "--repeats", 3, "--json")

    document = json.loads(out)
    assert code == 0, err
    assert document["kind"] == "repeats"
    assert len(document["runs"]) == len(set(document["folders"])) == 3
    assert document["dispersion"]["TTFT p50"]["relative_deviation"] == 0
    assert all(Path(folder, "run.json").exists() for folder in document["folders"])


def test_repeats_end_with_the_first_failure(
    call: Call, trace: Path, fail: Callable[[str], None]
) -> None:
    """What cannot run will not run the second time."""
    fail("fails")

    code, _, err = call("run", trace, "--engine", "vllm", "--repeats", 3)

    assert code == 5
    assert err.count("saved ") == 1


def test_repeats_and_one_folder_contradict(call: Call, trace: Path) -> None:
    """Three runs have no place in one folder."""
    code, _, err = call("run", trace, "--engine", "vllm", "--repeats", 3, "-o", "run")

    assert code == 2
    assert "--repeats 3 makes 3 runs, and -o names one folder" in err


def test_a_folder_that_is_taken_is_refused_before_the_start(
    call: Call, trace: Path, fail: Callable[[str], None]
) -> None:
    """Nobody waits for vLLM only to learn that the run has no place."""
    fail("start_hangs")
    Path("run").mkdir()
    Path("run", "mine.txt").write_text("precious")

    code, _, err = call("run", trace, "--engine", "vllm", "-o", "run")

    assert code == 2
    assert "run is not empty" in err


def test_arms_take_turns(call: Call, trace: Path, fail: Callable[[str], None]) -> None:
    """Repeats of one arm lie between those of the other."""
    fail("well")

    vary = ("--vary", "watermark=0,0.1", "--repeats", 2, "--allow", "hardware")
    _, out, err = call("compare", trace, "--engine", "vllm", *vary, "--json")

    saved = [line.rsplit("watermark-", 1)[-1] for line in err.splitlines()]
    saved = [name.removesuffix("-2") for name in saved if "saved" not in name]
    assert saved[:4] == ["0", "0.1", "0", "0.1"], err + out


def test_the_simulation_and_the_engine_are_arms_like_others(
    call: Call, trace: Path, fail: Callable[[str], None]
) -> None:
    """The simulation runs once; that it is of other hardware is noted, not refused."""
    fail("well")

    vary = ("--vary", "engine=sim,vllm", "--repeats", 2)
    code, out, err = call("compare", trace, *vary, "--json")

    assert code == 0, err
    document = json.loads(out)
    assert [arm["name"] for arm in document["arms"]] == ["engine=sim", "engine=vllm"]
    sources = [arm["summary"]["source"] for arm in document["arms"]]
    assert sources == ["simulated", "measured"]
    assert err.count("engine-sim") == 1
    assert err.count("engine-vllm") == 2
    assert any("gpu is H100-80GB in" in note for note in document["notes"])


def test_only_what_was_given_is_passed_on() -> None:
    """VLLM keeps its own defaults; names are those of its arguments."""
    flags = EngineFlags(
        model="some/model",
        engine=Engine.VLLM,
        policy=Policy.V0,
        kv_cache_gib=2.0,
        tensor_parallel_size=2,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    assert given_to_vllm(flags) == {
        "model": "some/model",
        "kv_cache_memory_bytes": 2 * 2**30,
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "enable_prefix_caching": False,
    }
    assert given_to_vllm(EngineFlags(model="some/model")) == {"model": "some/model"}


def test_words_for_vllm_are_read_as_a_shell_reads_them() -> None:
    """Quotes hold together; an open one is refused."""
    flags = MeasuredFlags(engine_args=["--load-format dummy", "--x '{\"a\": 1}'"])

    assert flags.words() == ("--load-format", "dummy", "--x", '{"a": 1}')
    with pytest.raises(UsageError, match="--engine-args cannot be read"):
        MeasuredFlags(engine_args=["--x 'open"]).words()


def test_the_configuration_is_what_the_engine_says() -> None:
    """Facts come before what was asked for; nothing is taken from profiles."""
    facts = {
        "policy": "v1",
        "block_size": 32,
        "num_gpu_blocks": 100,
        "num_gpu_blocks_override": 100,
        "max_model_len": 512,
        "block_bytes": 2**20,
        "gpu": "NVIDIA H200",
        "device": "cuda",
        "tensor_parallel_size": 2,
        "kv_offloading_size": 1.0,
    }

    config = measured_config("vllm", facts, {"block_size": 16, "model": "m"}, ("--x",))

    assert (config["block_size"], config["model"], config["gpu"]) == (
        32,
        "m",
        facts["gpu"],
    )
    assert config["source_of_num_gpu_blocks"] == "override"
    assert config["kv_cache_gib"] == 100 / 1024
    assert config["num_cpu_blocks"] == 512
    assert config["watermark"] == 0.0
    assert config["gpu_memory_utilization"] is None
    assert config["engine_args"] == ["--x"]


def test_dispersion_is_of_the_runs_that_have_the_figure() -> None:
    """Median and extremes; a figure that nobody has is n/a."""
    documents = [{"latency_s": {"ttft": {"p50": seconds}}} for seconds in (1.0, 2.0, 6.0)]

    found = dispersion_of(documents)

    assert found["TTFT p50"] == {
        "median": 2.0,
        "min": 1.0,
        "max": 6.0,
        "relative_deviation": pytest.approx(0.8819, abs=1e-4),
    }
    assert found["hit rate"]["median"] is None
