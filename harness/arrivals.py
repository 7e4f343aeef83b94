"""When requests reach the engine."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from harness.errors import UsageError
from harness.request import Request
from harness.workload import Workload


class ArrivalSource(Protocol):
    """Hands out the requests of a workload as their time comes."""

    def next_ns(self) -> int | None:
        """When the next request arrives; None if nothing will, or not before an end."""

    def pop_due(self, now_ns: int) -> list[Request]:
        """Hand out what has arrived by now, by arrival time, then request id."""

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Take note that a request has left the engine, however it left."""


class OpenLoop:
    """Requests arrive at the workload's times, whatever the engine does.

    Only a turn waits: it arrives its delay after the turn before it has left.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        roots = np.flatnonzero(workload.parent < 0)
        by_time = np.argsort(workload.arrival_ns[roots], kind="stable")
        # As views: single numbers are read faster through them.
        self._roots = roots[by_time].data
        self._root_ns = workload.arrival_ns[roots[by_time]].data
        self._num_roots_sent = 0
        self._released: list[tuple[int, int]] = []  # heap of (time, request id)
        self._turns_after: dict[int, list[int]] = {}
        for turn in np.flatnonzero(workload.parent >= 0).tolist():
            self._turns_after.setdefault(int(workload.parent[turn]), []).append(turn)
        self._first = self._find_first()

    def next_ns(self) -> int | None:
        """The earliest time among what waits for nothing but time."""
        return None if self._first is None else self._first[0]

    def pop_due(self, now_ns: int, limit: int | None = None) -> list[Request]:
        """Hand out what has arrived by now, at most ``limit`` requests."""
        due: list[Request] = []
        while self._first is not None and self._first[0] <= now_ns:
            if len(due) == limit:
                break
            arrival_ns, request_id = self._first
            self._drop_first()
            due.append(self._workload.request(request_id, arrival_ns=arrival_ns))
        return due

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Release the turns that follow the request, each after its delay."""
        for turn in self._turns_after.pop(request.request_id, ()):
            arrival_ns = max(0, now_ns + int(self._workload.delay_ns[turn]))
            heapq.heappush(self._released, (arrival_ns, turn))
            self._first = self._find_first()

    def _find_first(self) -> tuple[int, int] | None:
        """Time and id of what arrives next."""
        turn = self._released[0] if self._released else None
        place = self._num_roots_sent
        if place == len(self._roots):
            return turn
        root = self._root_ns[place], self._roots[place]
        return root if turn is None else min(root, turn)

    def _drop_first(self) -> None:
        if self._released and self._released[0] == self._first:
            heapq.heappop(self._released)
        else:
            self._num_roots_sent += 1
        self._first = self._find_first()


class MaxConcurrency:
    """At most ``limit`` requests are under way; the others are held back.

    A request that is held back arrives at the moment when it is sent.

    Source: vLLM, ``vllm bench serve --max-concurrency``.

    Raises:
        UsageError: The limit is below 1.
    """

    def __init__(self, inner: OpenLoop, limit: int) -> None:
        if limit < 1:
            raise UsageError(f"max concurrency is {limit}, must be at least 1")
        self._inner = inner
        self._num_never_used = limit
        self._freed_ns: list[int] = []  # heap of when each place was left

    def next_ns(self) -> int | None:
        """When the next request is sent; None while every place is taken."""
        arrival_ns = self._inner.next_ns()
        if arrival_ns is None or self._num_never_used:
            return arrival_ns
        return max(arrival_ns, self._freed_ns[0]) if self._freed_ns else None

    def pop_due(self, now_ns: int) -> list[Request]:
        """Hand out what was sent by now: there was a place for it by then."""
        sent: list[Request] = []
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            (request,) = self._inner.pop_due(now_ns, limit=1)
            sent.append(_sent_at(request, self._take_place()))
        return sorted(sent, key=_order)

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Free the request's place, and release the turns that follow it."""
        heapq.heappush(self._freed_ns, now_ns)
        self._inner.on_finished(request, now_ns)

    def _take_place(self) -> int:
        """Since when the place that a request takes was free."""
        if self._num_never_used:
            self._num_never_used -= 1
            return 0
        return heapq.heappop(self._freed_ns)


class FrontDoor:
    """Lets in only requests whose prompt the model can take; the others leave there.

    Each request takes ``entry_ns`` from its arrival to the scheduler, or to its refusal,
    which comes after tokenisation: what a client measures, and the engine does not.

    vLLM's API server refuses such prompts before the scheduler sees them, and also those
    whose prompt and ``max_tokens`` together exceed the model. A trace holds what was
    generated, not what was asked for: here such a request comes in and its output is cut.

    Source: vLLM 0.5.5, ``entrypoints/openai/serving_engine.py``, ``_validate_input``.

    Args:
        inner: Where requests come from.
        max_prompt_tokens: Longest prompt let in.
        on_refused: Told of each request that is not let in.
        entry_ns: What passes before the scheduler sees a request. The way back to the
            client is part of it.
    """

    def __init__(
        self,
        inner: ArrivalSource,
        max_prompt_tokens: int,
        on_refused: Callable[[Request], None],
        entry_ns: int = 0,
    ) -> None:
        self._inner = inner
        self._max_prompt_tokens = max_prompt_tokens
        self._on_refused = on_refused
        self._entry_ns = entry_ns

    def next_ns(self) -> int | None:
        """When the next request has come through the door, or is refused there."""
        arrival_ns = self._inner.next_ns()
        return None if arrival_ns is None else arrival_ns + self._entry_ns

    def pop_due(self, now_ns: int) -> list[Request]:
        """Hand out those that have been let in by now."""
        latest_ns = now_ns - self._entry_ns
        next_ns = self._inner.next_ns()
        if next_ns is None or next_ns > latest_ns:
            return []
        due: list[Request] = []
        # One moment after another: who is refused makes way for those who come later.
        while next_ns is not None and next_ns <= latest_ns:
            arrived = self._inner.pop_due(next_ns)
            due += [request for request in arrived if self._lets_in(request)]
            next_ns = self._inner.next_ns()
        return due if len(due) < 2 else sorted(due, key=_order)

    def _lets_in(self, request: Request) -> bool:
        if request.num_prompt_tokens <= self._max_prompt_tokens:
            return True
        self._on_refused(request)
        self._inner.on_finished(request, request.arrival_ns + self._entry_ns)
        return False

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Pass it on."""
        self._inner.on_finished(request, now_ns)


def _order(request: Request) -> tuple[int, int]:
    return request.arrival_ns, request.request_id


def _sent_at(request: Request, free_since_ns: int) -> Request:
    if request.arrival_ns >= free_since_ns:
        return request
    return replace(request, arrival_ns=free_since_ns)
