"""What runs batches and tells the time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.schedulers.batch import Batch, TransferId


@dataclass(slots=True)
class Execution:
    """What became of a submitted batch.

    Attributes:
        start_ns: When its first step began.
        first_step_end_ns: When its first step ended.
        last_step_start_ns: When its last step began; ``start_ns`` if there was only one.
        end_ns: When its last step ended.
        num_steps: Steps done.
        swap_ns: Part of the first step in which it waited for swaps.
        transfers_done: Copies that ended by then and were not reported before.
    """

    start_ns: int
    first_step_end_ns: int
    last_step_start_ns: int
    end_ns: int
    num_steps: int = 1
    swap_ns: int = 0
    transfers_done: Sequence[TransferId] = ()


class Executor(Protocol):
    """Runs batches in the order submitted, each after the one before.

    It knows whether calls are a step ahead: asynchronous scheduling decides a step when
    the one before it begins, synchronous scheduling when that one has ended.
    """

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the run began."""

    def submit(self, batch: Batch) -> None:
        """Start a batch behind those in flight."""

    def repeat(self, max_steps: int, until_ns: int | None) -> int:
        """Let the batch run on, the only one in flight, for at most so many steps.

        No step is decided at or past ``until_ns`` or the end of a transfer. With calls
        ahead, ``now_ns`` moves to the beginning of the last step.

        Returns:
            Steps more than before.
        """

    def wait(self) -> Execution:
        """Let the oldest batch in flight end; moves ``now_ns`` to that moment."""

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """Let time pass without a batch.

        Until ``ns`` or the end of a transfer, whichever is first; one of the two is there
        unless ``is_blocked``: then requests are there that no call can serve yet, and a
        clock that counts calls moves by one.

        Returns:
            Transfers that ended.
        """

    def ended_transfers(self) -> list[TransferId]:
        """Transfers that have ended by now and were not reported before."""

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is still under way."""
