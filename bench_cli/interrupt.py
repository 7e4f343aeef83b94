"""Ctrl-C: once to end a run early, and never while what it found is being saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn


@contextmanager
def one_ctrl_c() -> Iterator[Callable[[], None]]:
    """Let only the first Ctrl-C interrupt; the function given ignores that one too.

    A second Ctrl-C, pressed out of impatience, would lose the run that the first one
    ended. Afterwards Ctrl-C does what it did before. Where it was ignored it still is,
    as in a script's background job.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or current_thread() is not main_thread():
        yield lambda: None
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield _ignore
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    _ignore()
    raise KeyboardInterrupt


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
