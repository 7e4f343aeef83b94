"""A workload through our block manager: from a configuration to the records of a run."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.chains import with_long_runs, without_names
from harness.analysis.sharing import findable_tokens
from harness.arrivals import ArrivalSource, FrontDoor, MaxConcurrency, OpenLoop
from harness.config import EngineConfig
from harness.engine import Engine
from harness.executors.executor import Executor
from harness.executors.simulated import SimulatedExecutor
from harness.recorder import Recorder
from harness.run_columns import IntArray
from harness.schedulers.batch import Scheduler
from harness.schedulers.build import build_scheduler_v0, build_scheduler_v1
from harness.timing import build_step_time
from harness.workload import Workload
from profiles.step_time import RooflineStepTime
from results.journal import Journal
from results.record import RequestRecord, StepRecord
from results.rows import Rows
from results.run_info import Ending, Outcome

OnProgress = Callable[[int, int], None]

Findable = tuple[IntArray, IntArray] | None
"""Tokens of each prompt that a cache without limit could find: with outputs of earlier
requests where the policy finds those, and of prompts alone; None where the trace does not
say which begin alike."""

JOURNAL_PERIOD_S = 0.5
"""Wall time between two entries in the journal; what is lost when a run is killed."""


@dataclass(slots=True, kw_only=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        requests: One record a request of the workload, by request id.
        steps: One record a stretch of equal steps, in time order.
        outcome: How it ended.
        wall_s: Seconds it took.
    """

    requests: Rows[RequestRecord]
    steps: Rows[StepRecord]
    outcome: Outcome
    wall_s: float


