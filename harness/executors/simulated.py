"""Time from a step-time model: exact, and the same however steps are grouped."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from harness.executors.executor import Execution
from harness.schedulers.batch import Batch, Transfer, TransferId
from profiles.step_time import FS_PER_NS, BatchShape, StepTime, steps_until, stretch_fs


class TransferTime(Protocol):
    """How long a transfer between GPU and offload tier takes."""

    def __call__(self, num_blocks: int, *, is_load: bool) -> int:
        """Femtoseconds from the call to the last byte."""


@dataclass(slots=True)
class _Span:
    """A batch in flight; femtoseconds."""

    shape: BatchShape
    start_fs: int
    step_fs: int
    growth_fs: int
    num_steps: int
    swap_fs: int

    def end_of_step_fs(self, num_steps: int) -> int:
        if num_steps == 1:
            return self.start_fs + self.step_fs
        return self.start_fs + stretch_fs(self.step_fs, self.growth_fs, num_steps)


class SimulatedExecutor:
    """Runs batches on a clock that a :class:`StepTime` moves.

    The clock counts femtoseconds, in which step times are whole numbers; nanoseconds are
    read off it. So ``k`` steps at once end exactly when ``k`` single ones would.

    Args:
        step_time: Durations of batches.
        transfer_fs: Femtoseconds of a transfer beside the batches; None without any.
            Loads run one after another, and so do stores; they do not slow each other
            down.
        is_ahead: Calls are a step ahead (asynchronous scheduling).
    """

    def __init__(
        self,
        step_time: StepTime,
        transfer_fs: TransferTime | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        self._step_time = step_time
        self._is_ahead = is_ahead
        self._transfer_fs = transfer_fs
        self._now_fs = 0
        self._in_flight: deque[_Span] = deque()
        self._transfer_ends_fs: dict[TransferId, int] = {}
        self._last_end_fs = {"load": 0, "store": 0}

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return self._now_fs // FS_PER_NS

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is still under way."""
        return bool(self._transfer_ends_fs)

    def submit(self, batch: Batch) -> None:
        """Start a batch behind those in flight."""
        start_fs = self._now_fs
        if self._in_flight:
            last = self._in_flight[-1]
            start_fs = last.end_of_step_fs(last.num_steps)
        shape = batch.shape
        step_fs = self._step_time.step_fs(shape)
        swap_fs = self._step_time.swap_fs(shape) if shape.num_swap_blocks else 0
        wait_fs = 0
        if batch.transfers or batch.flushed:
            wait_fs = self._start_transfers(batch, start_fs, start_fs + step_fs)
        self._in_flight.append(
            _Span(shape, start_fs, step_fs + wait_fs, 0, 1, swap_fs + wait_fs)
        )

    def repeat(self, max_steps: int, until_ns: int | None) -> int:
        """Let the batch in flight run on; see :class:`Executor`."""
        (span,) = self._in_flight
        span.growth_fs = self._step_time.growth_fs(span.shape)
        num_steps = min(max_steps, self._steps_decided_before(until_ns, max_steps))
        span.num_steps += num_steps
        if self._is_ahead:
            self._now_fs = span.end_of_step_fs(span.num_steps - 1)
        return num_steps

    def _steps_decided_before(self, until_ns: int | None, max_steps: int) -> int:
        """Steps after the batch's first that are decided before the next event."""
        (span,) = self._in_flight
        stop_fs = self._first_event_fs(until_ns)
        if stop_fs is None:
            return max_steps
        elapsed_fs = stop_fs - span.start_fs
        if self._is_ahead and elapsed_fs <= 0:
            return 0
        num_until = steps_until(span.step_fs, span.growth_fs, elapsed_fs, max_steps + 1)
        # The step that ends past the event is the last one decided before it; with
        # calls ahead its successor had been decided when it began.
        return num_until if self._is_ahead else num_until - 1

    def wait(self) -> Execution:
        """Let the oldest batch in flight end; moves the clock to that moment."""
        span = self._in_flight.popleft()
        self._now_fs = first_end_fs = span.start_fs + span.step_fs
        last_start_fs = span.start_fs
        if span.num_steps > 1:
            last_start_fs = span.end_of_step_fs(span.num_steps - 1)
            self._now_fs = span.end_of_step_fs(span.num_steps)
        return Execution(
            start_ns=span.start_fs // FS_PER_NS,
            first_step_end_ns=first_end_fs // FS_PER_NS,
            last_step_start_ns=last_start_fs // FS_PER_NS,
            end_ns=self._now_fs // FS_PER_NS,
            num_steps=span.num_steps,
            swap_ns=span.swap_fs // FS_PER_NS,
            transfers_done=self.ended_transfers() if self._transfer_ends_fs else (),
        )

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """Move the clock to ``ns`` or the end of a transfer, whichever is first.

        Where neither is there, who is blocked stays so, and no time passes.
        """
        stop_fs = self._first_event_fs(ns)
        if stop_fs is not None:
            self._now_fs = max(self._now_fs, stop_fs)
        return self.ended_transfers()

    def _start_transfers(self, batch: Batch, start_fs: int, end_fs: int) -> int:
        """Start the copies of a batch; how long it has to wait for those it forces."""
        for transfer in batch.transfers:
            is_late = transfer.is_store and transfer.transfer_id not in batch.flushed
            lane = "store" if transfer.is_store else "load"
            begin_fs = max(end_fs if is_late else start_fs, self._last_end_fs[lane])
            duration_fs = self._duration_fs(transfer)
            self._last_end_fs[lane] = begin_fs + duration_fs
            self._transfer_ends_fs[transfer.transfer_id] = begin_fs + duration_fs
        ends_fs = [self._transfer_ends_fs[number] for number in batch.flushed]
        return max(0, max(ends_fs, default=start_fs) - start_fs)

    def _duration_fs(self, transfer: Transfer) -> int:
        if self._transfer_fs is None:
            return 0
        return self._transfer_fs(transfer.num_blocks, is_load=not transfer.is_store)

    def _first_event_fs(self, until_ns: int | None) -> int | None:
        until_fs = None if until_ns is None else until_ns * FS_PER_NS
        if not self._transfer_ends_fs:
            return until_fs
        first_end_fs = min(self._transfer_ends_fs.values())
        return first_end_fs if until_fs is None else min(until_fs, first_end_fs)

    def ended_transfers(self) -> list[TransferId]:
        """Transfers that have ended by now and were not reported before."""
        if not self._transfer_ends_fs:
            return []
        ends = sorted((end, number) for number, end in self._transfer_ends_fs.items())
        ended = [number for end, number in ends if end <= self._now_fs]
        for number in ended:
            del self._transfer_ends_fs[number]
        return ended
