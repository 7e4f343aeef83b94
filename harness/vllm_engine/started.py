"""vLLM started by us: its process, watched from here, and what it leaves behind."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from harness.errors import UsageError
from harness.replay import Findable, findable_of
from harness.vllm_engine.child_rows import (
    NO_BLOCKS,
    NOTHING_SEEN,
    ChildRows,
    OnProgress,
)
from harness.vllm_engine.log import (
    attention_backend,
    has_cause,
    is_out_of_memory,
    last_telling_line,
    quoted,
    read_log,
)
from harness.vllm_engine.measured_run import MeasuredRun
from harness.vllm_engine.process import ChildProcess, Event
from harness.vllm_engine.spec import EngineSpec, write_task
from harness.vllm_engine.task_folder import TaskFolder
from harness.vllm_engine.vigil import Patience, Vigil
from harness.workload import Workload
from profiles.errors import ProfileError
from profiles.startup_log import parse_startup_log
from results.journal import Journal
from results.measured import Measurement
from results.output import ENGINE_LOG
from results.run_info import Ending, Outcome


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
        self._folder = TaskFolder()
        self.log = self._folder.path / ENGINE_LOG
        self._child: ChildProcess | None = None
        self._started: Event = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
        self._folder.remove()

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
        write_task(self._folder.path, self._spec, self._workload)
        try:
            self._child = ChildProcess(
                self._python, self._folder.path, self.log, self._command
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
        self._process.note_segments()
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
        said = last_telling_line(read_log(self.log))
        failure = _cause(failure, said)
        self._process.kill()
        how = f"its process ended {self._process.how_it_ended()}"
        is_memory = is_out_of_memory(failure or said)
        kind = "vllm_out_of_memory" if is_memory else "vllm_did_not_start"
        return _ended(kind, failure, how, said)

    def never_ran(self, outcome: Outcome) -> MeasuredRun:
        """The run of an engine that did not start: each request failed before it."""
        rows = ChildRows(self._workload, None, None, None)
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
        rows = ChildRows(self._workload, findable, on_progress, journal)
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
        self, rows: ChildRows, is_stopped: Callable[[], bool]
    ) -> tuple[Outcome, Event]:
        """Take in events until the run has ended; how, and what came with the end."""
        vigil = Vigil(self._patience.hang_after_s)
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

    def _died(self, failure: str, vigil: Vigil) -> Outcome:
        said = last_telling_line(read_log(self.log))
        if vigil.is_hung:
            how = f"it made no step for {vigil.hang_after_s:g} s"
            return _ended("vllm_hung", "", how, said)
        failure = _cause(failure, said)
        is_memory = is_out_of_memory(failure or said)
        kind = "vllm_out_of_memory" if is_memory else "vllm_crashed"
        return _ended(kind, failure, self._process.how_it_ended(), said)


def _cause(failure: str, said: str) -> str:
    """The reason that a child gave; its log's where that is that a worker failed."""
    return failure if has_cause(failure) or not said else said


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
