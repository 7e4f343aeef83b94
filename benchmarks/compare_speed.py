"""What a comparison costs beside its arms: one command against a run of each.

Run from the repository root::

    .venv/bin/python benchmarks/compare_speed.py [TRACE] [--repeat N]

Without ``TRACE``: Mooncake's conversations, whole, from ``BLOCKBENCH_DATA``. Prefix
caching off and on, with the defaults of ``blockbench run``. Each arm is run alone and
then both are compared, as a person would type it, in a folder of their own. Prints the
wall time of the comparison over the sum of its arms divided by the CPUs; exits with 1
above the limit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.parallel import default_jobs

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
MOONCAKE = DATA / "traces" / "mooncake" / "conversation_trace.jsonl"

MOST_TIMES = 1.3
ARMS = ("--no-enable-prefix-caching", "--enable-prefix-caching")


def wall_s(folder: str, *args: str) -> float:
    """Seconds that a command takes, its start included."""
    blockbench = str(Path(sys.executable).with_name("blockbench"))
    started = time.perf_counter()
    subprocess.run([blockbench, *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(trace: str) -> float:
    """Run the arms, then the comparison, and print both; the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        arms = [wall_s(folder, "run", trace, flag) for flag in ARMS]
        compared = wall_s(folder, "compare", trace)
    share = sum(arms) / min(default_jobs(), len(arms))
    ratio = compared / share
    parts = " + ".join(f"{arm:.2f}" for arm in arms)
    print(
        f"arms {parts} s, on {default_jobs()} CPUs {share:.2f} s; comparison"
        f" {compared:.2f} s: {ratio:.2f}x"
    )
    return ratio


def main() -> None:
    """Measure as often as was asked for; the best counts, as other work only slows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", nargs="?", default=str(MOONCAKE))
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    trace = str(Path(args.trace).resolve())
    ratio = min(measure(trace) for _ in range(args.repeat))
    print(f"best {ratio:.2f}x (limit {MOST_TIMES}x)")
    if ratio > MOST_TIMES:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
