"""One arm of a comparison: replayed, summarized and saved, in a process of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench_cli.interrupt import stopped_by_signals
from bench_cli.progress import progress_bars
from bench_cli.workload import WorkloadFlags
from harness.config import EngineConfig
from harness.parallel import ReplayPool
from harness.replay import Findable, replay
from harness.workload import Workload
from results.columns import Columns
from results.comparison.arm import ArmRun
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo
from results.store import RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTask:
    """What a process is given.

    Attributes:
        label: The arm's name.
        run_name: What its run is saved as.
        info: What is known of the run before it begins.
        workload: Its requests.
        findable: What its policy could find of each prompt.
        config: Its engine.
        timing: Its load.
    """

    label: str
    run_name: str
    info: RunInfo
    workload: Workload
    findable: Findable
    config: EngineConfig
    timing: WorkloadFlags


def run_arm(
    task: ArmTask,
    on_progress: Callable[[int, int], None],
    is_stopped: Callable[[], bool],
) -> ArmRun:
    """Replay the arm and save it as a run.

    Raises:
        ResultsError: It cannot be saved.
    """
    with RunStore(task.run_name, task.info) as store:
        result = replay(
            task.workload,
            task.config,
            findable=task.findable,
            max_concurrency=task.timing.max_concurrency,
            on_progress=on_progress,
            journal=store.journal,
            is_stopped=is_stopped,
        )
        info = replace(task.info, outcome=result.outcome, wall_s=result.wall_s)
        run = ArmRun.of(
            info,
            Columns.of(RequestRecord, result.requests),
            Columns.of(StepRecord, result.steps),
        )
        folder = store.save(info, result.requests, result.steps, dict(run.summary))
    return replace(run, folder=str(folder))


def run_arms(
    tasks: Sequence[ArmTask], pool: ReplayPool
) -> tuple[list[ArmRun | None], bool]:
    """The arms' runs in parallel processes, and whether somebody stopped them.

    An arm that had not begun then has no run.
    """
    labels = [task.label for task in tasks]
    with stopped_by_signals() as is_stopped, progress_bars(labels) as on_progress:
        runs = pool.map(
            run_arm,
            tasks,
            labels=labels,
            on_progress=on_progress,
            is_stopped=is_stopped,
        )
        return runs, is_stopped()
