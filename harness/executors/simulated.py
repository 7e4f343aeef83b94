"""Time from a step-time model: exact, and the same however steps are grouped."""

from collections import deque
from dataclasses import dataclass

from harness.executors.executor import Execution
from harness.schedulers.batch import Batch, Transfer, TransferId
from profiles.step_time import FS_PER_NS, StepTime, steps_until, stretch_fs


@dataclass(frozen=True, slots=True)
class _Span:
    """A batch in flight; femtoseconds."""

    start_fs: int
    step_fs: int
    growth_fs: int
    num_steps: int
    swap_fs: int

    def end_of_step_fs(self, num_steps: int) -> int:
        return self.start_fs + stretch_fs(self.step_fs, self.growth_fs, num_steps)


class SimulatedExecutor:
    """Runs batches on a clock that a :class:`StepTime` moves.

    The clock counts femtoseconds, in which step times are whole numbers; nanoseconds are
    read off it. So ``k`` steps at once end exactly when ``k`` single ones would.

    Args:
        step_time: Durations of batches.
        transfer_fs_per_block: Femtoseconds to copy a block beside the batches; copies of
            this kind run one after another.
    """

    def __init__(self, step_time: StepTime, transfer_fs_per_block: int = 0) -> None:
        self._step_time = step_time
        self._transfer_fs_per_block = transfer_fs_per_block
        self._now_fs = 0
        self._in_flight: deque[_Span] = deque()
        self._transfers: deque[tuple[int, TransferId]] = deque()

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return self._now_fs // FS_PER_NS

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is still under way."""
        return bool(self._transfers)

    def submit(self, batch: Batch, max_steps: int, until_ns: int | None) -> None:
        """Start a batch behind those in flight; see :class:`Executor`."""
        start_fs = self._now_fs
        if self._in_flight:
            last = self._in_flight[-1]
            start_fs = last.end_of_step_fs(last.num_steps)
        for transfer in batch.transfers:
            self._start(transfer, start_fs)
        step_fs = self._step_time.step_fs(batch.shape)
        growth_fs, num_steps = 0, 1
        if max_steps > 1:
            growth_fs = self._step_time.growth_fs(batch.shape)
            stop_fs = self._first_event_fs(until_ns)
            num_steps = max_steps
            if stop_fs is not None:
                elapsed_fs = stop_fs - start_fs
                num_steps = steps_until(step_fs, growth_fs, elapsed_fs, max_steps)
        swap_fs = self._step_time.swap_fs(batch.shape)
        self._in_flight.append(_Span(start_fs, step_fs, growth_fs, num_steps, swap_fs))

    def wait(self) -> Execution:
        """Let the oldest batch in flight end; moves the clock to that moment."""
        span = self._in_flight.popleft()
        self._now_fs = span.end_of_step_fs(span.num_steps)
        return Execution(
            start_ns=span.start_fs // FS_PER_NS,
            first_step_end_ns=span.end_of_step_fs(1) // FS_PER_NS,
            last_step_start_ns=span.end_of_step_fs(span.num_steps - 1) // FS_PER_NS,
            end_ns=self.now_ns,
            num_steps=span.num_steps,
            swap_ns=span.swap_fs // FS_PER_NS,
            transfers_done=self._ended_transfers(),
        )

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """Move the clock to ``ns`` or the end of a transfer, whichever is first."""
        stop_fs = self._first_event_fs(ns)
        assert stop_fs is not None, "nothing to wait for"
        self._now_fs = max(self._now_fs, stop_fs)
        return self._ended_transfers()

    def _start(self, transfer: Transfer, now_fs: int) -> None:
        begin_fs = max(now_fs, self._transfers[-1][0]) if self._transfers else now_fs
        end_fs = begin_fs + transfer.num_blocks * self._transfer_fs_per_block
        self._transfers.append((end_fs, transfer.transfer_id))

    def _first_event_fs(self, until_ns: int | None) -> int | None:
        events = [] if until_ns is None else [until_ns * FS_PER_NS]
        if self._transfers:
            events.append(self._transfers[0][0])
        return min(events, default=None)

    def _ended_transfers(self) -> list[TransferId]:
        ended = []
        while self._transfers and self._transfers[0][0] <= self._now_fs:
            ended.append(self._transfers.popleft()[1])
        return ended
