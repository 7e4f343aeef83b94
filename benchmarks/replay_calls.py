"""Who arrived before which call of a scheduler, so that another one gets the same.

``replay_speed.py`` runs this file with the interpreter of a vLLM: ``replay_calls.py
CALLS`` makes the calls in that file of vLLM's own scheduler and prints a JSON document.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from harness.request import Request

Calls = Sequence[Sequence[Request]]
"""For each call, the requests that arrived since the one before."""

Knobs = dict[str, Any]

MAX_CALLS_AFTER = 8


class Diary:
    """Stands before a scheduler and notes who arrived between which calls."""

    def __init__(self, scheduler: Any) -> None:
        self.calls: list[list[Request]] = []
        self._scheduler = scheduler
        self._arrived: list[Request] = []

    def add(self, request: Request) -> None:
        """Pass a request on."""
        self._arrived.append(request)
        self._scheduler.add(request)

    def schedule(self) -> Any:
        """Pass the question for the next step on."""
        self.calls.append(self._arrived)
        self._arrived = []
        return self._scheduler.schedule()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class Stopwatch:
    """Seconds spent in the methods that it was given.

    Attributes:
        total_s: Seconds so far; a method that another one calls counts with that one.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self._is_running = False

    def watch(self, holder: Any, *names: str) -> None:
        """Time these methods of the object from now on."""
        for name in names:
            setattr(holder, name, self._timed(getattr(holder, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            if self._is_running:
                return method(*args)
            self._is_running = True
            started = time.process_time()
            result = method(*args)
            self.total_s += time.process_time() - started
            self._is_running = False
            return result

        return timed


class Callee(Protocol):
    """A scheduler that is called once for each step."""

    def add(self, request: Request) -> None:
        """Take in a request that has arrived."""

    def schedule(self) -> Any:
        """Decide the next step."""

    def commit(self) -> Any:
        """Take in the tokens that are due: the last step's or those of the one before."""

    @property
    def has_unfinished(self) -> bool:
        """Whether there is something left to decide or to hand in."""


class InOrder:
    """A callee of a scheduler to which each step is handed back.

    Args:
        scheduler: Its ``commit`` takes a step.
        num_ahead: Steps that are decided before the tokens of one are in.
    """

    def __init__(self, scheduler: Any, *, num_ahead: int) -> None:
        self._scheduler = scheduler
        self._num_ahead = num_ahead
        self._in_flight: deque[Any] = deque()

    def add(self, request: Request) -> None:
        """Take in a request that has arrived."""
        self._scheduler.add(request)

    def schedule(self) -> None:
        """Decide the next step."""
        self._in_flight.append(self._scheduler.schedule())

    def commit(self) -> None:
        """Hand in the oldest step, unless it is to stay in flight."""
        if len(self._in_flight) > self._num_ahead:
            self._scheduler.commit(self._in_flight.popleft())

    @property
    def has_unfinished(self) -> bool:
        """Whether there is something left to decide or to hand in."""
        return bool(self._scheduler.has_unfinished)


def play(calls: Calls, callee: Callee) -> None:
    """Make the calls, and those that the last tokens need.

    Raises:
        AssertionError: A request is left at the end: the callee decides differently.
    """
    for arrived in calls:
        for request in arrived:
            callee.add(request)
        callee.schedule()
        callee.commit()
    for _ in range(MAX_CALLS_AFTER):
        if callee.has_unfinished:
            callee.schedule()
            callee.commit()
    assert not callee.has_unfinished, "requests are left after the last call"


def write_calls(path: Path, knobs: Knobs, calls: Calls) -> None:
    """Keep calls, and what the scheduler is built with, in a file."""
    plain = [[asdict(request) for request in arrived] for arrived in calls]
    path.write_text(json.dumps({"knobs": knobs, "calls": plain}))


def read_calls(path: Path) -> tuple[Knobs, Calls]:
    """Read them back."""
    document = json.loads(path.read_text())
    calls = [[_request(plain) for plain in arrived] for arrived in document["calls"]]
    return document["knobs"], calls


def _request(plain: dict[str, Any]) -> Request:
    runs = {name: tuple(map(tuple, plain[name])) for name in ("prompt", "outputs")}
    return Request(**plain | runs | {"extra_keys": tuple(plain["extra_keys"])})


def main() -> None:
    """Make the calls of a file of the installed vLLM's scheduler."""
    from harness.verify.installed_vllm import InstalledVllm

    knobs, calls = read_calls(Path(sys.argv[1]))
    vllm, watch = InstalledVllm(**knobs), Stopwatch()
    # What the driver does around these calls is not vLLM's. Hashing is: it does that
    # when a request is made, and when a token fills a block.
    watch.watch(vllm, "_hasher")
    watch.watch(vllm._scheduler, "add_request", "schedule", "update_from_output")
    play(calls, vllm)
    print(json.dumps({"version": vllm.version, "cpu_s": watch.total_s}))


if __name__ == "__main__":
    main()
