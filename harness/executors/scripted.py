"""A clock that counts steps: what golden rows were recorded against."""

from collections import deque

from harness.executors.executor import Execution
from harness.schedulers.batch import Batch, TransferId


class ScriptedExecutor:
    """Every step lasts one tick; ``now_ns`` is the number of the step.

    A call that finds nothing to run takes a tick as well while requests are blocked.
    With calls ahead a step's tick is over once it is submitted: the next call has the
    next number, although the step's tokens are still to come.

    Args:
        transfer_steps: A load is reported with the step that comes so many after the
            one that began it, a store with the one after that.
        is_ahead: Calls are a step ahead (asynchronous scheduling).
    """

    def __init__(self, transfer_steps: int = 1, *, is_ahead: bool = False) -> None:
        self._transfer_steps = transfer_steps
        self._is_ahead = is_ahead
        self._now = 0
        self._in_flight: deque[range] = deque()
        self._transfers: dict[TransferId, int] = {}

    @property
    def now_ns(self) -> int:
        """Number of the step that comes next."""
        return self._now

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is still under way."""
        return bool(self._transfers)

    def submit(self, batch: Batch) -> None:
        """Start a batch behind those in flight."""
        start = self._in_flight[-1].stop if self._in_flight else self._now
        for transfer in batch.transfers:
            # A store begins with the next step.
            steps = self._transfer_steps + transfer.is_store
            self._transfers[transfer.transfer_id] = start + steps + 1
        for transfer_id in batch.flushed:
            self._transfers[transfer_id] = start + 1
        self._in_flight.append(range(start, start + 1))
        if self._is_ahead:
            self._now = start + 1

    def repeat(self, max_steps: int, until_ns: int | None) -> int:
        """Let the batch in flight run on; see :class:`Executor`."""
        (ticks,) = self._in_flight
        events = [] if until_ns is None else [until_ns]
        events.extend(self._transfers.values())
        stop = min(events, default=ticks.stop + max_steps)
        num_steps = min(max_steps, max(0, stop - ticks.stop))
        self._in_flight[0] = range(ticks.start, ticks.stop + num_steps)
        if self._is_ahead:
            self._now += num_steps
        return num_steps

    def wait(self) -> Execution:
        """Let the oldest batch in flight end; moves the clock to that moment."""
        ticks = self._in_flight.popleft()
        if not self._in_flight:  # else the batch behind it has moved the clock
            self._now = ticks.stop + self._is_ahead
        return Execution(
            start_ns=ticks.start,
            first_step_end_ns=ticks.start + 1,
            last_step_start_ns=ticks.stop - 1,
            end_ns=ticks.stop,
            num_steps=len(ticks),
            transfers_done=self.ended_transfers(),
        )

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """One tick while requests are blocked, else straight to ``ns``."""
        if is_blocked or ns is None or self._transfers:
            self._now += 1
        else:
            self._now = max(self._now, ns)
        return self.ended_transfers()

    def ended_transfers(self) -> list[TransferId]:
        """Transfers that have ended by now and were not reported before."""
        ended = [number for number, end in self._transfers.items() if end <= self._now]
        for number in ended:
            del self._transfers[number]
        return ended
