"""Tests for :mod:`harness.engine`: skipping ahead changes nothing."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.block_space_manager import BlockSpaceManager
from harness.arrivals import FrontDoor, MaxConcurrency, OpenLoop
from harness.engine import Engine
from harness.executors.executor import Execution
from harness.executors.scripted import ScriptedExecutor
from harness.executors.simulated import SimulatedExecutor, TransferTime
from harness.recorder import Recorder
from harness.request import Request
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Finished,
    PreemptionMode,
    Scheduled,
    Transfer,
    TransferId,
)
from harness.schedulers.scheduler_v0 import SchedulerV0
from harness.verify.rows_v0 import RowRecorderV0
from harness.workload import Workload
from profiles.step_time import FS_PER_NS, BatchShape
from results.columns import Columns
from results.kv_usage import kv_usage
from results.record import StepRecord
from results.run_info import Ending, Outcome


class LinearStepTime:
    """A step takes 900 ns, more for each sequence, prefilled token and context token."""

    def step_fs(self, shape: BatchShape) -> int:
        tokens = shape.num_prefill_tokens * 7 + shape.num_swap_blocks * 40
        return (900 + tokens + shape.num_decode_seqs) * FS_PER_NS + (
            shape.num_context_tokens * 1_234_567
        )

    def growth_fs(self, shape: BatchShape) -> int:
        return shape.num_decode_seqs * 1_234_567

    def swap_fs(self, shape: BatchShape) -> int:
        return shape.num_swap_blocks * 40 * FS_PER_NS


def copies(block_ns: int) -> TransferTime:
    """A block takes so long, either way."""

    def transfer_fs(num_blocks: int, *, is_load: bool) -> int:
        return num_blocks * block_ns * FS_PER_NS

    return transfer_fs


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
def requests(draw: st.DrawFn) -> list[Request]:
    """Draw requests that share prompts, sample several times and arrive at any time."""
    made = []
    for request_id in range(draw(st.integers(1, 14))):
        runs = draw(
            st.lists(
                st.tuples(st.integers(0, 3), st.integers(1, 14)), min_size=1, max_size=3
            )
        )
        lengths = draw(st.lists(st.integers(1, 45), min_size=1, max_size=3))
        writer = draw(st.sampled_from([request_id, 0]))  # some write what others write
        outputs = [(1000 + 10 * writer + k, n) for k, n in enumerate(lengths)]
        made.append(
            Request(
                request_id=request_id,
                arrival_ns=draw(st.integers(0, 60_000)),
                prompt=tuple(runs),
                num_prompt_tokens=sum(n for _, n in runs),
                outputs=tuple(outputs),
            )
        )
    return made


@st.composite
def scheduler_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw pools and knobs, small enough for pressure."""
    return {
        "pool": (
            draw(st.sampled_from([1, 2, 4, 8])),
            draw(st.integers(8, 60)),
            draw(st.sampled_from([0, 20, 200])),
            0.01,
            draw(st.booleans()),
        ),
        "knobs": {
            "max_num_seqs": draw(st.integers(2, 24)),
            "max_num_batched_tokens": draw(st.integers(3, 80)),
            "max_model_len": draw(st.integers(30, 80)),
            "enable_chunked_prefill": draw(st.booleans()),
            "preemption_mode": draw(st.sampled_from([None, *PreemptionMode])),
        },
        "max_concurrency": draw(st.sampled_from([None, 1, 3])),
        "follow": draw(st.booleans()),
        "entry_ns": draw(st.sampled_from([0, 1, 950, 20_000])),
        "max_prompt_tokens": draw(st.sampled_from([1000, 20])),
    }


