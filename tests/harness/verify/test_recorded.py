"""Our policies against rows that vLLM made: v0 of 0.5.5, v1 of 0.32."""

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
CHANGED = {
    "v0": (
        "v0_chunked_parallel",
        "v0_random_00",
        "v0_random_24",
        "v0_swap_cached",
        "v0_too_long",
    ),
    "v1": (
        "v1_block1",
        "v1_random_09",
        "v1_random_15",
        "v1_random_27",
        "v1_offload_small",
        "v1_sliding_window",
    ),
}
KEYS = {
    "v0": (
        "step", "prefill", "decode", "swap_in", "swap_out", "copy_on_write", "ignored",
        "preempted", "computed_blocks", "free_gpu", "free_cpu", "waiting", "running",
        "swapped", "tables", "finished", "free_gpu_end", "free_cpu_end",
    ),
    "v1": (
        "step", "scheduled", "new", "resumed", "preempted", "blocks", "copy_on_write",
        "free", "waiting", "running", "finished", "free_end", "offload_store",
        "offload_load", "flushed",
    ),
}  # fmt: skip


def rows_of(scenario: Path) -> Path:
    """The rows that lie beside a scenario."""
    return scenario.with_name(scenario.name.replace(".scenario.json", ".rows.jsonl"))


def recorded_rows(scenario: Path) -> list[dict[str, Any]]:
    """The rows of a scenario."""
    return list(read_rows(rows_of(scenario), policy_of(scenario)))


def policy_of(scenario: Path) -> str:
    """The policy by which recordings of v1 are named; all others are of v0."""
    return "v1" if scenario.name.startswith("v1_") else "v0"


def test_recordings_are_there() -> None:
    """Both folders of recordings are complete, each scenario with its rows."""
    folders = {path.parent.name for path in SCENARIOS}
    policies = [policy_of(path) for path in SCENARIOS]

    assert folders == {"golden", "recorded"}
    assert policies.count("v0") >= 60
    assert policies.count("v1") >= 33
    assert all(rows_of(path).is_file() for path in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_every_decision_is_vllms(scenario: Path) -> None:
    """One step at a time and repeated, every row is the one that vLLM made."""
    result = verify_scenario(scenario, rows_of(scenario))

    assert result.identical, result.first_divergence
    assert result.steps == len(recorded_rows(scenario))


@pytest.mark.parametrize(
    ("policy", "key"), [(policy, key) for policy in KEYS for key in KEYS[policy]]
)
@pytest.mark.parametrize("draw", range(3))
def test_one_changed_number_is_found(
    tmp_path: Path, policy: str, key: str, draw: int
) -> None:
    """A single other number in a random row is reported, at that row and key."""
    rng = random.Random(f"{key} {draw}")
    scenario, rows, places = draw_file(rng, policy, key)
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


def draw_file(
    rng: random.Random, policy: str, key: str
) -> tuple[Path, list[Any], list[Any]]:
    """A scenario whose rows have numbers under the key; its rows, and where they are."""
    names = CHANGED[policy]
    for name in rng.sample(names, len(names)):
        scenario = DATA / "golden" / f"{name}.scenario.json.gz"
        rows = recorded_rows(scenario)
        places = [(i, place) for i, row in enumerate(rows) for place in numbers(row, key)]
        if places:
            return scenario, rows, places
    raise AssertionError(f"no row of {names} has a number under {key}")


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
