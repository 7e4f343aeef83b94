"""One setting tried: a replay, given up once it cannot win, or is far behind."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness.config import EngineConfig
from harness.replay import Findable, replay
from harness.tuning.objective import ENDED, Objective, RunningLoss
from harness.workload import Workload
from results.columns import Columns, FloatArray
from results.comparison.arm import Arm, ArmRun
from results.latency import request_latency
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, RunInfo
from results.statistics import NS_PER_S

LEAST_SEEN = 0.2
"""Of the requests, before a trial may be given up for being behind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rival:
    """Another run of the same requests, which a trial is not to fall behind.

    Attributes:
        loss: What it came to.
        by_request: What each request added to its loss, ``(num_requests,)``.
        most_behind: By how much more those that left may have added, as a part of the
            loss.
    """

    loss: float
    by_request: FloatArray
    most_behind: float


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
        rival: What it is not to fall behind; None for nothing.
    """

    workload: Workload
    findable: Findable
    config: EngineConfig
    info: RunInfo
    objective: Objective
    max_concurrency: int | None = None
    give_up_above: float = float("inf")
    rival: Rival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """With how much a run would have gone as it did, or nobody had waited.

    Attributes:
        seqs: A ``max_num_seqs`` that would have kept no batch smaller.
        batched_tokens: A ``max_num_batched_tokens`` that would have kept none smaller.
        share_of_blocks: Blocks that all requests in the engine would have held at once,
            had nobody waited, as a share of the pool; an estimate.
    """

    seqs: int
    batched_tokens: int
    share_of_blocks: float

    @classmethod
    def of(cls, workload: Workload, config: EngineConfig, steps: Columns) -> "Needs":
        """Those of a run.

        The next request may have found no room below a limit that no batch came up to:
        one of several samples, or a prompt that is not split.
        """
        longest = int(workload.input_tokens.max(initial=1))
        in_batch = steps["num_prefill_seqs"] + steps["num_decode_seqs"]
        running = np.maximum(steps["num_running"], in_batch)
        tokens = steps["num_prefill_tokens"] + steps["num_decode_seqs"]
        used = np.maximum(steps["num_used_blocks"], steps["num_used_blocks_end"])
        outside = steps["num_waiting"] + steps["num_swapped"]
        wanted = used * (1 + outside / np.maximum(steps["num_running"], 1))
        return cls(
            seqs=int(running.max(initial=0)) + workload.max_samples - 1,
            batched_tokens=int(tokens.max(initial=0))
            + (0 if config.enable_chunked_prefill else longest - 1),
            share_of_blocks=float(wanted.max(initial=0.0) / config.num_gpu_blocks),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """What a setting came to.

    Attributes:
        loss: The objective's; at least this where the trial was given up.
        guess: What a trial that was given up was on its way to; else None.
        run: The run; None where it was given up.
        wall_s: Seconds that the replay took; 0 where the engine cannot start.
        needs: What its batches and its pool would have to hold; None where it was given
            up.
        by_request: What each request added to the loss, ``(num_requests,)``; None where
            it was given up.
        num_lifetimes: For how many times as long as one takes in the mean requests came;
            None where it was given up.
    """

    loss: float
    run: ArmRun | None
    wall_s: float
    guess: float | None = None
    needs: Needs | None = None
    by_request: FloatArray | None = None
    num_lifetimes: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the whole trace was replayed."""
        return self.run is not None

    @property
    def likely_loss(self) -> float:
        """What to learn from it."""
        return self.loss if self.guess is None else self.guess

    @property
    def can_start(self) -> bool:
        """Whether there is an engine of that kind."""
        return self.is_complete or self.loss < ENDED

    @property
    def is_given_up(self) -> bool:
        """Whether a part of the trace was replayed."""
        return self.can_start and not self.is_complete

    def arm(self, name: str) -> Arm:
        """It as one side of a comparison."""
        assert self.run is not None, "a trial that was given up has no run"
        return Arm(name=name, config=self.run.info.config, runs=[self.run])


def run_trial(
    task: TrialTask,
    on_progress: Callable[[int, int], None],
    is_stopped: Callable[[], bool],
) -> Trial | None:
    """Replay the trace; end early once the loss cannot stay below the limit.

    Or once it is further behind a rival than may be: it would have to make up for that
    with the requests to come, and nothing says that it will. None where somebody stopped
    it before it came to that.
    """
    rival = task.rival
    by_request = None if rival is None else rival.by_request
    running = RunningLoss(task.objective, task.workload, by_request)

    def is_hopeless() -> bool:
        if running.least > task.give_up_above:
            return True
        is_behind = rival is not None and running.behind > rival.most_behind
        return is_behind and running.share_left >= LEAST_SEEN

    result = replay(
        task.workload,
        task.config,
        findable=task.findable,
        max_concurrency=task.max_concurrency,
        on_progress=on_progress,
        on_left=running.add,
        is_stopped=lambda: is_hopeless() or is_stopped(),
    )
    if result.outcome.ending is Ending.INTERRUPTED:
        if not is_hopeless():
            return None
        return Trial(
            loss=running.least,
            run=None,
            wall_s=result.wall_s,
            guess=_guess(running, rival),
        )
    info = replace(task.info, outcome=result.outcome, wall_s=result.wall_s)
    steps = Columns.of(StepRecord, result.steps)
    requests = Columns.of(RequestRecord, result.requests)
    run = ArmRun.of(info, requests, steps)
    return Trial(
        loss=running.of(run),
        run=run,
        wall_s=result.wall_s,
        needs=Needs.of(task.workload, task.config, steps),
        by_request=running.by_request,
        num_lifetimes=num_lifetimes(requests),
    )


def num_lifetimes(requests: Columns) -> float:
    """For how many times as long as one takes in the mean requests came; 0 without any.

    So many times over those in the engine at once were replaced by others: Little's law.
    """
    e2e_s = request_latency(requests).e2e_s
    if not len(e2e_s):
        return 0.0
    return float(np.ptp(requests["arrival_ns"]) / NS_PER_S / e2e_s.mean())


def _guess(running: RunningLoss, rival: Rival | None) -> float:
    """What a loss was on its way to, if the requests to come are like those before.

    Beside a rival it is behind the rival's by as much again for each part to come.
    """
    if rival is None or not running.share_left:
        return running.likely
    return max(running.least, rival.loss + running.behind / running.share_left)
