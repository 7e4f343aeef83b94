"""The client: a thread that hands out requests at the moment they are due."""

import time
from collections import deque
from threading import Condition, Thread

import numpy as np

from harness.arrivals import ArrivalSource
from harness.request import Request


class Clock:
    """Nanoseconds since the run began."""

    def __init__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def restart(self) -> None:
        """Let the run begin now."""
        self._start_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        """Now."""
        return time.perf_counter_ns() - self._start_ns


class Client:
    """Puts requests into a queue as their time comes; the engine's loop takes them.

    What is due when the run begins is in the queue before the first step, all of it.

    Args:
        source: When requests are due; used by one thread at a time.
        clock: Of the run.
    """

    def __init__(self, source: ArrivalSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._queue: deque[Request] = deque()
        self._changed = Condition()
        self._lateness_ns: list[int] = []
        self._is_closed = False
        self._send()
        Thread(target=self._run, daemon=True).start()

    def take(self) -> list[Request]:
        """The requests that have been sent since this was last called."""
        with self._changed:
            sent = list(self._queue)
            self._queue.clear()
        return sent

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Let whoever waited for the end of this request have its time.

        One that is due at once is sent at once, so that it is in the next step for sure.
        """
        with self._changed:
            self._source.on_finished(request, now_ns)
            self._send()
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request while the engine has none.

        Returns:
            False if none will ever come.
        """
        with self._changed:
            if not self._queue and self._source.next_ns() is not None:
                self._changed.wait(timeout_s)
            return bool(self._queue) or self._source.next_ns() is not None

    def close(self) -> None:
        """Send nothing any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def lateness_s(self) -> dict[str, float] | None:
        """Median, 99th percentile and maximum of how late requests were sent."""
        if not self._lateness_ns:
            return None
        late_s = np.array(self._lateness_ns) / 1e9
        p50, p99 = np.percentile(late_s, [50, 99])
        return {"p50": float(p50), "p99": float(p99), "max": float(late_s.max())}

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                next_ns = self._source.next_ns()
                now_ns = self._clock.now_ns()
                if next_ns is not None and next_ns <= now_ns:
                    self._send()
                    self._changed.notify_all()
                    continue
                wait_s = None if next_ns is None else (next_ns - now_ns) / 1e9
                self._changed.wait(wait_s)

    def _send(self) -> None:
        now_ns = self._clock.now_ns()
        for request in self._source.pop_due(now_ns):
            self._queue.append(request)
            self._lateness_ns.append(now_ns - request.arrival_ns)
