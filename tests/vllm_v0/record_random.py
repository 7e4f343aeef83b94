"""Record random scenarios.

``python record_random.py FOLDER --num 300 --first 0`` writes for each seed
``random_SEED.scenario.json.gz``, ``random_SEED.rows.jsonl.gz``, and into ``index.jsonl``
the behaviours that it shows. A seed alone decides what is written for it.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from behaviour import Watch
from record import Recorder, write_lines
from reference import MissingReferenceError, Reference, load
from scenarios import generate

MIN_ROWS = 8
MAX_ROWS = 1_000
INDEX = "index.jsonl"


@cache
def _watched() -> tuple[Reference, Watch]:
    """The reference of this process, and what watches it."""
    vllm = load()
    return vllm, Watch(vllm)


def record_seed(folder: Path, seed: int) -> dict[str, Any]:
    """Record the seed's first scenario that is neither trivial nor endless."""
    vllm, watch = _watched()
    for attempt in range(20):
        scenario = generate(seed, attempt)
        recorder = Recorder(vllm, scenario)
        rows = recorder.run(MAX_ROWS)
        behaviours = watch.counts(recorder)
        if len(rows) >= MIN_ROWS and not recorder.is_cut:
            name = scenario["name"]
            write_lines(folder / f"{name}.scenario.json.gz", [scenario])
            write_lines(folder / f"{name}.rows.jsonl.gz", rows)
            return {"name": name, "rows": len(rows), "behaviours": behaviours}
    raise AssertionError(f"seed {seed} gives no usable scenario in 20 attempts")


def record_all(folder: Path, seeds: range) -> None:
    """Record all seeds, on all CPUs; the index follows their order."""
    folder.mkdir(parents=True, exist_ok=True)
    record = partial(record_seed, folder)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        write_lines(folder / INDEX, pool.map(record, seeds, chunksize=4))


def main() -> None:
    """Record the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    try:
        load()
    except MissingReferenceError as error:
        sys.exit(str(error))
    record_all(args.folder, range(args.first, args.first + args.num))


if __name__ == "__main__":
    main()
