"""One setting tried: a replay of the whole trace, given up once it cannot win."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.config import EngineConfig
from harness.replay import Findable, replay
from harness.tuning.objective import Objective, RunningLoss
from harness.workload import Workload
from results.columns import Columns
from results.comparison.arm import Arm, ArmRun
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What a process is given.

    Attributes:
        workload: The requests.
        findable: What a cache without limit could find of them, where that is known.
        config: The engine, resolved.
        info: What is known of the run before it begins.
        objective: What the loss is of.
        max_concurrency: Closed loop with so many requests outstanding; None for none.
        give_up_above: A loss with which the trial is of no use; infinite for none.
    """

    workload: Workload
    findable: Findable
    config: EngineConfig
    info: RunInfo
    objective: Objective
    max_concurrency: int | None = None
    give_up_above: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """What a setting came to.

    Attributes:
        loss: The objective's; at least this where the trial was given up.
        run: The run; None where it was given up.
        wall_s: Seconds that the replay took.
        most_running: Requests in the largest batch.
        most_tokens: Tokens of the largest batch.
    """

    loss: float
    run: ArmRun | None
    wall_s: float
    most_running: int = 0
    most_tokens: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the whole trace was replayed."""
        return self.run is not None

    def arm(self, name: str) -> Arm:
        """It as one side of a comparison."""
        assert self.run is not None, "a trial that was given up has no run"
        return Arm(name=name, config=self.run.info.config, runs=[self.run])


def run_trial(
    task: TrialTask,
    on_progress: Callable[[int, int], None],
    is_stopped: Callable[[], bool],
) -> Trial:
    """Replay the trace; end early once the loss cannot stay below the limit."""
    running = RunningLoss(task.objective, task.workload)

    def is_hopeless() -> bool:
        return is_stopped() or running.least > task.give_up_above

    result = replay(
        task.workload,
        task.config,
        findable=task.findable,
        max_concurrency=task.max_concurrency,
        on_progress=on_progress,
        on_left=running.add,
        is_stopped=is_hopeless,
    )
    info = replace(task.info, outcome=result.outcome, wall_s=result.wall_s)
    if running.least > task.give_up_above or is_stopped():
        return Trial(loss=running.least, run=None, wall_s=result.wall_s)
    steps = Columns.of(StepRecord, result.steps)
    run = ArmRun.of(info, Columns.of(RequestRecord, result.requests), steps)
    num_tokens = steps["num_prefill_tokens"] + steps["num_decode_seqs"]
    return Trial(
        loss=running.of(run),
        run=run,
        wall_s=result.wall_s,
        most_running=int(steps["num_running"].max(initial=0)),
        most_tokens=int(num_tokens.max(initial=0)),
    )
