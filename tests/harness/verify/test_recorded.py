"""Our v0 policy against the rows recorded from vLLM 0.5.5."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.verify.golden import verify_scenario
from harness.verify.scenario import read_rows

DATA = Path(__file__).parents[2] / "data"
SCENARIOS = sorted(DATA.glob("*/*.scenario.json.gz"))
CHANGED = (
    "v0_chunked_parallel",
    "v0_random_00",
    "v0_random_24",
    "v0_swap_cached",
    "v0_too_long",
)
KEYS = (
    "step", "prefill", "decode", "swap_in", "swap_out", "copy_on_write", "ignored",
    "preempted", "computed_blocks", "free_gpu", "free_cpu", "waiting", "running",
    "swapped", "tables", "finished", "free_gpu_end", "free_cpu_end",
)  # fmt: skip


def rows_of(scenario: Path) -> Path:
    """The rows that lie beside a scenario."""
    return scenario.with_name(scenario.name.replace(".scenario.json", ".rows.jsonl"))


def test_recordings_are_there() -> None:
    """Both folders of recordings are complete, each scenario with its rows."""
    folders = {path.parent.name for path in SCENARIOS}

    assert folders == {"golden", "recorded"}
    assert len(SCENARIOS) >= 60
    assert all(rows_of(path).is_file() for path in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_every_decision_is_vllms(scenario: Path) -> None:
    """One step at a time and repeated, every row is the one that vLLM made."""
    result = verify_scenario(scenario, rows_of(scenario))

    assert result.identical, result.first_divergence
    assert result.steps == len(list(read_rows(rows_of(scenario))))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("draw", range(3))
def test_one_changed_number_is_found(tmp_path: Path, key: str, draw: int) -> None:
    """A single other number in a random row is reported, at that row and key."""
    rng = random.Random(f"{key} {draw}")
    scenario, rows, places = draw_file(rng, key)
    position, (holder, index) = rng.choice(places)
    holder[index] += 1
    changed = tmp_path / "changed.rows.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))

    result = verify_scenario(scenario, changed)

    assert not result.identical
    assert result.steps == position
    found = result.first_divergence
    assert found is not None
    assert [difference["key"] for difference in found["differences"]] == [key]


def draw_file(rng: random.Random, key: str) -> tuple[Path, list[Any], list[Any]]:
    """A scenario whose rows have numbers under the key; its rows, and where they are."""
    for name in rng.sample(CHANGED, len(CHANGED)):
        scenario = DATA / "golden" / f"{name}.scenario.json.gz"
        rows = list(read_rows(rows_of(scenario)))
        places = [(i, place) for i, row in enumerate(rows) for place in numbers(row, key)]
        if places:
            return scenario, rows, places
    raise AssertionError(f"no row of {CHANGED} has a number under {key}")


def numbers(holder: Any, index: Any) -> Iterator[tuple[Any, Any]]:
    """Where the numbers are in ``holder[index]``, as container and index."""
    if isinstance(holder, dict) and index not in holder:
        return
    value = holder[index]
    if isinstance(value, list):
        for position in range(len(value)):
            yield from numbers(value, position)
    elif isinstance(value, int):
        yield holder, index
