"""A stretch of a long trace that is like the whole, so that most replays can be short.

Settings are compared on it; what is advised is then replayed with the whole trace.
"""

from collections.abc import Iterator

import numpy as np

from harness.replay import Findable
from harness.workload import Workload
from results.columns import FloatArray

NUM_REQUESTS = 1000
"""Of a stretch: a difference of a point of goodput is 10 of them."""

LEAST_PARTS = 3
"""Traces with fewer requests than so many stretches are replayed whole."""

PLACES_PER_STRETCH = 4
"""It may begin at so many places of its length."""

MOST_UNLIKE = 0.25
"""By how much a mean may differ from the whole trace's, as a share of it."""


def stretch_like_whole(
    workload: Workload, findable: Findable, losses: FloatArray
) -> slice | None:
    """The stretch whose means are nearest to the whole trace's; None where none is near.

    The means are of prompt and output tokens, of tokens that were seen before, of time
    between arrivals, and of losses.

    Args:
        workload: The whole trace.
        findable: What :func:`harness.replay.findable_of` says of it.
        losses: What each request added to the loss of some run, ``(num_requests,)``;
            NaN where it has none.
    """
    count = len(workload)
    if count < LEAST_PARTS * NUM_REQUESTS or not np.isfinite(losses).any():
        return None
    step = NUM_REQUESTS // PLACES_PER_STRETCH
    begins = np.arange(0, count - NUM_REQUESTS + 1, step)
    unlikeness = np.zeros(len(begins))
    for values in _features(workload, findable, losses):
        whole = np.nanmean(values)
        means = np.array([_mean(values[b : b + NUM_REQUESTS]) for b in begins])
        if whole > 0:
            unlikeness = np.maximum(unlikeness, np.abs(means / whole - 1))
    unlikeness[np.isnan(unlikeness)] = np.inf
    best = int(unlikeness.argmin())
    if unlikeness[best] > MOST_UNLIKE:
        return None
    return slice(int(begins[best]), int(begins[best]) + NUM_REQUESTS)


def is_like(loss: float, whole: float) -> bool:
    """Whether a stretch by itself comes to about the loss of the whole trace.

    It does not where the whole trace's queue grows all the time.
    """
    return abs(loss - whole) <= MOST_UNLIKE * max(loss, whole)


def _features(
    workload: Workload, findable: Findable, losses: FloatArray
) -> Iterator[FloatArray]:
    """What a stretch is like, as a figure of each request, 0 or more."""
    yield workload.input_tokens.astype(np.float64)
    yield workload.output_tokens.astype(np.float64)
    yield np.maximum(np.diff(workload.arrival_ns, append=workload.arrival_ns[-1]), 0.0)
    if findable is not None:
        yield findable[0].astype(np.float64)
    yield losses


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
