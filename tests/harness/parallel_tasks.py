"""Tasks for test_parallel.py; by themselves, so that other processes import nothing else.

As a script: a pool at work until a signal comes, which prints a line once it is, and the
results. With ``early`` it prints that line, and waits for the signal, before it begins.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from harness.parallel import Progress, ReplayPool

OnProgress = Callable[[int, int], None]
IsStopped = Callable[[], bool]


class ChattyError(Exception):
    """Can be pickled, but not restored."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")


def double(number: int, on_progress: OnProgress, _: IsStopped) -> tuple[int, int]:
    """The double and the process; small numbers take longer."""
    time.sleep(0.1 / (1 + number))
    on_progress(number, 10)
    return 2 * number, os.getpid()


def until_stopped(name: str, on_progress: OnProgress, is_stopped: IsStopped) -> str:
    """The name, once told to stop."""
    num_turns = 0
    while not is_stopped():
        num_turns += 1
        on_progress(num_turns, 1_000_000)
        time.sleep(0.005)
    return name


def fail(error: Exception | None, on_progress: OnProgress, is_stopped: IsStopped) -> None:
    """Raise the error; without one go on until stopped."""
    if error is None:
        until_stopped("", on_progress, is_stopped)
    else:
        raise error


def fail_chattily(_: object, __: OnProgress, ___: IsStopped) -> None:
    """Raise an error that the caller cannot restore."""
    raise ChattyError(7, "too much to say")


def return_lambda(_: object, __: OnProgress, ___: IsStopped) -> Callable[[], None]:
    """A result that does not pickle."""
    return lambda: None


def die(name: str, on_progress: OnProgress, is_stopped: IsStopped) -> str:
    """As by the OOM killer where the name is ``victim``."""
    if name == "victim":
        os.kill(os.getpid(), signal.SIGKILL)
    return until_stopped(name, on_progress, is_stopped)


def never_ask(_: object, on_progress: OnProgress, __: IsStopped) -> None:
    """Compute for a minute, whatever anybody says."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        on_progress(1, 2)


def main() -> None:
    """Work on two tasks until a signal comes, perhaps before they begin."""
    task = never_ask if "never_ask" in sys.argv else until_stopped
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: received.append(number))
    begun: list[bool] = []

    def tell(progress: Sequence[Progress]) -> None:
        if not begun and all(task.done for task in progress):
            begun.append(True)
            print("at work", flush=True)

    with ReplayPool(2, preload=["harness.replay"]) as pool:
        if "early" in sys.argv:
            time.sleep(0.1)  # the server is about to import
            print("at work", flush=True)
            while not received:
                time.sleep(0.01)
        results = pool.map(
            task,
            ["a", "b"],
            labels=["a", "b"],
            on_progress=tell,
            is_stopped=lambda: bool(begun and received),
        )
    print(results)


if __name__ == "__main__":
    main()
