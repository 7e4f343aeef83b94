"""Who waits to be admitted, in the order in which they will be."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from harness.schedulers.engine_request import EngineRequest


class WaitingQueue(Protocol):
    """Requests in the order of a policy."""

    def push(self, request: EngineRequest) -> None:
        """Put in a request that has arrived."""

    def push_back(self, request: EngineRequest) -> None:
        """Put in a request that was preempted."""

    def first(self) -> EngineRequest:
        """The next one; there must be one."""

    def pop(self) -> EngineRequest:
        """Take the next one out; there must be one."""

    def remove(self, request: EngineRequest) -> None:
        """Take one out, wherever it stands."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[EngineRequest]: ...


class FcfsQueue(deque[EngineRequest]):
    """First come, first served; who was preempted comes before all others."""

    push = deque.append
    push_back = deque.appendleft
    pop = deque.popleft

    def first(self) -> EngineRequest:
        """The next one; there must be one."""
        return self[0]


class PriorityQueue:
    """By priority, then arrival, then id; who was preempted has its place again."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, str], EngineRequest]] = []

    def push(self, request: EngineRequest) -> None:
        """Put in a request that has arrived."""
        heapq.heappush(self._heap, (request.sort_key, request))

    def push_back(self, request: EngineRequest) -> None:
        """Put in a request that was preempted."""
        self.push(request)

    def first(self) -> EngineRequest:
        """The next one; there must be one."""
        return self._heap[0][1]

    def pop(self) -> EngineRequest:
        """Take the next one out; there must be one."""
        return heapq.heappop(self._heap)[1]

    def remove(self, request: EngineRequest) -> None:
        """Take one out, wherever it stands; this is rare and costs its length."""
        self._heap = [entry for entry in self._heap if entry[1] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[EngineRequest]:
        return (request for _, request in sorted(self._heap, key=lambda entry: entry[0]))
