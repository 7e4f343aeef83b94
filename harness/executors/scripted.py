"""A clock that counts steps: what golden rows were recorded against."""

from harness.executors.executor import Execution, Handle
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
        self._in_flight: list[tuple[int, int]] = []
        self._transfers: dict[TransferId, int] = {}

    @property
    def now_ns(self) -> int:
        """Number of the step that comes next."""
        return self._now

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is still under way."""
        return bool(self._transfers)

    def submit(self, batch: Batch, max_steps: int, until_ns: int | None) -> Handle:
        """Start a batch behind those in flight; see :class:`Executor`."""
        start = sum(self._in_flight[-1]) if self._in_flight else self._now
        for transfer in batch.transfers:
            self._transfers[transfer.transfer_id] = start + self._transfer_steps
        events = [] if until_ns is None else [until_ns]
        events.extend(self._transfers.values())
        stop = min(events, default=start + max_steps)
        num_steps = min(max_steps, max(1, stop - start))
        self._in_flight.append((start, num_steps))
        return len(self._in_flight)

    def wait(self, handle: Handle) -> Execution:
        """Let the oldest batch in flight end; moves the clock to that moment."""
        start, num_steps = self._in_flight.pop(0)
        self._now = end = start + num_steps
        return Execution(
            start_ns=start,
            first_step_end_ns=start + 1,
            last_step_start_ns=end - 1,
            end_ns=end,
            num_steps=num_steps,
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
