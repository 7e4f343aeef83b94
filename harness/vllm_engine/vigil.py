"""How long a child that gets nothing done is waited for."""

import time
from dataclasses import dataclass

from harness.vllm_engine.process import Event

GRACE_S = 10.0
"""Wall time in which a child that was told to stop may end its step and report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a child that gets nothing done, in seconds.

    Attributes:
        start_s: Until vLLM has started, weights and graphs included.
        hang_after_s: From one step of an engine with work to the next.
    """

    start_s: float = 1_800.0
    hang_after_s: float = 300.0


class Vigil:
    """Watches whether a child gets anything done.

    Attributes:
        is_hung: It had work and made no step for too long, or said nothing at all.
        is_stopping: It was told to end.
    """

    def __init__(self, hang_after_s: float) -> None:
        self.hang_after_s = hang_after_s
        self.is_hung = self.is_stopping = False
        self._num_progress = -1
        self._deadline_s = time.monotonic() + hang_after_s

    def beat(self, event: Event) -> None:
        """Take note of a sign of life; only what was got done gives more time."""
        if not event["has_work"] or event["num_progress"] != self._num_progress:
            self._num_progress = event["num_progress"]
            if not self.is_stopping:
                self._deadline_s = time.monotonic() + self.hang_after_s

    def stop(self) -> None:
        """Give it a last while."""
        self.is_stopping = True
        self._deadline_s = time.monotonic() + GRACE_S

    def is_over(self) -> bool:
        """Whether its time is up."""
        if time.monotonic() <= self._deadline_s:
            return False
        self.is_hung = not self.is_stopping
        return True
