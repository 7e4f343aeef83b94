"""From a setting of the space to a replay: what all trials have in common."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.config import EngineConfig, resolve_config
from harness.errors import HarnessError
from harness.parallel import Progress, ReplayPool
from harness.replay import Findable
from harness.tuning.objective import ENDED, Objective
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial, TrialTask, run_trial
from harness.workload import Workload
from profiles.errors import ProfileError
from results.run_info import RunInfo

MakeInfo = Callable[[Workload, EngineConfig, Objective], RunInfo]


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
        wall_s: Seconds of all replays together.
        num_replays: How many there were.
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
    wall_s: float = 0.0
    num_replays: int = 0
    _configs: dict[tuple[tuple[str, Any], ...], EngineConfig | str] = field(
        default_factory=dict
    )

    def config(self, knobs: Knobs) -> EngineConfig | None:
        """The engine of a setting; None where it cannot start."""
        found = self._config(knobs)
        return found if isinstance(found, EngineConfig) else None

    def why_not(self, knobs: Knobs) -> str:
        """Why a setting cannot start; empty where it can."""
        found = self._config(knobs)
        return found if isinstance(found, str) else ""

    def _config(self, knobs: Knobs) -> EngineConfig | str:
        key = tuple(sorted(knobs.items()))
        if key not in self._configs:
            given = {**self.fixed, **knobs}
            if not given.get("kv_offloading_size"):
                given["kv_offloading_size"] = None  # no tier, which is what 0 GiB means
            try:
                self._configs[key] = resolve_config(**given)
            except (HarnessError, ProfileError) as error:
                self._configs[key] = str(error)
        return self._configs[key]

    def evaluate(
        self, settings: Sequence[Knobs], give_up_above: float = float("inf")
    ) -> list[Trial | None]:
        """Replay each setting; None for those that a stop came before."""
        return self.evaluate_under(
            [(knobs, self.workload, self.objective) for knobs in settings], give_up_above
        )

    def evaluate_under(
        self,
        cases: Sequence[tuple[Knobs, Workload, Objective]],
        give_up_above: float = float("inf"),
        *,
        share_of_blocks: float = 1.0,
    ) -> list[Trial | None]:
        """Replay settings under other loads or limits.

        Args:
            cases: Setting, requests and objective of each replay.
            give_up_above: A loss above which a replay is of no use.
            share_of_blocks: Of the GPU blocks that each setting has.
        """
        found: list[Trial | None] = []
        tasks: dict[int, TrialTask] = {}
        for place, (knobs, workload, objective) in enumerate(cases):
            found.append(Trial(loss=ENDED, run=None, wall_s=0.0))
            config = self.config(knobs)
            if config is not None:
                num_blocks = int(config.num_gpu_blocks * share_of_blocks)
                config = replace(config, num_gpu_blocks=num_blocks)
                tasks[place] = self._task(workload, config, objective, give_up_above)
        runs = self.pool.map(
            run_trial,
            list(tasks.values()),
            labels=[f"trial {self.num_replays + n + 1}" for n in range(len(tasks))],
            on_progress=self.on_progress,
            is_stopped=self._is_over,
        )
        for place, trial in zip(tasks, runs, strict=True):
            found[place] = trial
            self.wall_s += trial.wall_s if trial else 0.0
        self.num_replays += len(tasks)
        return found

    def _is_over(self) -> bool:
        return self.is_stopped() or time.monotonic() >= self.deadline_s

    def _task(
        self,
        workload: Workload,
        config: EngineConfig,
        objective: Objective,
        give_up_above: float,
    ) -> TrialTask:
        is_whole = len(workload) == len(self.workload)
        return TrialTask(
            workload=workload,
            findable=self.findable if is_whole else None,
            config=config,
            info=self.make_info(workload, config, objective),
            objective=objective,
            max_concurrency=self.max_concurrency,
            give_up_above=give_up_above,
        )
