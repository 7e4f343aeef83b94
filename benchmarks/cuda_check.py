"""All that only a GPU can tell, checked in under six minutes; one JSON file to send.

Run it with an interpreter that has vLLM and blockbench: ``make cuda-check`` makes one, or
takes yours (``make cuda-check VLLM_PYTHON=/path/to/python``). ``--device cpu`` makes the
checks that need no CUDA. Exit code 1: something failed, and the file says what; 2:
nothing could be checked here. docs/cuda.md says more.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from cuda_checks.checks import TOTAL_S, plan
from cuda_checks.machine import Machine
from cuda_checks.plan import Check, run_plan
from cuda_checks.report import document, line_of, write_report
from cuda_checks.session import Session

OUTPUT = "cuda_check.json"


def main() -> int:
    """Check, print a line for each check, and write the report."""
    given = parse()
    began_s = time.monotonic()
    machine = Machine.ask()
    if why_not := machine.why_not(given.device):
        print(f"error: {why_not}", file=sys.stderr)
        return 2
    for gpu in machine.gpus:
        print(gpu)
    with tempfile.TemporaryDirectory(prefix="blockbench-cuda-check-") as made:
        folder = Path(given.keep or made).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        session = Session(given.device, machine, folder)
        checks = chosen(plan(session), given.only)
        results = run_plan(
            checks,
            total_s=given.limit or TOTAL_S[given.device],
            on_result=lambda r: print(session.shorten(line_of(r)), flush=True),
        )
        report = document(
            results,
            device=given.device,
            machine=machine.document(),
            wall_s=time.monotonic() - began_s,
            limit_s=given.limit or TOTAL_S[given.device],
        )
        write_report(Path(given.output), report, session.shorten)
    wall_s = report["wall_s"]
    print(f"{wall_s:.0f} s; wrote {given.output}: please send it, see docs/cuda.md")
    return int(not report["ok"])


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", metavar="NAMES", help="some checks, as start,exact")
    parser.add_argument("--limit", metavar="S", type=float, help="seconds for all checks")
    parser.add_argument("--keep", metavar="FOLDER", help="leave runs and logs there")
    parser.add_argument("-o", "--output", metavar="FILE", default=OUTPUT)
    return parser.parse_args()


def chosen(checks: list[Check], names: str | None) -> list[Check]:
    """The checks that were asked for, in their order.

    Raises:
        SystemExit: There is none of this name.
    """
    if names is None:
        return checks
    wanted = [name.strip() for name in names.split(",")]
    known = [check.name for check in checks]
    if unknown := [name for name in wanted if name not in known]:
        print(f"error: no check {unknown[0]!r}; {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    return [check for check in checks if check.name in wanted]


if __name__ == "__main__":
    sys.exit(main())
