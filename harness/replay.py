"""A workload through our block manager: from a configuration to the records of a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.arrivals import ArrivalSource, FrontDoor, MaxConcurrency, OpenLoop
from harness.config import EngineConfig
from harness.engine import Ending, Engine
from harness.executors.executor import Executor
from harness.executors.simulated import SimulatedExecutor
from harness.findings import RunFindings
from harness.recorder import Recorder
from harness.schedulers.batch import Scheduler
from harness.schedulers.build import build_scheduler_v0
from harness.workload import Workload
from profiles.gpu import load_gpu
from profiles.model import load_model
from profiles.step_time import RooflineStepTime
from results.findings import Finding
from results.record import RequestRecord, StepRecord

OnProgress = Callable[[int, int], None]


@dataclass(slots=True, kw_only=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        requests: One record a request of the workload, by request id.
        steps: One record a stretch of equal steps, in time order.
        findings: What the user should know.
        complete: Every request left the engine in its own way.
        interrupted: Ctrl-C ended it.
        wall_s: Seconds it took.
    """

    requests: list[RequestRecord]
    steps: list[StepRecord]
    findings: list[Finding]
    complete: bool
    interrupted: bool
    wall_s: float


def replay(
    workload: Workload,
    config: EngineConfig,
    *,
    max_concurrency: int | None = None,
    check: bool = False,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """Run the whole workload on the simulated clock.

    Args:
        workload: Its requests.
        config: Engine, resolved.
        max_concurrency: Closed loop with so many requests outstanding.
        check: Check the block bookkeeping after every turn (slow).
        on_progress: Called with requests done and requests in all.
    """
    scheduler = build_scheduler(config)
    recorder = Recorder(scheduler)
    source: ArrivalSource = OpenLoop(workload)
    if max_concurrency is not None:
        source = MaxConcurrency(OpenLoop(workload), max_concurrency)
    source = FrontDoor(source, config.max_model_len, recorder.refused)
    executor = build_executor(config)
    after_turn = _after_turn(scheduler, recorder, len(workload), check, on_progress)
    started = time.perf_counter()
    engine = Engine(
        source,
        scheduler,
        executor,
        recorder,
        barren_after=_max_barren_calls(config),
        after_turn=after_turn,
    )
    outcome = engine.run()
    findings = RunFindings(
        workload,
        config,
        recorder,
        outcome,
        scheduler.holders(),
        is_closed_loop=max_concurrency is not None,
    )
    if outcome.ending is not Ending.COMPLETE:
        _record_the_rest(workload, recorder, outcome.reason)
    if outcome.ending is not Ending.INTERRUPTED:  # it may have come within a bookkeeping
        findings.num_lost_blocks = scheduler.close()
    return RunResult(
        requests=[recorder.requests[i] for i in sorted(recorder.requests)],
        steps=recorder.steps,
        findings=findings.gather(),
        complete=outcome.ending is Ending.COMPLETE,
        interrupted=outcome.ending is Ending.INTERRUPTED,
        wall_s=time.perf_counter() - started,
    )


def _record_the_rest(workload: Workload, recorder: Recorder, reason: str) -> None:
    """Records of what a run that broke off left behind, in the engine or before it."""
    recorder.break_off(reason)
    for request_id in range(len(workload)):
        if request_id not in recorder.requests:
            recorder.never_arrived(
                workload.request(request_id), f"{reason} before it arrived"
            )


def build_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler and block manager that a configuration names."""
    return build_scheduler_v0(
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks,
        num_cpu_blocks=config.num_cpu_blocks,
        watermark=config.watermark,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        preemption_mode=config.preemption_mode,
    )


def build_executor(config: EngineConfig) -> Executor:
    """A clock for the configuration's model and GPU."""
    return SimulatedExecutor(
        RooflineStepTime(
            load_model(config.model),
            load_gpu(config.gpu),
            tensor_parallel_size=config.tensor_parallel_size,
            block_size=config.block_size,
        )
    )


def _max_barren_calls(config: EngineConfig) -> int:
    """More calls than any run needs that still gets somewhere.

    Without a decode the oldest prefill gets the whole budget of a step, and samples when
    it is through.
    """
    steps_per_prefill = -(-config.max_model_len // config.max_num_batched_tokens)
    return 64 + 4 * steps_per_prefill


def _after_turn(
    scheduler: Scheduler,
    recorder: Recorder,
    num_requests: int,
    check: bool,
    on_progress: OnProgress | None,
) -> Callable[[], bool]:
    num_told = 0

    def after_turn() -> bool:
        nonlocal num_told
        if check:
            scheduler.check_invariants()
        if on_progress is not None and recorder.num_done > num_told:
            num_told = recorder.num_done
            on_progress(num_told, num_requests)
        return True

    return after_turn
