"""Record random scenarios.

``python record_random.py FOLDER --num 200 --first 0`` writes for each seed
``random_SEED.scenario.json.gz`` and ``random_SEED.rows.jsonl.gz``. A seed alone decides
what is written for it.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from record import record, write_lines
from scenarios import generate

from harness.errors import HarnessError
from harness.verify.scenario import read_scenario

MIN_ROWS = 8
MAX_ROWS = 1_000


def record_seed(folder: Path, seed: int) -> None:
    """Record the seed's first scenario that is neither trivial nor endless."""
    for attempt in range(20):
        scenario = generate(seed, attempt)
        path = folder / f"{scenario['name']}.scenario.json.gz"
        write_lines(path, [scenario])
        rows = record(read_scenario(path), MAX_ROWS)
        if MIN_ROWS <= len(rows) < MAX_ROWS:
            write_lines(folder / f"{scenario['name']}.rows.jsonl.gz", rows)
            return
    raise AssertionError(f"seed {seed} gives no usable scenario in 20 attempts")


def record_all(folder: Path, seeds: range) -> None:
    """Record all seeds, on all CPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    record = partial(record_seed, folder)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for _ in pool.map(record, seeds, chunksize=8):
            pass


def main() -> None:
    """Record the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    try:
        record_all(args.folder, range(args.first, args.first + args.num))
    except HarnessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
