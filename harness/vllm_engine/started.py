"""vLLM started by us: its process, watched from here, and what it leaves behind."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.errors import UsageError
from harness.replay import Findable, findable_of
from harness.vllm_engine.log import (
    attention_backend,
    is_out_of_memory,
    last_telling_line,
    quoted,
    read_log,
)
from harness.vllm_engine.measured_run import MeasuredRun
from harness.vllm_engine.process import ChildProcess, Event
from harness.vllm_engine.spec import EngineSpec, write_task
from harness.workload import Workload
from profiles.errors import ProfileError
from profiles.startup_log import parse_startup_log
from results.journal import Journal
from results.measured import Measurement
from results.output import ENGINE_LOG
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows
from results.run_info import Ending, Outcome

NO_BLOCKS = 2**40
"""Tokens in a block where there is none."""

GRACE_S = 10.0
"""Wall time in which a child that was told to stop may end its step and report."""

_TIMES = ("start_ns", "end_ns", "num_steps", "first_step_ns", "last_step_ns")
NOTHING_SEEN = (
    *(f"steps.{n}" for n in StepRecord.__dataclass_fields__ if n not in _TIMES),
    "requests.num_cached_tokens",
    "requests.num_offload_cached_tokens",
    "requests.num_recompute_cached_tokens",
    "requests.num_recomputed_tokens",
    "requests.num_preemptions",
)
"""What nobody has seen of an engine that did not start."""

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a child that gets nothing done, in seconds.

    Attributes:
        start_s: Until vLLM has started, weights and graphs included.
        hang_after_s: From one step of an engine with work to the next.
    """

    start_s: float = 1_800.0
    hang_after_s: float = 300.0


