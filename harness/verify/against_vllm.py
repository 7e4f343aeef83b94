"""Our scheduler and the installed vLLM's, call by call on the same trace."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from harness.arrivals import ArrivalSource, FrontDoor, MaxConcurrency, OpenLoop
from harness.config import EngineConfig
from harness.engine import Engine
from harness.errors import ConfigError
from harness.executors.executor import Execution
from harness.replay import build_executor, max_barren_calls, scheduler_knobs_v1
from harness.request import Request
from harness.schedulers.batch import Batch, Finished, TransferId
from harness.schedulers.build import build_scheduler_v1
from harness.schedulers.engine_request import EngineRequest
from harness.schedulers.scheduler_v1 import SchedulerV1
from harness.timing import build_step_time
from harness.verify.golden import STUCK_AFTER_CALLS, VerifyResult, num_preempted
from harness.verify.installed_vllm import MOST_SHOWN, InstalledVllm
from harness.verify.rows_v1 import Row, RowRecorderV1, name_of
from harness.workload import Workload

NUM_ROWS_SHOWN = 3
"""Rows that agree which are shown before the first that does not."""


def verify_against_vllm(
    workload: Workload,
    config: EngineConfig,
    *,
    max_concurrency: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> VerifyResult:
    """Replay a workload on the simulated clock, and have vLLM decide every call too.

    Both get the same arrivals before the same calls, and hear of the same finished
    copies after them. It ends with the first difference.

    Raises:
        UsageError: vLLM is not there, lacks a knob or is unknown.
        ConfigError: No request can run.
        EngineError: vLLM failed.
    """
    assert config.policy == "v1", "every vLLM that can be installed beside us is V1"
    knobs = scheduler_knobs_v1(config)
    ours = build_scheduler_v1(**knobs, waits_like_vllm=True)
    theirs = InstalledVllm(**knobs)
    pair = _Pair(ours, theirs, len(workload), on_progress)
    source: ArrivalSource = OpenLoop(workload)
    if max_concurrency is not None:
        source = MaxConcurrency(OpenLoop(workload), max_concurrency)
    step_time = build_step_time(config)
    entry_ns = step_time.overhead.request_ns
    Engine(
        FrontDoor(source, config.max_prompt_tokens, lambda request: None, entry_ns),
        ours,
        build_executor(config, step_time),
        pair,
        num_in_flight=2 if config.async_scheduling else 1,
        stuck_after=STUCK_AFTER_CALLS,
        barren_after=max_barren_calls(config),
        after_turn=lambda: pair.first_divergence is None,
    ).run()
    pair.compare()
    if not pair.num_identical and pair.first_divergence is None:
        raise ConfigError(
            "nothing was compared: no request comes in, as every prompt has more than"
            f" {config.max_prompt_tokens:,} tokens; raise max_model_len"
        )
    return VerifyResult(
        identical=pair.first_divergence is None,
        steps=pair.num_identical,
        first_divergence=pair.first_divergence,
        against=f"vLLM {theirs.version}",
        preemptions=pair.num_preemptions,
    )


class _Pair:
    """Observes our engine, and lets vLLM make the same calls.

    A call's row is complete when the next one begins: then tokens and copies that came
    after the call are known.

    Attributes:
        num_identical: Calls whose rows agree.
        num_preemptions: Preemptions in them.
        first_divergence: The first that does not, as :class:`VerifyResult` has it.
    """

    def __init__(
        self,
        ours: SchedulerV1,
        theirs: InstalledVllm,
        num_requests: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.num_identical = self.num_preemptions = 0
        self.first_divergence: dict[str, Any] | None = None
        self._ours, self._theirs = ours, theirs
        self._recorder = RowRecorderV1(ours)
        self._agreed: deque[Row] = deque(maxlen=NUM_ROWS_SHOWN)
        self._ended: dict[int, list[TransferId]] = {}  # by the row that they came after
        self._num_requests, self._num_done = num_requests, 0
        self._on_progress = on_progress

    def arrived(self, request: Request) -> None:
        """Let vLLM have it too, once it has taken in what was before."""
        self.compare()
        self._theirs.add(request)

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Note our decisions."""
        self.compare()
        self._recorder.scheduled(batch, now_ns)

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """Note the calls that were left out."""
        self._recorder.repeated(batch, num_steps)

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """Note what finished."""
        self._recorder.committed(batch, execution, done)
        self._num_done += len(done)
        if self._on_progress is not None and done:
            self._on_progress(self._num_done, self._num_requests)

    def transferred(self, transfers: Sequence[TransferId]) -> None:
        """Note what to tell vLLM after the same call; it numbers copies as we do."""
        self._ended.setdefault(len(self._recorder.rows) - 1, []).extend(transfers)

    def compare(self) -> None:
        """Let vLLM make the calls that ours has made, up to the first that differs."""
        if self.first_divergence is not None:
            return
        rows, untold = self._recorder.rows, list[TransferId]()
        for place, row in enumerate(rows):
            theirs = self._theirs.schedule()
            untold += self._ended.get(place, [])
            finished, free_end = self._theirs.commit(untold)
            pending = {transfer.job_id for transfer in self._theirs.pending_transfers}
            untold = [number for number in untold if number in pending]
            theirs |= {"finished": finished, "free_end": free_end}
            differences = _differences(row, theirs)
            if differences:
                self._diverge(row["step"], differences)
                break
            self.num_identical += 1
            self.num_preemptions += num_preempted(theirs)
            self._agreed.append(theirs)
        rows.clear()
        self._ended = {0: untold} if untold else {}

    def _diverge(self, now_ns: int, differences: list[dict[str, Any]]) -> None:
        """Describe the first difference, and what led to it."""
        names = _names_in(differences)
        tables = {name_of(r): r.blocks.block_ids.tolist() for r in self._ours.running}
        self.first_divergence = {
            "step": self.num_identical,
            "time_s": now_ns / 1e9,
            "differences": differences,
            "rows_before": list(self._agreed),
            "ours": {
                "running": _shown(self._ours.running),
                "waiting": _shown(self._ours.waiting),
                "loading": _shown(self._ours.loading),
                "blocks": {str(n): tables[n] for n in names if n in tables},
            },
            "theirs": self._theirs.describe(names),
        }


def _differences(ours: Row, theirs: Row) -> list[dict[str, Any]]:
    return [
        {"key": key, "ours": ours.get(key), "theirs": theirs[key]}
        for key in theirs
        if ours.get(key) != theirs[key]
    ]


def _names_in(differences: Iterable[dict[str, Any]]) -> list[int | str]:
    """Requests of which one side says something that the other does not."""
    names: dict[int | str, None] = {}
    for difference in differences:
        for mine, other in (("ours", "theirs"), ("theirs", "ours")):
            if isinstance(difference[mine], list):
                said = [e for e in difference[mine] if e not in (difference[other] or [])]
                names |= dict.fromkeys(e[0] if isinstance(e, list) else e for e in said)
    return list(names)[:MOST_SHOWN]


def _shown(requests: Iterable[EngineRequest]) -> list[int | str]:
    return [name_of(request) for request in islice(requests, MOST_SHOWN)]