def replay(
    workload: Workload,
    config: EngineConfig,
    *,
    step_time: RooflineStepTime | None = None,
    findable: Findable = None,
    max_concurrency: int | None = None,
    check: bool = False,
    on_progress: OnProgress | None = None,
    on_left: Callable[[RequestRecord], None] | None = None,
    journal: Journal | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run the whole workload on the simulated clock.

    Args:
        workload: Its requests.
        config: Engine, resolved.
        step_time: Durations of steps and copies, and what a request takes to the
            scheduler; those of the configuration by default.
        findable: What :func:`findable_tokens` says of the workload for this policy, where
            somebody knows it already; found out by default.
        max_concurrency: Closed loop with so many requests outstanding.
        check: Check the block bookkeeping after every turn (slow).
        on_progress: Called with requests done and requests in all.
        on_left: Called with the record of each request that leaves, however it does.
        journal: Gets the rows recorded so far every ``JOURNAL_PERIOD_S``, and the last of
            them when the loop ends, whatever ended it.
        is_stopped: Asked after each turn; the run ends early once it says so.
    """
    started = time.perf_counter()
    workload = with_long_runs(workload)
    if step_time is None:
        step_time = build_step_time(config)
    if findable is None:
        findable = findable_of(workload, config.policy)
    entry_ns = step_time.overhead.request_ns
    scheduler = build_scheduler(config)
    recorder = Recorder(
        scheduler,
        block_size=config.block_size,
        shared_tokens=findable,
        entry_ns=entry_ns,
        is_journaled=journal is not None,
        on_left=on_left,
    )
    if config.policy == "v1" and not config.num_cpu_blocks:
        workload = without_names(workload)  # the tier may have what is over on the GPU
    source: ArrivalSource = OpenLoop(workload)
    if max_concurrency is not None:
        source = MaxConcurrency(OpenLoop(workload), max_concurrency)
    after_turn = _AfterTurn(
        scheduler if check else None,
        recorder,
        len(workload),
        on_progress=on_progress,
        journal=journal,
        is_stopped=is_stopped,
    )
    engine = Engine(
        FrontDoor(source, config.max_prompt_tokens, recorder.refused, entry_ns),
        scheduler,
        build_executor(config, step_time),
        recorder,
        num_in_flight=2 if config.async_scheduling else 1,
        barren_after=max_barren_calls(config),
        after_turn=after_turn,
    )
    try:
        with _without_gc():
            outcome = engine.run()
    finally:
        after_turn.keep()
    outcome = _close(workload, scheduler, recorder, outcome)
    return RunResult(
        requests=recorder.requests,
        steps=recorder.steps,
        outcome=outcome,
        wall_s=time.perf_counter() - started,
    )


def findable_of(workload: Workload, policy: str) -> Findable:
    """What a policy could find of each prompt, at whatever times they come."""
    return findable_tokens(workload, with_outputs=policy == "v1")


@contextmanager
def _without_gc() -> Iterator[None]:
    """Let Python look for no cycles: the loop makes none, and looking takes 2 % of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _AfterTurn:
    """What is done between two turns of the loop, where all books agree."""

    def __init__(
        self,
        checked: Scheduler | None,
        recorder: Recorder,
        num_requests: int,
        *,
        on_progress: OnProgress | None,
        journal: Journal | None,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._checked = checked
        self._recorder = recorder
        self._num_requests = num_requests
        self._on_progress = on_progress
        self._journal = journal
        self._is_stopped = is_stopped
        self._num_told = 0
        self._next_entry_s = time.monotonic() + JOURNAL_PERIOD_S

    def __call__(self) -> bool:
        if self._checked is not None:
            self._checked.check_invariants()
        num_done = self._recorder.num_done
        if self._on_progress is not None and num_done > self._num_told:
            self._num_told = num_done
            self._on_progress(num_done, self._num_requests)
        if time.monotonic() >= self._next_entry_s:
            self.keep()
        return not self._is_stopped()

    def keep(self) -> None:
        """Put into the journal what it does not have yet."""
        if self._journal is not None:
            self._journal.append(*self._recorder.take_changes())
        self._next_entry_s = time.monotonic() + JOURNAL_PERIOD_S


def _close(
    workload: Workload, scheduler: Scheduler, recorder: Recorder, outcome: Outcome
) -> Outcome:
    """End the books of a run, and add to its outcome what they say."""
    holders = "" if outcome.ending is Ending.COMPLETE else scheduler.holders()
    if outcome.ending is not Ending.COMPLETE:
        _record_the_rest(workload, recorder, outcome.reason)
    return replace(outcome, holders=holders, num_lost_blocks=scheduler.close())


def _record_the_rest(workload: Workload, recorder: Recorder, reason: str) -> None:
    """Records of what a run that broke off left behind, in the engine or before it."""
    recorder.break_off(reason)
    arrived = set(recorder.requests.column("request_id").tolist())
    for request_id in range(len(workload)):
        if request_id not in arrived:
            recorder.never_arrived(
                workload.request(request_id), f"{reason} before it arrived"
            )


def build_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler and block manager that a configuration names."""
    if config.policy == "v0":
        return build_scheduler_v0(
            preemption_mode=config.preemption_mode, **_common_knobs(config)
        )
    return build_scheduler_v1(**scheduler_knobs_v1(config))


def scheduler_knobs_v1(config: EngineConfig) -> dict[str, Any]:
    """What a v1 scheduler is built with, by the names that vLLM has for it."""
    return _common_knobs(config) | {
        "async_scheduling": config.async_scheduling,
        "scheduling_policy": config.scheduling_policy,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
        "sliding_window": config.sliding_window,
    }


def _common_knobs(config: EngineConfig) -> dict[str, Any]:
    """What schedulers of both policies are built with."""
    return {
        "block_size": config.block_size,
        "num_gpu_blocks": config.num_gpu_blocks,
        "num_cpu_blocks": config.num_cpu_blocks,
        "watermark": config.watermark,
        "enable_prefix_caching": config.enable_prefix_caching,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "enable_chunked_prefill": config.enable_chunked_prefill,
    }


def build_executor(
    config: EngineConfig, step_time: RooflineStepTime | None = None
) -> Executor:
    """A clock for the configuration's model and GPU, or with other durations."""
    if step_time is None:
        step_time = build_step_time(config)
    return SimulatedExecutor(
        step_time, step_time.transfer_fs, is_ahead=config.async_scheduling
    )


def max_barren_calls(config: EngineConfig) -> int:
    """More calls than any run needs that still gets somewhere.

    Without a decode the oldest prefill gets the whole budget of a step, and samples when
    it is through.
    """
    steps_per_prefill = -(-config.max_model_len // config.max_num_batched_tokens)
    return 64 + 4 * steps_per_prefill
