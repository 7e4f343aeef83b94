"""Choose, of random recordings, a few that show every behaviour several times.

``python choose.py FROM TO`` copies the chosen of record_random.py's folder and prints a
Markdown table of which recording shows what.
"""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from behaviour import BEHAVIOURS
from record_random import INDEX

NUM_EACH = 6
MIN_ROWS = 40
BYTES = 20_000  # what a file less is worth


def choose(folder: Path, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Recordings, until each behaviour is there often enough, rarest behaviours first.

    Of those that show the behaviour, the one that shows the most of what is still missing
    for its size is taken.
    """
    index = [entry for entry in index if entry["rows"] >= MIN_ROWS]
    common = Counter(name for entry in index for name in entry["behaviours"])
    missing = {name: min(NUM_EACH, common[name]) for name in BEHAVIOURS}
    chosen: list[dict[str, Any]] = []
    for name in sorted(missing, key=lambda name: common[name]):
        while missing[name] > 0:
            left = [e for e in index if name in e["behaviours"] and e not in chosen]
            best = max(left, key=lambda e: _worth(folder, e, missing))
            chosen.append(best)
            for shown in best["behaviours"]:
                missing[shown] -= 1
    return chosen


def _worth(folder: Path, entry: dict[str, Any], missing: dict[str, int]) -> float:
    num_missing = sum(missing[name] > 0 for name in entry["behaviours"])
    return num_missing / (BYTES + sum(f.stat().st_size for f in _files(folder, entry)))


def _files(folder: Path, entry: dict[str, Any]) -> list[Path]:
    ends = ("scenario.json.gz", "rows.jsonl.gz")
    return [folder / f"{entry['name']}.{end}" for end in ends]


def main() -> None:
    """Copy what is chosen; print the table."""
    source, target = map(Path, sys.argv[1:])
    index = [json.loads(line) for line in (source / INDEX).read_text().splitlines()]
    target.mkdir(parents=True, exist_ok=True)
    print("| scenario | rows | shows |\n|---|---|---|")
    for entry in sorted(choose(source, index), key=lambda entry: entry["name"]):
        for file in _files(source, entry):
            shutil.copy(file, target)
        print(f"| {entry['name']} | {entry['rows']} | {', '.join(entry['behaviours'])} |")


if __name__ == "__main__":
    main()
