"""The scripts under benchmarks/ still run."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_repeat_speed_prints_a_ratio() -> None:
    """Both ways of the bundled trace are measured in one run, with equal steps."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "repeat_speed.py"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "25,576 steps" in done.stdout
    assert "ratio" in done.stdout


def test_load_trace_prints_time_and_memory() -> None:
    """The bundled trace is loaded, and what that took is said."""
    trace = BENCHMARKS.parent / "examples" / "chat_1000.jsonl"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "load_trace.py", trace],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "1,000 requests" in done.stdout
