"""Replays side by side, each in a process of its own, watched and stopped together."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Generic, Self, TypeAlias, TypeVar

from harness.errors import UsageError
from harness.task_process import GRACE_S, Board, TaskProcess, start_server

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Task: TypeAlias = Callable[
    [Argument, Callable[[int, int], None], Callable[[], bool]], Result
]
"""``task(argument, on_progress, is_stopped)``: a function at the top of a module.

It calls ``on_progress(done, total)`` as it gets on, and ends early, with what it has,
once ``is_stopped()``; each takes 0.2 µs at most. Argument and result must pickle.
"""

POLL_S = 0.1
"""Wall time between two looks at how far the tasks are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a task is.

    Attributes:
        label: What the caller calls it.
        done: As the task told last.
        total: As the task told last; 0 before it told anything.
        is_finished: Whether its result is there.
    """

    label: str
    done: int = 0
    total: int = 0
    is_finished: bool = False


def default_jobs() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ReplayPool:
    """Processes that work on tasks, at most ``jobs`` at a time; a context manager.

    A process is started when there is a task for it, does one task after the other, and
    keeps what its modules cache. It ignores Ctrl-C, SIGTERM and SIGHUP, which concern the
    parent, and ends with the pool, or when the parent is gone.

    Where the platform has it they are forked from a server, which starts at once and
    imports ``preload`` while the caller goes on. Python has one such server: the first
    pool determines what it imports, and whoever else uses ``forkserver`` in this process
    gets processes that these signals do not reach.

    Args:
        jobs: Processes at most.
        preload: Modules that the tasks need, and the one that holds the command: before
            its first task a process imports what the running script does.

    Raises:
        UsageError: ``jobs`` is below 1.
    """

    def __init__(self, jobs: int, *, preload: Sequence[str] = ()) -> None:
        if jobs < 1:
            raise UsageError(
                f"{jobs} jobs were asked for; a replay needs at least 1; ask for up to"
                f" {default_jobs()}, one for each CPU"
            )
        self._jobs = jobs
        self._context = start_server(preload)
        self._board = Board(self._context, jobs)
        self._processes: list[TaskProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_processes()

    def map(
        self,
        task: Task[Argument, Result],
        arguments: Sequence[Argument],
        *,
        labels: Sequence[str],
        on_progress: Callable[[Sequence[Progress]], None] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> list[Result | None]:
        """The task's results, in the order of ``arguments``.

        Whatever this raises, the tasks that run are told to stop first, and those that
        have not after ``GRACE_S`` are killed.

        Args:
            task: What to do with each argument.
            arguments: Begun in this order.
            labels: What each is called in progress and errors.
            on_progress: Called every ``POLL_S``, and when all is done.
            is_stopped: Asked at least every ``POLL_S``. Once it says so, tasks that run
                are told, and their results kept; those not begun never are, and have None
                for a result.

        Raises:
            EngineError: A process was killed.
            Exception: Whatever a task raised, the traceback as a note. One that does not
                pickle comes as a RuntimeError with its text.
        """
        batch = _Batch(task, arguments, labels)
        self._board.reset()
        try:
            self._run(batch, on_progress, is_stopped)
        except BaseException:
            self._end_processes()
            raise
        return batch.results

    def _run(
        self,
        batch: "_Batch[Argument, Result]",
        on_progress: Callable[[Sequence[Progress]], None] | None,
        is_stopped: Callable[[], bool],
    ) -> None:
        due_s = time.monotonic()
        while True:
            if is_stopped():
                self._board.stop()
            if not self._board.is_stopped():
                self._begin(batch)
            busy = [p for p in self._processes if p.index is not None]
            if on_progress is not None and (not busy or time.monotonic() >= due_s):
                on_progress(batch.progress(busy))
                due_s = time.monotonic() + POLL_S
            if not busy:
                return
            by_connection: dict[Any, TaskProcess] = {p.connection: p for p in busy}
            for ready in wait(by_connection, POLL_S):
                batch.finish(by_connection[ready])

    def _begin(self, batch: "_Batch[Argument, Result]") -> None:
        """Give tasks to those who have none."""
        while batch.num_waiting and (process := self._idle_process()):
            batch.begin(process)

    def _idle_process(self) -> TaskProcess | None:
        """A process without a task, new if need be; None where all have one."""
        for process in self._processes:
            if process.index is None:
                return process
        if len(self._processes) == self._jobs:
            return None
        process = TaskProcess(self._context, self._board, slot=len(self._processes))
        self._processes.append(process)
        return process

    def _end_processes(self) -> None:
        """Have all processes end, those that are busy within ``GRACE_S``."""
        self._board.stop()
        for process in self._processes:
            process.dismiss()
        deadline_s = time.monotonic() + GRACE_S
        while self._processes:
            self._processes[-1].end(deadline_s)
            self._processes.pop()


class _Batch(Generic[Argument, Result]):
    """One call of ``map``: what waits, how far the rest is, and the results."""

    def __init__(
        self,
        task: Task[Argument, Result],
        arguments: Sequence[Argument],
        labels: Sequence[str],
    ) -> None:
        assert len(arguments) == len(labels), "each argument has one label"
        self.results: list[Result | None] = [None] * len(arguments)
        self._task = task
        self._arguments = arguments
        self._progress = [Progress(label=label) for label in labels]
        self._num_begun = 0

    @property
    def num_waiting(self) -> int:
        """Tasks that nobody has begun."""
        return len(self._arguments) - self._num_begun

    def begin(self, process: TaskProcess) -> None:
        """Give the next task to an idle process."""
        index = self._num_begun
        self._num_begun += 1
        label = self._progress[index].label
        process.begin(index, label, self._task, self._arguments[index])

    def finish(self, process: TaskProcess) -> None:
        """Take the outcome from a process that has one, or is gone."""
        index = self._take_counts(process)
        self.results[index] = process.outcome()
        self._progress[index] = replace(self._progress[index], is_finished=True)

    def progress(self, busy: Iterable[TaskProcess]) -> Sequence[Progress]:
        """How far each task is, in order."""
        for process in busy:
            self._take_counts(process)
        return tuple(self._progress)

    def _take_counts(self, process: TaskProcess) -> int:
        index = process.index
        assert index is not None, "only a busy process gets on"
        done, total = process.counts
        self._progress[index] = replace(self._progress[index], done=done, total=total)
        return index
