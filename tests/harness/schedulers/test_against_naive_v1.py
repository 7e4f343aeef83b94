"""Our v1 policy against the naive one, which steps every step and touches every block."""

import importlib
import sys
from collections import deque
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.schedulers.batch import Batch
from harness.schedulers.build import build_scheduler_v1
from harness.verify.golden import replay_rows
from harness.verify.scenario import Scenario, StepArrivals, read_rows, read_scenario

GOLDEN = Path(__file__).parents[2] / "data" / "golden"

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
naive_v1: Any = importlib.import_module("naive_v1")

Document = dict[str, Any]
Runs = list[list[int]]

MAX_ROWS = 600  # equals may preempt each other for ever
SHARED = 3  # segments that any prompt may begin with; then one a prompt, one an output


@st.composite
def configs(draw: st.DrawFn) -> Document:
    """Knobs with which vLLM would start, and a pool that a few requests fill."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    max_model_len = draw(st.integers(8, 48))
    num_fitting = -(-max_model_len // block_size)
    is_chunked = draw(st.booleans())
    least_tokens = 6 if is_chunked else max_model_len
    config = {
        "block_size": block_size,
        "num_gpu_blocks": 1 + num_fitting + draw(st.integers(0, num_fitting)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": least_tokens + draw(st.integers(0, 26)),
        "max_model_len": max_model_len,
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "watermark": draw(st.sampled_from([0.0, 0.05, 0.2])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 7])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "chunked_prefill": is_chunked,
    }
    if draw(st.booleans()):
        config["sliding_window"] = draw(st.integers(2, max_model_len))
    if draw(st.booleans()):
        config["scheduling_policy"] = "priority"
    return config


@st.composite
def prompts(draw: st.DrawFn, earlier: list[Document], num_requests: int) -> Runs:
    """A prompt of its own, an earlier one again, or one that continues an output."""
    number = len(earlier)
    begin: Runs = [[draw(st.integers(0, SHARED - 1)), draw(st.integers(0, 20))]]
    if earlier and draw(st.booleans()):
        parent = draw(st.sampled_from(earlier))
        begin = [list(run) for run in parent["prompt"]]
        if draw(st.booleans()):
            output = SHARED + num_requests + parent["id"]
            begin.append([output, draw(st.integers(1, parent["output_tokens"][0]))])
    own = [SHARED + number, draw(st.sampled_from([0, 1, 5, 17]))]
    return [*begin, own]


def cut(runs: Runs, num_tokens: int) -> Runs:
    """The first tokens of a prompt, at least one."""
    kept = []
    for segment, length in runs:
        kept.append([segment, min(length, num_tokens)])
        num_tokens -= kept[-1][1]
    if not any(length for _, length in kept):
        kept[0][1] = 1
    return [run for run in kept if run[1]]


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """A scenario as it would be recorded: all knobs, twins, bursts, gaps, few blocks."""
    config = draw(configs())
    num_requests = draw(st.integers(1, 10))
    requests: list[Document] = []
    step = 0
    for number in range(num_requests):
        step += draw(st.sampled_from([0, 0, 0, 1, 2, 5, 40]))
        runs = draw(prompts(requests, num_requests))
        request = {
            "id": number,
            "step": step,
            "prompt": cut(runs, config["max_model_len"] - 1),
            "output_tokens": [draw(st.integers(1, 24))],
            "priority": draw(st.integers(0, 2)),
            "cache_salt": draw(st.sampled_from(["", "", "a"])),
        }
        requests.append(request)
    names = [f"s{number}" for number in range(SHARED)]
    names += [f"u{number}" for number in range(num_requests)]
    names += [f"o{number}.0" for number in range(num_requests)]
    return {"policy": "v1", "config": config, "segments": names, "requests": requests}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where scenarios are written."""
    return tmp_path_factory.mktemp("scenarios")


def scenario_of(document: Document, folder: Path) -> Scenario:
    """The scenario that the package reads."""
    path = folder / "drawn.scenario.json"
    path.write_bytes(orjson.dumps(document))
    return read_scenario(path)


def test_the_naive_decisions_are_vllms() -> None:
    """Where nothing is offloaded the naive rows are the recorded ones."""
    num_compared = 0
    for path in sorted(GOLDEN.glob("v1_*.scenario.json.gz")):
        scenario = read_scenario(path)
        if scenario.knobs["num_cpu_blocks"]:
            continue
        recorded = path.with_name(path.name.replace(".scenario.json", ".rows.jsonl"))

        assert naive_v1.rows(scenario) == list(read_rows(recorded, "v1")), path.name
        num_compared += 1

    assert num_compared >= 26


@pytest.mark.parametrize("can_repeat", [False, True])
@settings(max_examples=200)
@given(document=documents())
def test_every_row_is_the_naive_ones(
    document: Document, folder: Path, can_repeat: bool
) -> None:
    """Step by step and repeated, each decision is the naive scheduler's."""
    scenario = scenario_of(document, folder)
    theirs = naive_v1.rows(scenario, max_rows=MAX_ROWS)

    ours = replay_rows(scenario, can_repeat=can_repeat, max_rows=len(theirs) + 1)

    for mine, naive in zip(ours, theirs, strict=False):
        assert {key: mine.get(key) for key in naive} == naive
    assert len(ours[:MAX_ROWS]) == len(theirs)


@settings(max_examples=100)
@given(document=documents())
def test_every_block_is_free_or_owned(document: Document, folder: Path) -> None:
    """After every call all blocks are accounted for, and in the end all are free."""
    scenario = scenario_of(document, folder)
    scheduler = build_scheduler_v1(**scenario.knobs)
    arrivals = StepArrivals(scenario.requests)
    num_ahead = int(document["config"]["async_scheduling"])
    in_flight: deque[Batch] = deque()
    step = 0
    while step < MAX_ROWS and (
        scheduler.has_unfinished or arrivals.next_ns() is not None
    ):
        for request in arrivals.pop_due(step):
            scheduler.add(request)
        batch = scheduler.schedule()
        scheduler.check_invariants()
        if not batch.is_idle:
            in_flight.append(batch)
        if in_flight and (batch.is_idle or len(in_flight) > num_ahead):
            scheduler.commit(in_flight.popleft())
            scheduler.check_invariants()
        step += 1

    assert scheduler.close() == 0
