"""A V0 engine is counted rightly: swaps, copies, preemptions, blocks and cached tokens.

Only vLLM 0.5.5's scheduler runs here, without a model.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.verify.scenario import read_rows

FOLDER = Path(__file__).parent
RECORDINGS = sorted((FOLDER.parent / "data" / "golden").glob("v0_*.scenario.json.gz"))

pytestmark = pytest.mark.vllm


def execute(script: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder with this interpreter."""
    command = [sys.executable, FOLDER / script, *args]
    return subprocess.run(command, capture_output=True, text=True)


loading = execute("reference.py")
if loading.returncode and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    reason = loading.stderr.strip().splitlines()[-1]
    pytest.skip(f"cannot load vLLM: {reason}", allow_module_level=True)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Watch all committed scenarios; return the folder of what was seen."""
    folder = tmp_path_factory.mktemp("watched")
    pairs = [(path, seen_of(path, folder)) for path in RECORDINGS]
    done = execute("watch.py", *(path for pair in pairs for path in pair))
    assert done.returncode == 0, done.stderr
    return folder


def seen_of(scenario: Path, folder: Path) -> Path:
    """Where it lies what was seen of a scenario."""
    return folder / f"{scenario.name.split('.')[0]}.jsonl"


def read_document(scenario: Path) -> dict[str, Any]:
    """A scenario."""
    document: dict[str, Any] = json.loads(gzip.decompress(scenario.read_bytes()))
    return document


def steps_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in which something ran; what is done in others is not lost."""
    return [row for row in rows if row.get("prefill") or row.get("decode")]


@pytest.mark.parametrize("scenario", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_each_step_is_counted_as_vllm_decided_it(watched: Path, scenario: Path) -> None:
    """Queues, free blocks, copies and preemptions are those of the recorded rows."""
    config = read_document(scenario)["config"]
    name = scenario.name.replace(".scenario.json", ".rows.jsonl")
    rows = [r for r in read_rows(scenario.with_name(name), "v0") if "error" not in r]
    lines = seen_of(scenario, watched).read_text().splitlines()
    *steps, last = map(json.loads, lines)

    assert [
        (
            s["num_waiting"],
            s["num_running"],
            s["num_swapped"],
            config["num_gpu_blocks"] - s["num_used_blocks"],
            config["num_cpu_blocks"] - s["num_used_cpu_blocks"],
            s["num_swap_in_blocks"],
            s["num_swap_out_blocks"],
            s["num_copy_on_write"],
        )
        for s in steps
    ] == [
        (
            r["waiting"],
            r["running"],
            r["swapped"],
            r["free_gpu"],
            r["free_cpu"],
            len(r["swap_in"]),
            len(r["swap_out"]),
            len(r["copy_on_write"]),
        )
        for r in steps_of(rows)
    ]
    counters = last["counters"]
    assert counters["preemptions"] == sum(r["preempted"] for r in rows)
    assert counters["swap_out_blocks"] == sum(len(r["swap_out"]) for r in rows)
    assert counters["copy_on_write_blocks"] == sum(len(r["copy_on_write"]) for r in rows)


@pytest.mark.parametrize("scenario", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_each_request_has_its_tokens(watched: Path, scenario: Path) -> None:
    """Outputs are as long as they became; cached tokens are those of first admissions."""
    document = read_document(scenario)
    name = scenario.name.replace(".scenario.json", ".rows.jsonl")
    rows = list(read_rows(scenario.with_name(name), "v0"))
    last = json.loads(seen_of(scenario, watched).read_text().splitlines()[-1])
    size = document["config"]["block_size"]
    first_cached: dict[int, int] = {}
    for row in rows:
        computed = dict(row.get("computed_blocks", ()))
        for number, _ in row.get("prefill", ()):
            first_cached.setdefault(number, computed.get(number, 0) * size)
    lengths = {r["id"]: sum(r["output_tokens"]) for r in document["requests"]}

    for request in last["requests"]:
        number = request["request_id"]
        assert request["num_cached_tokens"] == first_cached.get(number, 0)
        if request["status"] == "finished" and request["reason"] == "":
            assert request["num_output_tokens"] <= lengths[number]
            assert request["first_token_ns"] <= request["finished_ns"]
