"""Seconds and memory that loading a trace takes.

Run from the repository root: ``.venv/bin/python benchmarks/load_trace.py TRACE``.
"""

import resource
import sys
import time
from pathlib import Path

from harness.traces import open_trace


def peak_mb() -> float:
    """Most memory this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Load the trace named on the command line and print what it took."""
    before_mb, started = peak_mb(), time.perf_counter()
    workload = open_trace(Path(sys.argv[1]))
    wall_s = time.perf_counter() - started
    print(
        f"{workload.name}: {len(workload):,} requests,"
        f" {int(workload.input_tokens.sum()):,} prompt tokens:"
        f" {wall_s:.2f} s, {peak_mb() - before_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
