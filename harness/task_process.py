"""A process that does one task after the other, seen from both sides."""

import ctypes
import multiprocessing
import os
import pickle
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.util import get_temp_dir
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.errors import EngineError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext

    Context: TypeAlias = ForkServerContext | SpawnContext

GRACE_S = 5.0
"""Wall time in which a task whose result nobody wants may end by itself."""

_UNWANTED = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
]
"""Signals that a terminal sends to the whole group, where the parent decides."""


def start_server(preload: Sequence[str]) -> "Context":
    """The safest way to start processes here, its server on the way up."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", *preload])
    for server in (resource_tracker, forkserver):  # starting the first unblocks signals
        with _unwanted_signals_blocked(), _folder_not_imported_from():
            server.ensure_running()
    return context


@contextmanager
def _unwanted_signals_blocked() -> Iterator[None]:
    """Keep signals from what is started meanwhile, for good; here they only wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _UNWANTED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _folder_not_imported_from() -> Iterator[None]:
    """Keep a Python that is started meanwhile from the modules of the folder we are in.

    The server would import what it preloads from there: another checkout of ours, or a
    ``results.py`` of somebody's.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


class Board:
    """Memory that all processes see: whether to stop, and how far each one's task is.

    Nothing locks it: each cell has one writer at a time, and is written at once.
    """

    def __init__(self, context: "Context", num_processes: int) -> None:
        self._cells: ctypes.Array[ctypes.c_longlong] = context.RawArray(
            ctypes.c_longlong, 1 + 2 * num_processes
        )

    def stop(self) -> None:
        """Tell all tasks to end."""
        self._cells[0] = 1

    def reset(self) -> None:
        """Let tasks run."""
        self._cells[0] = 0

    def is_stopped(self) -> bool:
        """Whether tasks have to end."""
        return bool(self._cells[0])

    def note(self, slot: int, done: int, total: int) -> None:
        """Write down how far the task of a process is."""
        self._cells[2 * slot + 2] = total
        self._cells[2 * slot + 1] = done

    def counts(self, slot: int) -> tuple[int, int]:
        """Done and total of a process's task."""
        done, total = self._cells[2 * slot + 1 : 2 * slot + 3]
        return done, total


class TaskProcess:
    """A process, seen by its parent.

    Attributes:
        index: Of the task that it works on; None while idle.
        connection: Has the outcome of that task, or is at its end when the process is
            gone: no other has the far side.
    """

    def __init__(self, context: "Context", board: Board, slot: int) -> None:
        self.index: int | None = None
        self._label = ""
        self.connection, theirs = context.Pipe()
        self._board = board
        self._slot = slot
        self._process = context.Process(
            target=_work, args=(theirs, board, slot), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def counts(self) -> tuple[int, int]:
        """Done and total, as its task told last."""
        return self._board.counts(self._slot)

    def begin(
        self, index: int, label: str, task: Callable[..., Any], argument: object
    ) -> None:
        """Give it a task.

        Raises:
            EngineError: It is gone.
        """
        message = pickle.dumps((task, argument))
        self.index = index
        self._label = label
        self._board.note(self._slot, 0, 0)
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise self._is_gone() from None

    def outcome(self) -> Any:
        """The result of its task, after which it is idle.

        Raises:
            EngineError: It is gone.
            Exception: Whatever the task raised.
        """
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._is_gone() from None
        has_raised, outcome, where = pickle.loads(message)
        if has_raised:
            outcome.add_note(where)
            raise outcome
        self.index = None
        return outcome

    def _is_gone(self) -> EngineError:
        self._process.join(GRACE_S)
        code = self._process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {-code}, perhaps for want of memory"
        return EngineError(
            f"the process that worked on {self._label} ended with {how}; each process"
            " needs memory for a replay of its own; run fewer jobs at a time"
        )

    def dismiss(self) -> None:
        """Have it end once it has no task."""
        self.connection.close()

    def end(self, deadline_s: float) -> None:
        """Wait for a process that was dismissed; kill it after the deadline."""
        self._process.join(max(0.0, deadline_s - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()  # it ignores SIGTERM
            self._process.join()
        self._process.close()


def _work(connection: "Connection", board: Board, slot: int) -> None:
    """Do what comes through the connection until the parent closes it."""
    for number in _UNWANTED:
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    on_progress = partial(board.note, slot)
    try:
        while True:
            message = connection.recv_bytes()
            connection.send_bytes(_do(message, on_progress, board.is_stopped))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    """End at once, in the midst of a task too, when the parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process that works has a parent"
    parent.join()
    # Whoever is killed leaves the folder of the server's socket behind.
    shutil.rmtree(get_temp_dir(), ignore_errors=True)
    os._exit(1)


def _do(
    message: bytes,
    on_progress: Callable[[int, int], None],
    is_stopped: Callable[[], bool],
) -> bytes:
    """The pickled outcome of a task: whether it raised, what came of it, and where."""
    try:
        task, argument = pickle.loads(message)
        return pickle.dumps((False, task(argument, on_progress, is_stopped), ""))
    except BaseException as error:
        where = f"raised in another process:\n{traceback.format_exc()}"
        return pickle.dumps((True, _portable(error), where))


def _portable(error: BaseException) -> BaseException:
    """The error, or what can be said of one that cannot leave its process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