def run(
    made: list[Request], chosen: dict[str, Any], *, can_repeat: bool
) -> tuple[Outcome, list[dict[str, Any]], Recorder, SchedulerV0]:
    """Run requests on the simulated clock, each second one following the one before."""
    parent = [i - 1 if chosen["follow"] and i % 2 else -1 for i in range(len(made))]
    workload = Workload.from_requests(made, parent=parent, delay_ns=[777] * len(made))
    source: Any = OpenLoop(workload)
    if chosen["max_concurrency"]:
        source = MaxConcurrency(source, chosen["max_concurrency"])
    scheduler = SchedulerV0(BlockSpaceManager(*chosen["pool"]), **chosen["knobs"])
    entry_ns = chosen.get("entry_ns", 0)
    recorder = Recorder(scheduler, block_size=chosen["pool"][0], entry_ns=entry_ns)
    max_prompt_tokens = chosen.get("max_prompt_tokens", 1000)
    rows = RowRecorderV0(scheduler)
    engine = Engine(
        FrontDoor(source, max_prompt_tokens, recorder.refused, entry_ns),
        scheduler,
        SimulatedExecutor(LinearStepTime()),
        Both(recorder, rows),
        can_repeat=can_repeat,
        barren_after=100,
        after_turn=lambda: scheduler.check_invariants() is None,
    )
    return engine.run(), rows.rows, recorder, scheduler


@settings(max_examples=250, deadline=None)
@given(requests(), scheduler_settings())
def test_repeating_changes_nothing(made: list[Request], chosen: dict[str, Any]) -> None:
    """Arrivals inside a repeated stretch find what they would step by step.

    Every decision of every step and every time of every request is the same.
    """
    outcome, rows, recorder, scheduler = run(made, chosen, can_repeat=True)
    expected = run(made, chosen, can_repeat=False)

    assert outcome == expected[0]
    assert [row | {"step": 0} for row in rows] == [
        row | {"step": 0} for row in expected[1]
    ]
    assert recorder.requests == expected[2].requests
    assert sum(s.num_steps for s in recorder.steps) == len(expected[2].steps)
    if outcome.ending is Ending.COMPLETE:
        assert recorder.num_done == len(made)
    for record in recorder.requests:
        assert record.queued_ns == record.arrival_ns + chosen["entry_ns"]
        assert (record.first_scheduled_ns or record.queued_ns) >= record.queued_ns
    scheduler.close()


def test_repeating_takes_fewer_calls() -> None:
    """One request of 500 tokens needs a handful of calls, not 500."""
    only = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 5),),
        num_prompt_tokens=5,
        outputs=((2, 500),),
    )
    chosen = {
        "pool": (16, 100, 0, 0.01, False),
        "knobs": {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 4096,
            "max_model_len": 4096,
        },
        "max_concurrency": None,
        "follow": False,
    }

    _, rows, recorder, _ = run([only], chosen, can_repeat=True)

    assert len(rows) == 500
    assert [step.num_steps for step in recorder.steps] == [1, 499]


# -- transfers that run beside the batches -----------------------------------------------


class LoadingScheduler:
    """Loads each request's blocks first, then decodes all that are loaded together."""

    def __init__(self) -> None:
        self.loading: dict[TransferId, Request] = {}
        self.waiting: list[Request] = []
        self.left: dict[int, int] = {}
        self.log: list[tuple[int, ...]] = []

    @property
    def has_unfinished(self) -> bool:
        return bool(self.loading or self.waiting or self.left)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> Batch:
        batch = Batch()
        for request in self.waiting:
            number = request.request_id
            copy = Transfer(number, request.num_prompt_tokens)
            batch.transfers = (*batch.transfers, copy)
            self.loading[number] = request
        self.waiting.clear()
        for number in self.left:
            batch.scheduled.append(Scheduled(self.known[number], 1, 1, is_prefill=False))
        context = sum(500 - left for left in self.left.values())
        batch.shape = BatchShape(0, 0, 0, len(self.left), context)
        if self.left:
            self.log.append(tuple(self.left))
        return batch

    known: dict[int, Request] = {}  # noqa: RUF012

    def max_repeat(self, batch: Batch) -> int:
        return 0 if batch.transfers else min(self.left.values(), default=1) - 1

    def repeat(self, batch: Batch, num_steps: int) -> None:
        self.log += [tuple(self.left)] * num_steps
        for number in self.left:
            self.left[number] -= num_steps

    def commit(self, batch: Batch) -> list[Finished]:
        for entry in batch.scheduled:
            self.left[entry.request.request_id] -= 1
        done = [number for number, left in self.left.items() if left == 0]
        for number in done:
            del self.left[number]
        return [Finished(self.known[number], (0,)) for number in done]

    def transfers_done(self, transfers: Iterable[TransferId]) -> None:
        for number in transfers:
            request = self.loading.pop(number)
            self.known = self.known | {number: request}
            self.left[number] = request.outputs[0][1]

    num_used_blocks = num_evictions = 0

    def state(self) -> CacheState:
        return CacheState(0, 0, 0, 0, 0, 0)


