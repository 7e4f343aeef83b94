"""The scripts under benchmarks/ still run."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.request import Request
from profiles.capacity import ESTIMATE_ERROR_ROWS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EXAMPLE = BENCHMARKS.parent / "examples" / "chat_1000.jsonl"

sys.path.append(str(BENCHMARKS))
replay_calls: Any = importlib.import_module("replay_calls")


def test_repeat_speed_prints_a_ratio() -> None:
    """Both ways of the bundled trace are measured in one run, with equal steps."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "repeat_speed.py"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "25,576 steps" in done.stdout
    assert "ratio" in done.stdout


def test_fidelity_meets_its_gates_as_the_docs_say() -> None:
    """Sizes agree with published rows, and docs/fidelity.md holds what is printed."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fidelity.py", "capacity"],
        capture_output=True,
        text=True,
    )
    docs = (BENCHMARKS.parent / "docs" / "fidelity.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert [line for line in done.stdout.splitlines() if line not in docs] == []
    inside, known = ESTIMATE_ERROR_ROWS
    assert f"inside the interval of the estimate: {inside} of {known} rows" in docs


def test_load_trace_prints_time_and_memory() -> None:
    """The bundled trace is loaded, and what that took is said."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "load_trace.py", EXAMPLE],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "1,000 requests" in done.stdout


def test_replay_speed_measures_both_loops_on_the_same_requests() -> None:
    """Costs and gates of the parts asked for are printed; vLLM is said to be missing."""
    parts = ["--part", "whole", "--part", "reference", "--part", "growth"]
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "replay_speed.py", EXAMPLE, *parts),
            *("--limit", "100", "--sizes", "20", "40"),
        ],
        capture_output=True,
        text=True,
    )

    assert done.returncode == ("FAILED" in done.stdout), done.stderr
    assert not done.stderr
    for line in (
        "whole trace, load and replay                     1,000",
        "first requests, naive loop                         100",
        "first requests, vLLM                         not measured",
        "times naive: ",
        "steady load, replay                                 40",
        "peak MiB: ",
    ):
        assert line in done.stdout


def test_calls_come_back_from_their_file(tmp_path: Path) -> None:
    """Another interpreter reads the very requests, before the very calls."""
    request = Request(
        request_id=7,
        arrival_ns=5,
        prompt=((3, 20), (4, 1)),
        num_prompt_tokens=21,
        outputs=((5, 2), (6, 9)),
        priority=1,
        extra_keys=("salt",),
    )
    calls = [[], [request, request], [], [request]]

    replay_calls.write_calls(tmp_path / "calls.json", {"block_size": 16}, calls)

    assert replay_calls.read_calls(tmp_path / "calls.json") == ({"block_size": 16}, calls)
