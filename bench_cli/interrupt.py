"""Ctrl-C, ``kill`` and a closed terminal end a run early, and never lose it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType

STOPPING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
)


def _tell(message: str) -> None:
    """Write to stderr at once, past whatever is being printed."""
    with suppress(OSError):
        os.write(2, f"\n{message}\n".encode())


@contextmanager
def stopped_by_signals(
    said: str = "stopping; what was recorded is being saved",
) -> Iterator[Callable[[], bool]]:
    """Whether somebody asked the process to stop, as a function to be asked.

    Nothing is interrupted: the run ends where its books agree, and is saved. A second
    Ctrl-C, pressed out of impatience, changes nothing. Afterwards signals do what they
    did before; those that were ignored still are, as in a script's background job.

    Args:
        said: On stderr, once, when the first signal comes.
    """
    if current_thread() is not main_thread():
        yield lambda: False
        return
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if not received:
            _tell(said)
        received.append(number)

    before = {number: signal.getsignal(number) for number in STOPPING}
    heeded = [number for number in STOPPING if before[number] is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, note)
    try:
        yield lambda: bool(received)
    finally:
        for number in heeded:
            signal.signal(number, before[number] or signal.SIG_DFL)
