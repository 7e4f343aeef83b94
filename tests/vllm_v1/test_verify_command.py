"""``blockbench verify TRACE --against vllm``, as a person types it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench_cli.exit_code import ExitCode
from harness.config import resolve_config
from harness.schedulers import build
from harness.traces import open_trace
from harness.verify import against_vllm

BUNDLED = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
SMALL = "--num-gpu-blocks-override 520 --max-model-len 8192 --speedup 6"

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)


def verify(trace: Path, flags: str) -> tuple[int, dict[str, Any]]:
    """Run the installed script; return its exit code and its document."""
    script = Path(sys.executable).with_name("blockbench")
    command = [script, "verify", trace, "--against", "vllm", "--json", *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--no-async-scheduling",
        "--num-cpu-blocks-override 300",
        "--num-cpu-blocks-override 2000 --no-async-scheduling",
        "--block-size 64 --num-gpu-blocks-override 130",
        "--scheduling-policy priority --max-num-seqs 9",
        "--model mistralai/Mistral-7B-v0.1 --speedup 30",
        "--no-enable-chunked-prefill --max-num-batched-tokens 8192",
        "--watermark 0.1 --long-prefill-token-threshold 100",
        "--no-enable-prefix-caching --max-concurrency 40",
    ],
)
def test_a_trace_under_pressure_is_decided_as_vllm_decides_it(flags: str) -> None:
    """Every call agrees on every key, whatever the knobs."""
    code, document = verify(BUNDLED, f"--limit 300 {SMALL} {flags}")

    assert document["first_divergence"] is None
    assert code == 0
    assert document["identical"]
    assert document["steps"] > 200
    assert document["against"].startswith("vLLM 0.")


def test_pressure_is_real() -> None:
    """The traces above preempt: agreement is not that of an empty queue."""
    _, document = verify(BUNDLED, f"--limit 300 {SMALL}")

    assert document["preemptions"] > 20


def test_nothing_compared_is_not_identical() -> None:
    """Where every request is refused at the door there is no call to agree on."""
    script = Path(sys.executable).with_name("blockbench")
    flags = ["--against", "vllm", "--limit", "5", "--max-model-len", "1"]

    done = subprocess.run(
        [script, "verify", BUNDLED, *flags], capture_output=True, text=True
    )

    assert done.returncode == ExitCode.IMPOSSIBLE
    assert "nothing was compared" in done.stderr


def test_another_scheduler_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds nothing in the cache parts from vLLM, and it is shown where."""

    def build_another(**knobs: Any) -> Any:
        return build.build_scheduler_v1(**knobs | {"enable_prefix_caching": False})

    monkeypatch.setattr(against_vllm, "build_scheduler_v1", build_another)
    config = resolve_config(model="Llama-3.1-8B", gpu="H100-80GB", policy="v1")
    workload = open_trace(BUNDLED).select(slice(200))

    result = against_vllm.verify_against_vllm(workload, config)

    assert not result.identical
    assert result.first_divergence is not None
    assert "scheduled" in {d["key"] for d in result.first_divergence["differences"]}
    assert result.first_divergence["ours"]["running"]
    assert result.first_divergence["theirs"]["running"]
    assert len(result.first_divergence["rows_before"]) <= against_vllm.NUM_ROWS_SHOWN