class Finishes:
    """Notes when each request finished."""

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}
        self.events: list[str] = []

    def arrived(self, request: Request) -> None:
        self.events.append("arrived")

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        self.events.append("scheduled")

    def repeated(self, batch: Batch, num_steps: int) -> None:
        self.events.append("repeated")

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        self.events.append("committed")
        for finished in done:
            self.at_ns[finished.request.request_id] = execution.end_ns

    def transferred(self, transfers: list[TransferId]) -> None:
        self.events.append("transferred")


def load_and_run(made: list[Request], *, can_repeat: bool) -> tuple[Any, Any]:
    scheduler, finishes = LoadingScheduler(), Finishes()
    executor = SimulatedExecutor(LinearStepTime(), copies(777))
    source = OpenLoop(Workload.from_requests(made))
    engine: Any = Engine(
        source,
        scheduler,  # type: ignore[arg-type]
        executor,
        finishes,
        can_repeat=can_repeat,
    )
    assert engine.run().ending is Ending.COMPLETE
    return scheduler.log, finishes.at_ns


@settings(max_examples=150, deadline=None)
@given(requests())
def test_transfer_that_ends_inside_a_stretch_ends_it(made: list[Request]) -> None:
    """A request whose blocks arrive while others repeat joins as if step by step."""
    assert load_and_run(made, can_repeat=True) == load_and_run(made, can_repeat=False)


@pytest.mark.parametrize("num_in_flight", [1, 2])
def test_asynchronous_scheduling_decides_before_tokens_are_in(num_in_flight: int) -> None:
    """With two batches in flight the second call comes before the first batch ends."""
    request = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 4),),
        num_prompt_tokens=4,
        outputs=((2, 9),),
    )
    scheduler, finishes = LoadingScheduler(), Finishes()
    scheduler.known, scheduler.left = {0: request}, {0: 9}
    engine = Engine(
        MaxConcurrency(OpenLoop(Workload.from_requests([request])), 1),
        scheduler,  # type: ignore[arg-type]
        SimulatedExecutor(LinearStepTime()),
        finishes,
        num_in_flight=num_in_flight,
    )
    scheduler.add = lambda request: None  # type: ignore[method-assign]
    for _ in range(num_in_flight):
        engine._turn()

    calls = [event for event in finishes.events if event in ("scheduled", "committed")]
    assert calls == ["scheduled"] * num_in_flight + ["committed"]


def test_batches_in_flight_follow_one_another() -> None:
    """The second batch in flight starts when the first ends; the clock follows waits."""
    executor = SimulatedExecutor(LinearStepTime())
    shape = BatchShape(0, 0, 0, 1, 0)
    for _ in range(2):
        executor.submit(Batch(shape=shape))

    assert executor.now_ns == 0
    first, second = executor.wait(), executor.wait()
    assert (first.start_ns, first.end_ns) == (0, 901)
    assert (second.start_ns, second.end_ns) == (901, 1802)
    assert executor.now_ns == 1802


