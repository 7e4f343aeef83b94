"""From a setting of the space to a replay: what all trials have in common."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.config import EngineConfig, no_start, resolve_config
from harness.errors import ConfigError, EngineError, HarnessError, NotReplayedError
from harness.parallel import Progress, ReplayPool
from harness.replay import Findable, findable_of
from harness.tuning.objective import ENDED, Objective
from harness.tuning.space import Knobs
from harness.tuning.trial import Rival, Trial, TrialTask, run_trial
from harness.workload import Workload
from profiles.errors import ProfileError
from results.run_info import RunInfo

Keep = Callable[[Trial | None], None]
"""Takes what a replay came to."""

_Refusal = HarnessError | ProfileError

MakeInfo = Callable[[Workload, EngineConfig, Objective], RunInfo]


@dataclass(slots=True)
class Tally:
    """What all replays of a search took, and what ended them.

    Attributes:
        wall_s: Seconds of all of them together.
        num_replays: How many there were.
        failure: Why there can be no more; None while there can.
    """

    wall_s: float = 0.0
    num_replays: int = 0
    failure: EngineError | None = None


@dataclass(slots=True, kw_only=True)
class TrialEngine:
    """Replays settings of one trace in parallel processes.

    Attributes:
        workload: The requests.
        findable: What a cache without limit could find of them.
        fixed: Knobs that are the same in all trials, as ``resolve_config`` takes them.
        objective: What losses are of.
        make_info: What is known of a run before it begins.
        pool: Processes.
        max_concurrency: Closed loop with so many requests outstanding; None for none.
        is_stopped: Whether somebody has had enough.
        deadline_s: Of ``time.monotonic()``, after which nothing goes on.
        on_progress: Called now and then with how far each trial of a batch is.
        is_racing: Trials are given up once they are far behind the best so far on the
            same requests, whatever is to come; else only once they cannot be as good.
        tally: What all replays took, those of other parts of the trace included.
    """

    workload: Workload
    findable: Findable
    fixed: Mapping[str, Any]
    objective: Objective
    make_info: MakeInfo
    pool: ReplayPool
    max_concurrency: int | None = None
    is_stopped: Callable[[], bool] = lambda: False
    deadline_s: float = float("inf")
    on_progress: Callable[[Sequence[Progress]], None] | None = None
    is_racing: bool = False
    tally: Tally = field(default_factory=Tally)
    _best: Trial | None = None
    _ahead: "list[tuple[TrialTask, Keep]]" = field(default_factory=list)
    _configs: dict[tuple[tuple[str, Any], ...], EngineConfig | _Refusal] = field(
        default_factory=dict
    )

    def on(self, part: slice, policy: str) -> "TrialEngine":
        """The same for a part of the trace, on which trials are given up sooner.

        Args:
            part: Requests of the trace.
            policy: That says what may be found of these.
        """
        workload = self.workload.select(part)
        findable = findable_of(workload, policy)
        return replace(
            self, workload=workload, findable=findable, is_racing=True, _best=None
        )

    def under(self, load: float) -> "TrialEngine":
        """The same for another load, as a multiple of this one."""
        workload = self.workload.retimed(speedup=load)
        return replace(self, workload=workload, _best=None)

    def config(self, knobs: Knobs) -> EngineConfig | None:
        """The engine of a setting; None where it cannot start."""
        found = self._config(knobs)
        return found if isinstance(found, EngineConfig) else None

    def why_not(self, knobs: Knobs) -> str:
        """Why a setting cannot start; empty where it can."""
        found = self._config(knobs)
        return "" if isinstance(found, EngineConfig) else str(found)

    def is_only_not_replayed(self, knobs: Knobs) -> bool:
        """Whether vLLM has a setting, and only this package cannot replay it."""
        return isinstance(self._config(knobs), NotReplayedError)

    def _config(self, knobs: Knobs) -> EngineConfig | _Refusal:
        key = tuple(sorted(knobs.items()))
        if key not in self._configs:
            given = {**self.fixed, **knobs}
            if not given.get("kv_offloading_size"):
                given["kv_offloading_size"] = None  # no tier, which is what 0 GiB means
            try:
                config = resolve_config(**given)
            except (HarnessError, ProfileError) as error:
                self._configs[key] = error
            else:
                reason = no_start(config)
                self._configs[key] = ConfigError(reason) if reason else config
        return self._configs[key]

    def evaluate(
        self, settings: Sequence[Knobs], give_up_above: float = float("inf")
    ) -> list[Trial | None]:
        """Replay each setting; None for those that a stop came before."""
        cases = [(knobs, self.workload, self.objective) for knobs in settings]
        rival = self._rival(give_up_above) if self.is_racing else None
        trials = self.evaluate_under(cases, give_up_above, rival=rival)
        done = [each for each in trials if each is not None and each.is_complete]
        if self._best is not None:
            done.insert(0, self._best)
        self._best = min(done, key=lambda each: each.loss, default=None)
        return trials

    def _rival(self, give_up_above: float) -> Rival | None:
        """The best so far, which a trial is not to fall behind by what would count."""
        best = self._best
        if best is None or best.by_request is None or give_up_above == float("inf"):
            return None
        return Rival(
            loss=best.loss,
            by_request=best.by_request,
            most_behind=give_up_above - best.loss,
        )

    def evaluate_under(
        self,
        cases: Sequence[tuple[Knobs, Workload, Objective]],
        give_up_above: float = float("inf"),
        *,
        share_of_blocks: float = 1.0,
        rival: Rival | None = None,
    ) -> list[Trial | None]:
        """Replay settings under other loads or limits.

        Args:
            cases: Setting, requests and objective of each replay.
            give_up_above: A loss above which a replay is of no use.
            share_of_blocks: Of the GPU blocks that each setting has.
            rival: What none is to fall behind; None for nothing.
        """
        found: list[Trial | None] = []
        tasks: list[tuple[TrialTask, Keep]] = []
        for place, (knobs, workload, objective) in enumerate(cases):
            found.append(Trial(loss=ENDED, run=None, wall_s=0.0))
            config = self.config(knobs)
            if config is not None:
                num_blocks = int(config.num_gpu_blocks * share_of_blocks)
                config = replace(config, num_gpu_blocks=num_blocks)
                task = self._task(workload, config, objective)
                task = replace(task, give_up_above=give_up_above, rival=rival)
                tasks.append((task, partial(found.__setitem__, place)))
        self._replay(tasks)
        return found

    def replay_ahead(self, knobs: Knobs, keep: Keep) -> None:
        """Have a setting replayed beside whatever is next, by the engine of any part."""
        config = self.config(knobs)
        if config is not None:
            task = self._task(self.workload, config, self.objective)
            self._ahead.append((task, keep))

    def _replay(self, tasks: list[tuple[TrialTask, Keep]]) -> None:
        """These and those that wait; the longest first, as others then fill in."""
        tasks += self._ahead
        self._ahead.clear()
        tasks.sort(key=lambda each: -_num_turns(each[0]))
        first = self.tally.num_replays + 1
        try:
            trials = self.pool.map(
                run_trial,
                [task for task, _ in tasks],
                labels=[f"trial {first + n}" for n in range(len(tasks))],
                on_progress=self.on_progress,
                is_stopped=lambda: self.is_ended() or time.monotonic() >= self.deadline_s,
            )
        except EngineError as error:
            self.tally.failure = error
            trials = [None] * len(tasks)
        for (_, keep), trial in zip(tasks, trials, strict=True):
            keep(trial)
            self.tally.wall_s += trial.wall_s if trial else 0.0
        self.tally.num_replays += len(tasks)

    def is_ended(self) -> bool:
        """Whether somebody has had enough, or a process was killed."""
        return self.is_stopped() or self.tally.failure is not None

    def _task(
        self, workload: Workload, config: EngineConfig, objective: Objective
    ) -> TrialTask:
        is_whole = workload.prompts is self.workload.prompts  # at whatever times
        return TrialTask(
            workload=workload,
            findable=self.findable if is_whole else None,
            config=config,
            info=self.make_info(workload, config, objective),
            objective=objective,
            max_concurrency=self.max_concurrency,
        )


def _num_turns(task: TrialTask) -> float:
    """About how often a replay goes round its loop, which is what it takes."""
    workload, config = task.workload, task.config
    chunks = workload.input_tokens.sum() / config.max_num_batched_tokens
    with_tier = 2 if config.num_cpu_blocks and config.policy == "v1" else 1
    return float(with_tier * chunks + 2 * len(workload))
