"""Whether the queue settled, or grew for as long as requests came."""

import math
from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray
from results.statistics import NS_PER_S

NUM_PARTS = 4
MIN_REQUESTS = 20
"""Fewer say nothing of the traffic, nor of a trend in it."""

MIN_WAIT_S = 1.0
"""A shorter wait at the end of the trace harms nobody."""

MIN_GROWTH = 0.05
"""Wait at the end, per second of arrivals: requests come 5 % faster than they leave.

Of fewer than 400 requests it takes more, as chance can make a queue too: what that adds
falls with the square root of their number."""

MIN_RISE = 2.0
"""Last quarter's wait per first quarter's; a queue that grows evenly makes it 7."""

MIN_OF_LONGEST = 0.75
"""Last quarter's wait per longest; bursts let a growing queue dip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTrend:
    """How long requests waited for their first batch, in the order in which they came.

    Attributes:
        num_requests: How many there are.
        span_s: Seconds between the first and the last that came.
        wait_s: Mean wait of each quarter of the requests.
    """

    num_requests: int
    span_s: float
    wait_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Seconds that they waited, summed over them."""
        return self.num_requests * sum(self.wait_s) / NUM_PARTS

    @property
    def is_growing(self) -> bool:
        """The last quarter waits long, much longer than the first, and no dip is deep."""
        first, last = self.wait_s[0], self.wait_s[-1]
        rises = last >= MIN_RISE * first and last >= MIN_OF_LONGEST * max(self.wait_s)
        growth = max(MIN_GROWTH, 1 / math.sqrt(self.num_requests))
        return rises and last >= MIN_WAIT_S and last >= growth * self.span_s


def queue_trend(requests: Columns, steps: Columns) -> QueueTrend | None:
    """The trend of the wait; None when there are too few requests to tell."""
    queued, wait = waits_ns(requests, steps)
    if len(queued) < MIN_REQUESTS:
        return None
    order = np.argsort(queued, kind="stable")
    quarters = np.array_split(wait[order], NUM_PARTS)
    return QueueTrend(
        num_requests=len(queued),
        span_s=float(np.ptp(queued) / NS_PER_S),
        wait_s=tuple(float(quarter.mean() / NS_PER_S) for quarter in quarters),
    )


def waits_ns(requests: Columns, steps: Columns) -> tuple[FloatArray, FloatArray]:
    """When the scheduler had a request, and nanoseconds from then to its first batch.

    A request that was still waiting when the run ended has waited until then; one that
    had not come to the scheduler by then, or was refused at the door, does not count.
    Where only a client looked, a request has waited from its arrival to its first token.

    Returns:
        Both ``(num_waits,)``.
    """
    begin, served = "queued_ns", "first_scheduled_ns"
    if not is_queue_measured(requests):
        begin, served = "arrival_ns", "first_token_ns"
    queued, scheduled = requests[begin], requests[served]
    end = steps["end_ns"][-1] if len(steps) else 0.0
    if begin == "arrival_ns":  # samples of a server may end before its last answer
        end = max(end, _last(requests["finished_ns"]))
    left = np.where(np.isnan(requests["finished_ns"]), end, requests["finished_ns"])
    wait = np.where(np.isnan(scheduled), left, scheduled) - queued
    counts = (queued <= end) & ~(np.isnan(scheduled) & (wait <= 0))
    return queued[counts], wait[counts]


def is_queue_measured(requests: Columns) -> bool:
    """Whether waits are those in the engine's queue, and not a client's for its token."""
    return requests.has("queued_ns", "first_scheduled_ns")


def _last(times_ns: FloatArray) -> float:
    """The latest of the times that came; 0 where none did."""
    return float(np.nan_to_num(times_ns, nan=0.0).max(initial=0.0))
