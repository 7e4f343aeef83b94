"""Record what the scheduler of the installed vLLM decides.

``python record.py SCENARIO -o ROWS`` replays a scenario, in the formats of docs/v1.md.
With several scenarios ROWS is a folder. A name that ends in .gz is compressed.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.verify.installed_vllm import InstalledVllm
from harness.verify.scenario import Scenario, StepArrivals, read_scenario

Row = dict[str, Any]
STUCK_AFTER_CALLS = 8


def record(scenario: Scenario, max_rows: int | None = None) -> list[Row]:
    """The rows of a scenario, an ``error`` row last where vLLM waits for ever.

    That is taken for granted after several calls in a row that scheduled nothing. With
    ``max_rows`` a recording ends there: vLLM can also preempt and resume for ever.
    """
    vllm = InstalledVllm(transfer_steps=scenario.transfer_steps, **scenario.knobs)
    arrivals = StepArrivals(scenario.requests)
    rows: list[Row] = []
    step = num_idle = 0
    while arrivals.next_ns() is not None or vllm.has_unfinished:
        if step and not vllm.has_unfinished:
            step = max(step, arrivals.next_ns() or 0)
        for request in arrivals.pop_due(step):
            vllm.add(request)
        row = {"step": step} | vllm.schedule()
        row["finished"], row["free_end"] = vllm.commit()
        rows.append(row)
        num_idle = 0 if row["scheduled"] else num_idle + ("blocks" in row)
        if arrivals.next_ns() is None and num_idle >= STUCK_AFTER_CALLS:
            return [*rows, {"step": step, "error": "stuck"}]
        if max_rows is not None and len(rows) >= max_rows:
            break
        step += 1
    return rows


def rows_name(scenario: Path) -> str:
    """The name of a scenario's rows."""
    return scenario.name.replace(".scenario.json", ".rows.jsonl")


def write_lines(path: Path, documents: Iterable[Any]) -> None:
    """One JSON document a line, the same bytes each time."""
    lines = (json.dumps(document, separators=(",", ":")) for document in documents)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def main() -> None:
    """Record the scenarios that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", metavar="SCENARIO", type=Path, nargs="+")
    parser.add_argument("-o", "--output", metavar="ROWS", type=Path, required=True)
    args = parser.parse_args()
    for scenario in args.scenarios:
        is_folder = len(args.scenarios) > 1
        output = args.output / rows_name(scenario) if is_folder else args.output
        try:
            write_lines(output, record(read_scenario(scenario)))
        except HarnessError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
