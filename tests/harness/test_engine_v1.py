"""Tests for :mod:`harness.engine` with policy v1: skipping ahead changes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.arrivals import FrontDoor, MaxConcurrency, OpenLoop
from harness.engine import Engine
from harness.executors.simulated import SimulatedExecutor
from harness.recorder import Recorder
from harness.request import Request, Run
from harness.schedulers.build import build_scheduler_v1
from harness.schedulers.scheduler_v1 import SchedulerV1
from harness.verify.rows_v1 import RowRecorderV1
from harness.workload import Workload
from profiles.step_time import FS_PER_NS, BatchShape
from results.record import RequestStatus, StepRecord
from results.run_info import Ending, Outcome

TOTALS = (
    "num_prefill_tokens", "num_recomputed_tokens", "num_cached_tokens", "num_admitted",
    "num_preempted_recompute", "num_evictions", "num_regretted_evictions",
    "num_offload_load_blocks", "num_offload_store_blocks", "num_forced_stores",
)  # fmt: skip
TICK_NS, COPY_NS = 100, 35
Settings = dict[str, Any]
Ran = tuple[Outcome, list[dict[str, Any]], Recorder, SchedulerV1]


class WholeStepTime:
    """A step takes 100 ns, one more for each prefilled token; whole ns, growth included.

    So steps end when requests arrive, where ``growth_ns`` is 0, and the times of all
    steps of a stretch follow from its first and its last.
    """

    def __init__(self, growth_ns: int) -> None:
        self._growth_ns = growth_ns

    def step_fs(self, shape: BatchShape) -> int:
        context_ns = shape.num_context_tokens * self._growth_ns
        return (TICK_NS + shape.num_prefill_tokens + context_ns) * FS_PER_NS

    def growth_fs(self, shape: BatchShape) -> int:
        return shape.num_decode_seqs * self._growth_ns * FS_PER_NS

    def swap_fs(self, shape: BatchShape) -> int:
        return 0


def copy_fs(num_blocks: int, *, is_load: bool) -> int:
    """A block takes as long either way."""
    return num_blocks * COPY_NS * FS_PER_NS


class Both:
    """Observes for two."""

    def __init__(self, *observers: Any) -> None:
        self.observers = observers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            for observer in self.observers:
                getattr(observer, name)(*args)

        return call


@st.composite
def prompts(draw: st.DrawFn, earlier: list[Request]) -> list[Run]:
    """Runs that prompts share, or an earlier prompt and the output that followed it."""
    own = st.tuples(st.integers(0, 3), st.integers(1, 14))
    runs = draw(st.lists(own, min_size=1, max_size=3))
    if earlier and draw(st.booleans()):
        before = draw(st.sampled_from(earlier))
        segment, length = draw(st.sampled_from(before.outputs))
        runs = [*before.prompt, (segment, draw(st.integers(1, length))), *runs]
    return runs


def cut(runs: list[Run], num_tokens: int) -> tuple[Run, ...]:
    """The first tokens of these runs."""
    kept = []
    for segment, length in runs:
        kept.append((segment, min(length, num_tokens)))
        num_tokens -= kept[-1][1]
    return tuple(run for run in kept if run[1])


@st.composite
def requests(draw: st.DrawFn, max_model_len: int) -> list[Request]:
    """Requests that share prompts, write alike, have samples and come at any time."""
    made: list[Request] = []
    for request_id in range(draw(st.integers(1, 12))):
        prompt = cut(draw(prompts(made)), max_model_len - 1)
        lengths = draw(st.lists(st.integers(1, 45), min_size=1, max_size=3))
        writer = draw(st.sampled_from([request_id, request_id, 0]))
        made.append(
            Request(
                request_id=request_id,
                arrival_ns=draw(st.integers(0, 80)) * TICK_NS,
                prompt=prompt,
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=tuple((1000 + 10 * writer + k, n) for k, n in enumerate(lengths)),
                priority=draw(st.integers(0, 2)),
                extra_keys=draw(st.sampled_from([(), (), ("salt",)])),
            )
        )
    return made


@st.composite
def knobs(draw: st.DrawFn, has_tier: bool) -> dict[str, Any]:
    """Knobs with which vLLM would start; the pool is small enough for pressure."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    max_model_len = draw(st.integers(30, 80))
    most_blocks = -(-max_model_len // block_size)
    max_num_seqs = draw(st.integers(1, 16))
    is_chunked = draw(st.booleans())
    least_tokens = max_num_seqs if is_chunked else max_model_len
    return {
        "block_size": block_size,
        "num_gpu_blocks": 1 + draw(st.integers(most_blocks // 2, 3 * most_blocks)),
        "enable_prefix_caching": has_tier or draw(st.booleans()),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": least_tokens + draw(st.integers(0, 30)),
        "max_model_len": max_model_len,
        "enable_chunked_prefill": is_chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 5])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "sliding_window": (
            None if has_tier else draw(st.sampled_from([None, None, 9, 20]))
        ),
        "num_cpu_blocks": draw(st.sampled_from([3, 15, 60])) if has_tier else 0,
    }


@st.composite
def scenarios(draw: st.DrawFn, has_tier: bool = False) -> tuple[list[Request], Settings]:
    """Requests, and how they are served."""
    chosen = draw(knobs(has_tier))
    return draw(requests(chosen["max_model_len"])), {
        "knobs": chosen,
        "max_concurrency": draw(st.sampled_from([None, None, 1, 3])),
        "follow": draw(st.booleans()),
        "growth_ns": draw(st.sampled_from([0, 0, 3])),
        "entry_ns": draw(st.sampled_from([0, TICK_NS // 2, 7 * TICK_NS])),
        "max_prompt_tokens": draw(st.sampled_from([1000, 20])),
    }


def run(made: list[Request], chosen: Settings, *, can_repeat: bool) -> Ran:
    """Run requests on the simulated clock, each second one following the one before."""
    parent = [i - 1 if chosen["follow"] and i % 2 else -1 for i in range(len(made))]
    delays = [2 * TICK_NS] * len(made)
    workload = Workload.from_requests(made, parent=parent, delay_ns=delays)
    source: Any = OpenLoop(workload)
    if chosen["max_concurrency"]:
        source = MaxConcurrency(source, chosen["max_concurrency"])
    scheduler = build_scheduler_v1(**chosen["knobs"])
    is_async = chosen["knobs"].get("async_scheduling", False)
    entry_ns = chosen.get("entry_ns", 0)
    recorder = Recorder(
        scheduler, block_size=chosen["knobs"]["block_size"], entry_ns=entry_ns
    )
    max_prompt_tokens = chosen.get("max_prompt_tokens", 1000)
    rows = RowRecorderV1(scheduler)

    def is_sound() -> bool:
        scheduler.check_invariants()
        return True

    engine = Engine(
        FrontDoor(source, max_prompt_tokens, recorder.refused, entry_ns),
        scheduler,
        SimulatedExecutor(
            WholeStepTime(chosen["growth_ns"]),
            copy_fs,
            is_ahead=is_async,
        ),
        Both(recorder, rows),
        num_in_flight=1 + is_async,
        can_repeat=can_repeat,
        barren_after=100,
        after_turn=is_sound,
    )
    return engine.run(), rows.rows, recorder, scheduler


def single_steps(steps: list[StepRecord]) -> Iterator[tuple[Any, ...]]:
    """Each step of every stretch: when, how long, with whom, and the gaps it ended."""
    for step in steps:
        end_ns = step.start_ns
        num_later = step.num_steps - 1
        growth_ns = (step.last_step_ns - step.first_step_ns) // max(1, num_later)
        for place in range(step.num_steps):
            length_ns = step.first_step_ns + place * growth_ns
            end_ns += length_ns
            gaps = dict(zip(step.gap_ns, step.gap_count, strict=True))
            if place:
                gaps = {length_ns: step.num_decode_seqs}
            context = step.num_context_tokens + place * step.num_decode_seqs
            yield end_ns, length_ns, step.num_decode_seqs, context, gaps
        assert end_ns == step.end_ns


def totals(steps: list[StepRecord]) -> dict[str, int]:
    """What all steps add up to."""
    return {name: sum(getattr(step, name) for step in steps) for name in TOTALS}


def assert_same(repeated: Ran, single: Ran) -> None:
    """Every decision, record and total is the same with and without repeating."""
    assert repeated[0] == single[0]
    rows, expected = ([r | {"step": 0} for r in ran[1]] for ran in (repeated, single))
    assert rows == expected
    recorder, stepwise = repeated[2], single[2]
    assert recorder.requests == stepwise.requests
    assert list(single_steps(recorder.steps)) == list(single_steps(stepwise.steps))
    assert totals(recorder.steps) == totals(stepwise.steps)
    last_steps = {step.end_ns: step for step in stepwise.steps}
    for stretch in recorder.steps:
        last = last_steps[stretch.end_ns]
        assert stretch.num_used_blocks_end == last.num_used_blocks_end
        assert stretch.num_cached_blocks_end == last.num_cached_blocks_end


@settings(max_examples=400, deadline=None)
@given(scenarios())
def test_repeating_changes_nothing(scenario: tuple[list[Request], Settings]) -> None:
    """Arrivals inside a repeated stretch find what they would step by step.

    Every decision of every step, every time of every request and all that the records
    of the steps add up to is the same.
    """
    made, chosen = scenario
    repeated = run(made, chosen, can_repeat=True)
    single = run(made, chosen, can_repeat=False)

    assert_same(repeated, single)
    for ran in (repeated, single):
        assert_no_block_overflows(ran, chosen["knobs"]["block_size"])
    outcome, _, recorder, scheduler = repeated
    if outcome.ending is Ending.COMPLETE:
        assert recorder.num_done == len(made)
    assert all(step.num_steps == 1 for step in single[2].steps)
    assert sum(s.num_evictions for s in recorder.steps) == scheduler.num_evictions
    assert scheduler.close() == 0


def test_a_late_dismissal_is_told_at_its_time() -> None:
    """A request whose last sample finishes after another was dismissed leaves then.

    The next call says so, and a batch that could run on does not put that off.
    """
    lengths = [(1,), (1,), (10, 1), (1,), (3,)]
    made = [
        Request(
            request_id=place,
            arrival_ns=0,
            prompt=((0, 7 if place == 2 else 1),),
            num_prompt_tokens=7 if place == 2 else 1,
            outputs=tuple((1000 + 10 * place + k, n) for k, n in enumerate(outputs)),
        )
        for place, outputs in enumerate(lengths)
    ]
    chosen: Settings = {
        "knobs": {
            "block_size": 1,
            "num_gpu_blocks": 16,
            "enable_prefix_caching": False,
            "max_num_seqs": 3,
            "max_num_batched_tokens": 30,
            "max_model_len": 30,
            "enable_chunked_prefill": False,
            "scheduler_reserve_full_isl": False,
            "async_scheduling": True,
        },
        "max_concurrency": None,
        "follow": False,
        "growth_ns": 0,
    }
    repeated, single = (run(made, chosen, can_repeat=c) for c in (True, False))

    assert_same(repeated, single)
    assert repeated[2].requests[2].status is RequestStatus.ABORTED


def assert_no_block_overflows(ran: Ran, block_size: int) -> None:
    """At the first step and at the last, no block holds more tokens than slots."""
    for step in ran[2].steps:
        num_written = (step.num_steps - 1) * step.num_decode_seqs
        num_slots_end = step.num_used_blocks_end * block_size
        assert step.num_used_tokens <= step.num_used_blocks * block_size
        assert step.num_used_tokens + num_written <= num_slots_end


@settings(max_examples=150, deadline=None)
@given(scenarios(has_tier=True))
def test_repeating_changes_nothing_beside_copies(
    scenario: tuple[list[Request], Settings],
) -> None:
    """Copies to and from an offload tier end inside stretches as they do step by step."""
    made, chosen = scenario

    repeated = run(made, chosen, can_repeat=True)

    assert_same(repeated, run(made, chosen, can_repeat=False))
    assert repeated[3].close() == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_store_that_found_no_room_is_offered_again(is_async: bool) -> None:
    """A tier of 3 blocks has room when the first store has ended, inside a stretch."""
    made = [
        Request(
            request_id=i,
            arrival_ns=arrival_ns,
            prompt=((i, num_prompt),),
            num_prompt_tokens=num_prompt,
            outputs=((1000 + i, num_output),),
        )
        for i, (arrival_ns, num_prompt, num_output) in enumerate(
            [(3300, 10, 8), (2900, 12, 6)]
        )
    ]
    chosen: Settings = {
        "knobs": {
            "block_size": 2,
            "num_gpu_blocks": 32,
            "enable_prefix_caching": True,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 8,
            "max_model_len": 46,
            "async_scheduling": is_async,
            "num_cpu_blocks": 3,
        },
        "max_concurrency": None,
        "follow": False,
        "growth_ns": 0,
    }

    repeated = run(made, chosen, can_repeat=True)

    assert totals(repeated[2].steps)["num_offload_store_blocks"] > 0
    assert_same(repeated, run(made, chosen, can_repeat=False))
