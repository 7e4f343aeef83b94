"""Tests for :mod:`harness.analysis.chains`: said more briefly, the same is decided."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.chains import with_long_runs, without_names
from harness.arrivals import FrontDoor, OpenLoop
from harness.engine import Engine
from harness.executors.scripted import ScriptedExecutor
from harness.request import NOBODY_ELSES, Request, Run
from harness.schedulers.build import build_scheduler_v1
from harness.verify.rows_v1 import RowRecorderV1
from harness.workload import Workload


def request(
    request_id: int, prompt: Sequence[Run], outputs: Sequence[Run], arrival_ns: int = 0
) -> Request:
    return Request(
        request_id=request_id,
        arrival_ns=arrival_ns,
        prompt=tuple(prompt),
        num_prompt_tokens=sum(length for _, length in prompt),
        outputs=tuple(outputs),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw prompts that go on where earlier ones ended, were cut or wrote something."""
    made: list[Request] = []
    for number in range(draw(st.integers(1, 9))):
        runs: list[Run] = []
        if made and draw(st.booleans()):
            earlier = draw(st.sampled_from(made))
            known = [*earlier.prompt, earlier.outputs[0]]
            runs = list(known[: draw(st.integers(1, len(known)))])
            if draw(st.booleans()):
                runs[-1] = (runs[-1][0], draw(st.integers(1, runs[-1][1])))
        for _ in range(draw(st.integers(0 if runs else 1, 3))):
            own = st.just(100 + 10 * number) | st.integers(0, 6)
            runs.append((draw(own), draw(st.sampled_from([4, 4, 4, 1, 2, 7]))))
        writer = draw(st.sampled_from([number, 0]))
        num_samples = draw(st.sampled_from([1, 1, 2]))
        outputs = [
            (1000 + 10 * writer + sample, draw(st.integers(1, 12)))
            for sample in range(num_samples)
        ]
        made.append(request(number, runs, outputs, draw(st.integers(0, 30))))
    return Workload.from_requests(made)


def tokens(runs: Sequence[Run]) -> list[tuple[int, int]]:
    return [(segment, place) for segment, length in runs for place in range(length)]


def num_common(mine: list[Any], others: list[Any]) -> int:
    pairs = zip(mine, others, strict=False)
    return next(
        (place for place, (a, b) in enumerate(pairs) if a != b),
        min(len(mine), len(others)),
    )


@settings(max_examples=300)
@given(workloads())
def test_prompts_agree_on_as_many_tokens_as_before(workload: Workload) -> None:
    """Chaining changes no length, and no number of tokens that two requests share."""
    brief = with_long_runs(workload)
    rows = range(len(workload))
    before, after = (
        [tokens((*w.prompts.runs(i), *w.outputs.runs(i)[:1])) for i in rows]
        for w in (workload, brief)
    )

    assert list(map(len, after)) == list(map(len, before))
    for i in rows:
        for j in rows:
            assert num_common(after[i], after[j]) == num_common(before[i], before[j])


def rows_of(workload: Workload, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Decisions for a workload whose times are steps, evictions counted with them."""
    scheduler = build_scheduler_v1(**knobs)
    recorder = RowRecorderV1(scheduler)
    is_ahead = bool(knobs["async_scheduling"])
    Engine(
        FrontDoor(OpenLoop(workload), knobs["max_model_len"] - 1, lambda request: None),
        scheduler,
        ScriptedExecutor(is_ahead=is_ahead),
        recorder,
        num_in_flight=1 + is_ahead,
        barren_after=50,
        after_turn=lambda: scheduler.check_invariants() is None,
    ).run()
    evictions = scheduler.num_evictions, scheduler.num_regretted_evictions
    return [*recorder.rows, {"evictions": evictions}]


@settings(max_examples=300, deadline=None)
@given(
    workloads(),
    st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([1, 2, 4, 8]),
            "num_gpu_blocks": st.integers(5, 30),
            "enable_prefix_caching": st.just(True),
            "max_num_seqs": st.integers(1, 6),
            "max_num_batched_tokens": st.sampled_from([4, 16, 64]),
            "max_model_len": st.sampled_from([24, 64]),
            "async_scheduling": st.booleans(),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
            "sliding_window": st.sampled_from([None, None, 5]),
        }
    ),
)
def test_decisions_are_those_for_the_whole_workload(
    workload: Workload, knobs: dict[str, Any]
) -> None:
    """Block for block, whether contents that nobody else has have a name or not."""
    brief = without_names(with_long_runs(workload))

    assert rows_of(brief, knobs) == rows_of(workload, knobs)


def test_blocks_that_always_follow_one_another_become_one_run() -> None:
    """What requests share takes one run, and what each has alone another."""
    shared = [(1, 4), (2, 4), (3, 4)]
    made = [request(i, [*shared, (10 + i, 4)], [(100 + i, 1)]) for i in range(3)]

    brief = with_long_runs(Workload.from_requests(made))

    assert [len(brief.prompts.runs(i)) for i in range(3)] == [1, 2, 2]


def test_samples_share_a_prompt_that_nobody_else_has() -> None:
    """Where a request has several samples its prompt keeps its name."""
    made = [
        request(0, [(1, 4)], [(100, 1)]),
        request(1, [(2, 4)], [(101, 1), (102, 1)]),
    ]

    brief = without_names(Workload.from_requests(made))

    assert brief.prompts.runs(0) == ((NOBODY_ELSES, 4),)
    assert brief.prompts.runs(1) == ((2, 4),)


@pytest.mark.parametrize("num_blocks", [6, 200])
def test_numbers_of_contents_are_used_again(num_blocks: int) -> None:
    """However many requests come and go, contents that are over cost no memory."""
    made = [request(i, [(i, 16)], [(1000 + i, 8)], 40 * i) for i in range(300)]
    workload = without_names(Workload.from_requests(made))
    scheduler = build_scheduler_v1(
        block_size=4,
        num_gpu_blocks=num_blocks + 1,
        enable_prefix_caching=True,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
    )

    Engine(
        OpenLoop(workload), scheduler, ScriptedExecutor(), RowRecorderV1(scheduler)
    ).run()

    assert scheduler.manager.index is not None
    assert scheduler.manager.index.num_contents <= 3 * num_blocks + 32
