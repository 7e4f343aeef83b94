"""Tests for ``blockbench verify``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_cli.main import main
from harness.verify import against_vllm, golden
from harness.verify.golden import VerifyResult

BUNDLED = str(Path(__file__).parents[2] / "examples" / "chat_1000.jsonl")

SAME = VerifyResult(
    identical=True, steps=1234, first_divergence=None, against="a.rows.jsonl"
)
OTHER = VerifyResult(
    identical=False,
    steps=7,
    first_divergence={
        "step": 9,
        "stepping": "repeated steps",
        "differences": [{"key": "free_gpu", "ours": 3, "recorded": 4}],
    },
    against="a.rows.jsonl",
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the flags that name two files."""
    scenario, rows = tmp_path / "a.scenario.json", tmp_path / "a.rows.jsonl"
    scenario.write_text("{}")
    rows.write_text("")
    return ["--scenario", str(scenario), "--rows", str(rows)]


def call(
    monkeypatch: pytest.MonkeyPatch, result: VerifyResult, *args: str
) -> int | str | None:
    """Run verify with a comparison that has this result; return the exit code."""

    def verify_scenario(*_: Any) -> VerifyResult:
        return result

    monkeypatch.setattr(golden, "verify_scenario", verify_scenario)
    monkeypatch.setattr(sys, "argv", ["blockbench", "verify", *args])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code


def test_identical_rows_exit_0(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: list[str],
) -> None:
    """Agreement is one line with the number of steps."""
    assert call(monkeypatch, SAME, *files) == 0
    assert capsys.readouterr().out.startswith("identical over 1,234 steps")


def test_divergence_shows_both_sides(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: list[str],
) -> None:
    """The first differing row is shown, ours beside theirs, and the code is 6."""
    assert call(monkeypatch, OTHER, *files) == 6

    lines = capsys.readouterr().out.splitlines()
    assert "step 9 differs" in lines[0]
    (row,) = [line.split() for line in lines if "free_gpu" in line]
    assert row == ["free_gpu", "3", "4"]


@pytest.mark.parametrize(("result", "code"), [(SAME, 0), (OTHER, 6)])
def test_json_document_has_its_keys(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: list[str],
    result: VerifyResult,
    code: int,
) -> None:
    """With --json, stdout holds one document and nothing else."""
    assert call(monkeypatch, result, *files, "--json") == code

    document = json.loads(capsys.readouterr().out)
    assert list(document)[:2] == ["schema_version", "kind"]
    assert set(list(document)[2:]) == {
        "identical",
        "steps",
        "first_divergence",
        "against",
        "preemptions",
    }
    assert document["identical"] is result.identical


APART = VerifyResult(
    identical=False,
    steps=12,
    first_divergence={
        "step": 12,
        "time_s": 1.5,
        "differences": [{"key": "free", "ours": 3, "theirs": 4}],
        "rows_before": [{"scheduled": [[7, 1]]}],
        "ours": {"running": [7], "waiting": [8], "loading": [], "blocks": {"7": [1]}},
        "theirs": {"running": [7, 8], "waiting": [], "blocks": {"7": [2]}},
    },
    against="vLLM 0.32.0",
    preemptions=1,
)