class EngineDidNotStartError(Exception):
    """vLLM did not start.

    Attributes:
        outcome: How its run ended before it began.
        log: The file with what it printed, until the engine is closed.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class StartedVllm:
    """A vLLM in a process of its own, which gets one workload.

    Entering the context starts it; leaving ends the process, whatever it has started,
    and removes its files.

    Args:
        spec: What to start.
        workload: What to replay on it.
        python: Its interpreter; this one by default.
        patience: When it is given up.
        command: What to run in place of our child, for tests.

    Attributes:
        facts: What the engine says of itself; nothing before it has started.
        log: The file with all that it prints.
    """

    def __init__(
        self,
        spec: EngineSpec,
        workload: Workload,
        *,
        python: Path | None = None,
        patience: Patience | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.facts: dict[str, Any] = {}
        self._spec, self._workload = spec, workload
        self._patience = patience or Patience()
        self._python = str(python or sys.executable)
        self._command = command
        self._folder = Path(tempfile.mkdtemp(prefix="blockbench-vllm-"))
        self.log = self._folder / ENGINE_LOG
        self._child: ChildProcess | None = None
        self._started: Event = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the process that vLLM runs in."""
        return self._process.pid

    @property
    def _process(self) -> ChildProcess:
        assert self._child is not None, "start comes first"
        return self._child

    # -- the start ---------------------------------------------------------------------

    def start(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Start vLLM and wait until it could serve.

        Args:
            is_stopped: Asked now and then; the start is given up once it says so.

        Raises:
            UsageError: The interpreter has no vLLM or no blockbench, or vLLM does not
                take what was asked for.
            EngineDidNotStartError: vLLM failed, or took too long.
            KeyboardInterrupt: Somebody stopped it.
        """
        write_task(self._folder, self._spec, self._workload)
        try:
            self._child = ChildProcess(
                self._python, self._folder, self.log, self._command
            )
        except OSError as error:
            raise UsageError(
                f"--vllm-python {self._python} cannot be run: {error.strerror}; name a"
                " Python that has vLLM and blockbench"
            ) from error
        deadline_s = time.monotonic() + self._patience.start_s
        has_said_hello = False
        failure = ""
        for event in self._process.events(is_stopped):
            kind = "" if event is None else event["event"]
            has_said_hello = has_said_hello or kind == "hello"
            if event is not None and kind == "started":
                self._take_start(event)
                return
            if event is not None and kind == "failed":
                failure = event["message"]
                if event["is_usage"]:
                    raise UsageError(failure)
            if time.monotonic() > deadline_s:
                failure = f"no start within {self._patience.start_s:g} s"
                break
        if is_stopped():
            raise KeyboardInterrupt
        self._refuse_python(has_said_hello)
        raise EngineDidNotStartError(self._failed_start(failure))

    def _take_start(self, event: Event) -> None:
        lines = read_log(self.log)
        self._started = event
        self.facts = event["facts"] | {"attention_backend": attention_backend(lines)}
        with suppress(ProfileError):
            log = parse_startup_log(lines, str(self.log))
            self.facts["kv_cache_tokens"] = log.kv_cache_tokens
            self.facts["kv_cache_gib"] = log.kv_cache_gib
            self.facts["weights_gib"] = log.weights_gib

    def _refuse_python(self, has_said_hello: bool) -> None:
        said = last_telling_line(read_log(self.log))
        if not has_said_hello and "No module named 'harness" in said:
            raise UsageError(
                f"{self._python} has no blockbench ({said}); install this version of it"
                " there, beside vLLM"
            )

    def _failed_start(self, failure: str) -> Outcome:
        lines = read_log(self.log)
        said = last_telling_line(lines)
        self._process.kill()
        how = f"its process ended {self._process.how_it_ended()}"
        is_memory = is_out_of_memory(failure or said)
        kind = "vllm_out_of_memory" if is_memory else "vllm_did_not_start"
        return _ended(kind, failure, how, said)

    def never_ran(self, outcome: Outcome) -> MeasuredRun:
        """The run of an engine that did not start: each request failed before it."""
        rows = _Rows(self._workload, None, None, None)
        return MeasuredRun(
            requests=rows.all_requests(outcome, NO_BLOCKS),
            steps=rows.steps,
            outcome=outcome,
            wall_s=0.0,
            measurement=self.measurement(),
        )

    # -- the run -----------------------------------------------------------------------

    def measurement(self, end: Event | None = None) -> Measurement:
        """What is known besides rows: as the run begins, or with what came at its end."""
        end = end or {}
        started = self._started
        facts = self.facts | end.get("readings", {})
        if "recording_s" in end:
            facts["recording_s"] = end["recording_s"]
        unmeasured = end.get("unmeasured") or started.get("unmeasured", NOTHING_SEEN)
        return Measurement(
            unmeasured=tuple(unmeasured),
            counters=end.get("counters", {}),
            facts=facts,
            lateness_s=end.get("lateness_s"),
            is_cold=started.get("is_cold"),
            warmup_requests=self._spec.warmup_requests,
            notes=tuple(end.get("notes", ())),
        )

    def replay(
        self,
        *,
        findable: Findable = None,
        on_progress: OnProgress | None = None,
        journal: Journal | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> MeasuredRun:
        """Let the replay begin, and record it to its end, however it ends.

        Args:
            findable: What a cache could find of each prompt, where it is known already.
            on_progress: Called with requests done and requests in all.
            journal: Gets the rows as they come.
            is_stopped: Asked now and then; the run ends early once it says so.
        """
        if findable is None:
            findable = findable_of(self._workload, self.facts["policy"])
        rows = _Rows(self._workload, findable, on_progress, journal)
        started_s = time.monotonic()
        self._process.order("go")
        outcome, end = self._follow(rows, is_stopped)
        self._process.kill()
        return MeasuredRun(
            requests=rows.all_requests(outcome, self.facts["block_size"]),
            steps=rows.steps,
            outcome=outcome,
            wall_s=end.get("wall_s", time.monotonic() - started_s),
            measurement=self.measurement(end),
        )

    def _follow(
        self, rows: "_Rows", is_stopped: Callable[[], bool]
    ) -> tuple[Outcome, Event]:
        """Take in events until the run has ended; how, and what came with the end."""
        vigil = _Vigil(self._patience.hang_after_s)
        failure = ""
        for event in self._process.events(vigil.is_over):
            if is_stopped() and not vigil.is_stopping:
                vigil.stop()
                self._process.order("stop")
            if event is None:
                continue
            kind = event["event"]
            if kind == "beat":
                vigil.beat(event)
            elif kind == "rows":
                rows.take(event)
            elif kind == "failed":
                failure = event["message"]
            elif kind == "ended":
                ending = Ending.INTERRUPTED if event["is_stopped"] else Ending.COMPLETE
                return Outcome(ending=ending), event
        if vigil.is_stopping:
            return Outcome(ending=Ending.INTERRUPTED), {}
        return self._died(failure, vigil), {}

    def _died(self, failure: str, vigil: "_Vigil") -> Outcome:
        said = last_telling_line(read_log(self.log))
        if vigil.is_hung:
            how = f"it made no step for {vigil.hang_after_s:g} s"
            return _ended("vllm_hung", "", how, said)
        is_memory = is_out_of_memory(failure or said)
        kind = "vllm_out_of_memory" if is_memory else "vllm_crashed"
        return _ended(kind, failure, self._process.how_it_ended(), said)


def _ended(kind: str, failure: str, how: str, said: str) -> Outcome:
    """The outcome of an engine that failed.

    Args:
        kind: A word for scripts.
        failure: What it gave as the reason; nothing where it could not.
        how: What was seen from outside.
        said: The last line of its log that tells anything.
    """
    message = failure or (f"{how}; it said last: {said}" if said else how)
    return Outcome(ending=Ending.DIED, kind=kind, message=quoted(message))


class _Vigil:
    """Watches whether a child gets anything done.

    Attributes:
        is_hung: It had work and made no step for too long, or said nothing at all.
        is_stopping: It was told to end.
    """

    def __init__(self, hang_after_s: float) -> None:
        self.hang_after_s = hang_after_s
        self.is_hung = self.is_stopping = False
        self._num_progress = -1
        self._deadline_s = time.monotonic() + hang_after_s

    def beat(self, event: Event) -> None:
        """Take note of a sign of life; only what was got done gives more time."""
        if not event["has_work"] or event["num_progress"] != self._num_progress:
            self._num_progress = event["num_progress"]
            if not self.is_stopping:
                self._deadline_s = time.monotonic() + self.hang_after_s

    def stop(self) -> None:
        """Give it a last while."""
        self.is_stopping = True
        self._deadline_s = time.monotonic() + GRACE_S

    def is_over(self) -> bool:
        """Whether its time is up."""
        if time.monotonic() <= self._deadline_s:
            return False
        self.is_hung = not self.is_stopping
        return True


class _Rows:
    """What the child has recorded so far."""

    def __init__(
        self,
        workload: Workload,
        findable: Findable,
        on_progress: OnProgress | None,
        journal: Journal | None,
    ) -> None:
        self.steps: Rows[StepRecord] = Rows(StepRecord)
        self._requests: dict[int, RequestRecord] = {}
        self._done: set[int] = set()
        self._workload, self._findable = workload, findable
        self._on_progress, self._journal = on_progress, journal

    def take(self, event: Event) -> None:
        """Take in what is new."""
        steps = [StepRecord(**step) for step in event["steps"]]
        for step in steps:
            self.steps.append(step)
        requests = [self._request(values) for values in event["requests"]]
        for record in requests:
            self._requests[record.request_id] = record
            if record.finished_ns is not None:
                self._done.add(record.request_id)
        if self._journal is not None:
            self._journal.append(requests, steps)
        if self._on_progress is not None:
            self._on_progress(len(self._done), len(self._workload))

    def all_requests(self, outcome: Outcome, block_size: int) -> Rows[RequestRecord]:
        """One record a request, those included to which the run did not come."""
        if outcome.ending is not Ending.COMPLETE:
            self._break_off(outcome.reason, block_size)
        ordered = sorted(self._requests)
        return Rows(RequestRecord, (self._requests[number] for number in ordered))

    def _request(self, values: dict[str, Any]) -> RequestRecord:
        values["status"] = RequestStatus(values["status"])
        record = RequestRecord(**values)
        if self._findable is not None:
            shared, with_prompts = (int(t[record.request_id]) for t in self._findable)
            record.num_shared_tokens = shared
            record.num_shared_prompt_tokens = with_prompts
        return record

    def _break_off(self, reason: str, block_size: int) -> None:
        end_ns = int(self.steps[-1].end_ns) if len(self.steps) else 0
        for request_id in range(len(self._workload)):
            record = self._requests.get(request_id)
            if record is None:
                record = self._never_sent(request_id, end_ns, block_size)
                record.reason = reason
            elif record.finished_ns is None:
                record.status, record.reason = RequestStatus.FAILED, reason
            else:
                continue
            self._requests[request_id] = record
            if self._journal is not None:
                self._journal.append([record], [])

    def _never_sent(self, request_id: int, end_ns: int, block_size: int) -> RequestRecord:
        request = self._workload.request(request_id)
        arrival_ns = max(request.arrival_ns, end_ns)
        return self._request(
            {
                "request_id": request_id,
                "arrival_ns": arrival_ns,
                "queued_ns": arrival_ns,
                "num_prompt_tokens": request.num_prompt_tokens,
                "n": request.n,
                "num_requested_tokens": request.num_requested_tokens,
                "num_demand_blocks": request.num_demand_blocks(block_size),
                "status": RequestStatus.FAILED,
            }
        )
