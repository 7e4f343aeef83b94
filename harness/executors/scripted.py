"""A clock that counts steps: what golden rows were recorded against."""

from collections import deque

from harness.executors.executor import Execution
from harness.schedulers.batch import Batch, TransferId


class ScriptedExecutor:
    """Every step lasts one tick; ``now_ns`` is the number of the step.

    A call that finds nothing to run takes a tick as well while requests are blocked.

    Args:
        transfer_steps: Ticks until a transfer is reported, counted from the step that
            started it.
    """

    def __init__(self, transfer_steps: int = 1) -> None:
        self._transfer_steps = transfer_steps
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

    def submit(self, batch: Batch, max_steps: int, until_ns: int | None) -> None:
        """Start a batch behind those in flight; see :class:`Executor`."""
        start = self._in_flight[-1].stop if self._in_flight else self._now
        for transfer in batch.transfers:
            self._transfers[transfer.transfer_id] = start + self._transfer_steps
        events = [] if until_ns is None else [until_ns]
        events.extend(self._transfers.values())
        stop = min(events, default=start + max_steps)
        num_steps = min(max_steps, max(1, stop - start))
        self._in_flight.append(range(start, start + num_steps))

    def wait(self) -> Execution:
        """Let the oldest batch in flight end; moves the clock to that moment."""
        ticks = self._in_flight.popleft()
        self._now = ticks.stop
        return Execution(
            start_ns=ticks.start,
            first_step_end_ns=ticks.start + 1,
            last_step_start_ns=ticks.stop - 1,
            end_ns=ticks.stop,
            num_steps=len(ticks),
            transfers_done=self._ended_transfers(),
        )

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """One tick while requests are blocked, else straight to ``ns``."""
        if is_blocked or ns is None:
            self._now += 1
        else:
            self._now = max(self._now, ns)
        return self._ended_transfers()

    def _ended_transfers(self) -> list[TransferId]:
        ended = [number for number, end in self._transfers.items() if end <= self._now]
        for number in ended:
            del self._transfers[number]
        return ended