def test_divergence_from_vllm_shows_queues_and_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What both sides held when they parted is shown, and the rows before."""

    def verify_against_vllm(*_: Any, **__: Any) -> VerifyResult:
        return APART

    monkeypatch.setattr(against_vllm, "verify_against_vllm", verify_against_vllm)
    assert call(monkeypatch, SAME, BUNDLED, "--against", "vllm") == 6

    lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines]
    assert lines[0].startswith("step 12 differs, at 1.500000 s, after 12 that are vLLM")
    assert ["free", "3", "4"] in shown
    assert ["running", "[7]", "[7,", "8]"] in shown
    assert ["7", "[1]", "[2]"] in shown
    assert lines[-1] == 'before: {"scheduled": [[7, 1]]}'


def test_knobs_and_requests_reach_the_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both schedulers get the flags' knobs, and the requests that they select."""
    asked = {}

    def verify_against_vllm(workload: Any, config: Any, **rest: Any) -> VerifyResult:
        asked.update(workload=workload, config=config, **rest)
        return SAME

    monkeypatch.setattr(against_vllm, "verify_against_vllm", verify_against_vllm)
    flags = "--against vllm --limit 5 --num-gpu-blocks-override 9000 --block-size 32"
    more = "--watermark 0.1 --no-async-scheduling --max-concurrency 3"
    types = "--dtype half -q awq --kv-cache-dtype fp8 --enforce-eager"
    given = " ".join((flags, more, types)).split()
    assert call(monkeypatch, SAME, BUNDLED, *given) == 0

    config = asked["config"]
    assert len(asked["workload"]) == 5
    assert (config.num_gpu_blocks, config.block_size, config.watermark) == (9000, 32, 0.1)
    assert not config.async_scheduling
    assert (config.dtype, config.quantization) == ("half", "awq")
    assert (config.kv_cache_dtype, config.enforce_eager) == ("fp8", True)
    assert config.block_bytes == 2**21  # of 32 tokens, in half the bytes
    assert asked["max_concurrency"] == 3
    assert capsys.readouterr().out.startswith("identical over 1,234 steps")


def test_a_missing_file_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: list[str],
) -> None:
    """A file that is not there is named, with code 2."""
    files[1] += ".gone"

    assert call(monkeypatch, SAME, *files) == 2
    assert "a.scenario.json.gone" in capsys.readouterr().err.replace("\n", "")


CONFIG = {
    "block_size": 4,
    "num_gpu_blocks": 40,
    "num_cpu_blocks": 20,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "max_model_len": 512,
    "watermark": 0.01,
    "enable_prefix_caching": False,
    "preemption_mode": None,
    "chunked_prefill": False,
}
SCENARIO = {
    "name": "s",
    "policy": "v0",
    "config": CONFIG,
    "segments": ["s0", "o0.0", "o0.1", "o1.0"],
    "requests": [
        {"id": 0, "step": 0, "prompt": [[0, 20]], "output_tokens": [9, 5]},
        {"id": 1, "step": 3, "prompt": [[0, 40]], "output_tokens": [6]},
    ],
}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return the rows of a small scenario, which lies beside them."""
    scenario, rows = tmp_path / "s.scenario.json", tmp_path / "s.rows.jsonl"
    scenario.write_text(json.dumps(SCENARIO))
    recorded = golden.replay_rows(golden.read_scenario(scenario), can_repeat=False)
    rows.write_text("".join(json.dumps(row) + "\n" for row in recorded))
    return rows


def verify(rows: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed script on a recording."""
    script = Path(sys.executable).with_name("blockbench")
    scenario = rows.with_name("s.scenario.json")
    command = [script, "verify", "--scenario", scenario, "--rows", rows]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_recording_agrees_with_itself(recording: Path) -> None:
    """The same decisions again are identical over all steps."""
    done = verify(recording)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("identical over ")


@pytest.mark.parametrize("key", ["free_gpu", "tables", "decode"])
def test_one_changed_number_is_found(recording: Path, key: str) -> None:
    """A single planted change in the middle of the rows is named, with code 6."""
    rows = [json.loads(line) for line in recording.read_text().splitlines()]
    (position, *_) = [i for i, row in enumerate(rows) if i > 3 and row[key]]
    rows[position][key] = plant(rows[position][key])
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = verify(recording)

    assert done.returncode == 6
    assert f"step {rows[position]['step']} differs" in done.stdout
    assert key in done.stdout


def plant(value: Any) -> Any:
    """The value with its first number raised by one."""
    if isinstance(value, list):
        return [plant(value[0]), *value[1:]]
    return value + 1