def test_transfers_follow_one_another() -> None:
    """Copies share one link: the second begins when the first has ended."""
    executor = SimulatedExecutor(LinearStepTime(), copies(10))
    batch = Batch(transfers=[Transfer(1, 3), Transfer(2, 4)])
    executor.submit(batch)
    assert executor.wait().transfers_done == [1, 2]

    executor.submit(Batch(transfers=[Transfer(3, 200), Transfer(4, 100)]))
    assert executor.wait().transfers_done == []
    assert executor.idle_until(None, is_blocked=False) == [3]
    middle_ns = executor.now_ns
    assert executor.idle_until(None, is_blocked=False) == [4]
    assert executor.now_ns - middle_ns == 1000


def test_stretch_stops_with_the_step_that_ends_at_an_arrival() -> None:
    """An arrival at the very end of a step ends the stretch there, not one later."""
    shape = BatchShape(0, 0, 0, 1, 0)
    executor = SimulatedExecutor(LinearStepTime())
    executor.submit(Batch(shape=shape))
    first_end_ns = executor.wait().end_ns
    again = SimulatedExecutor(LinearStepTime())
    again.submit(Batch(shape=shape))

    assert again.repeat(50, first_end_ns) == 0
    assert again.repeat(50, first_end_ns + 1) == 1
    assert again.wait().num_steps == 2


def test_scripted_batches_follow_one_another() -> None:
    """On the step clock, too, the second batch in flight starts behind the first."""
    executor = ScriptedExecutor()
    executor.submit(Batch())
    assert executor.repeat(2, None) == 2
    executor.submit(Batch())

    first, second = executor.wait(), executor.wait()

    assert (first.start_ns, first.end_ns, first.num_steps) == (0, 3, 3)
    assert (second.start_ns, second.end_ns) == (3, 4)


def test_records_of_the_cache_do_not_depend_on_repeating() -> None:
    """Evictions, blocks at the end of a stretch and fragmentation add up alike."""
    made = [
        Request(
            request_id=i,
            arrival_ns=60_000 * i,
            prompt=((i % 6, 40),),
            num_prompt_tokens=40,
            outputs=((1000 + 2 * i, 60), (1001 + 2 * i, 33)),
        )
        for i in range(12)
    ]
    chosen = {
        "pool": (4, 60, 200, 0.01, True),
        "knobs": {
            "max_num_seqs": 16,
            "max_num_batched_tokens": 512,
            "max_model_len": 512,
        },
        "max_concurrency": None,
        "follow": False,
    }
    _, _, repeated, scheduler = run(made, chosen, can_repeat=True)
    _, _, single, _ = run(made, chosen, can_repeat=False)

    gpu = scheduler.block_manager.gpu_allocator
    for name in ("num_evictions", "num_regretted_evictions"):
        totals = [sum(getattr(s, name) for s in r.steps) for r in (repeated, single)]
        assert totals == [getattr(gpu, name)] * 2
        assert totals[0] > 0
    ends = {step.end_ns: step for step in single.steps}
    for stretch in repeated.steps:
        last = ends[stretch.end_ns]
        assert stretch.num_used_blocks_end == last.num_used_blocks_end
        assert stretch.num_cached_blocks_end == last.num_cached_blocks_end
    for recorder in (repeated, single):
        steps = Columns.of(StepRecord, recorder.steps)
        usage = kv_usage(steps, num_gpu_blocks=60, block_size=4, caching=True)
        assert usage.fragmentation is not None
        assert 0 < usage.fragmentation < 0.5


def test_shared_last_block_is_unfilled_once() -> None:
    """Samples that share a half-filled block leave its empty slots once, not n times."""
    manager = BlockSpaceManager(16, 10, 0)
    scheduler = SchedulerV0(
        manager, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64
    )
    scheduler.add(
        Request(
            request_id=0,
            arrival_ns=0,
            prompt=((1, 20),),
            num_prompt_tokens=20,
            outputs=tuple((100 + k, 9) for k in range(4)),
        )
    )
    scheduler.commit(scheduler.schedule())

    state = scheduler.state()

    assert state.num_used_blocks == 2
    assert state.num_used_tokens == 21
