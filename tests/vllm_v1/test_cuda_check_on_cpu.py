"""The script of ``make cuda-check`` on vLLM's CPU build: what needs no GPU works.

A start of vLLM takes half a minute, so that two checks which share one run stand for all;
``make cuda-check DEVICE=cpu`` makes the others.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
report: Any = importlib.import_module("cuda_checks.report")


def test_a_start_and_decisions_are_checked_and_reported(tmp_path: Path) -> None:
    """The device, the facts, and that vLLM decides as sim does, in one file to send."""
    file = tmp_path / "cuda_check.json"
    words = [sys.executable, str(BENCHMARKS / "cuda_check.py"), "--device", "cpu"]
    flags = ["--only", "start,exact,offload", "-o", str(file)]
    done = subprocess.run([*words, *flags], capture_output=True, text=True, timeout=180)

    assert done.returncode == 0, done.stdout + done.stderr
    sent = json.loads(file.read_text())
    assert report.problems_of(sent) == []
    assert sent["ok"]
    by_name = {check["name"]: check for check in sent["checks"]}
    assert {name: check["verdict"] for name, check in by_name.items()} == {
        "start": "passed",
        "exact": "passed",
        "offload": "skipped",
    }
    facts = by_name["start"]["figures"]["facts"]
    assert (facts["device"], facts["num_gpu_blocks"]) == ("cpu", 96)
    assert sent["vllm_version"] == facts["vllm_version"]
    decided = by_name["exact"]["figures"]
    assert decided["num_different"] == 0
    assert decided["vllm"] == decided["other"]
    assert decided["vllm"]["num_preemptions"] > 2
    assert str(tmp_path) not in file.read_text()
