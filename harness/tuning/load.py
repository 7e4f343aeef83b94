"""More or less load: the same requests at other times, or more of them under way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

import numpy as np

from harness.tuning.engine import TrialEngine
from harness.workload import Workload


class LoadKind(StrEnum):
    """What there is more of when a load grows.

    ``RATE``: requests a second. ``CONCURRENCY``: requests under way in a closed loop,
    and with them the rate, as of more users. ``NONE``: all requests come at once, or all
    conversations begin so, which is as much as there can be.
    """

    RATE = "rate"
    CONCURRENCY = "concurrency"
    NONE = "none"


def kind_of_load(workload: Workload, max_concurrency: int | None) -> LoadKind:
    """What a load of these requests grows by."""
    if max_concurrency is not None:
        return LoadKind.CONCURRENCY
    begin_ns = workload.arrival_ns[workload.parent < 0]
    return LoadKind.RATE if np.ptp(begin_ns) else LoadKind.NONE


def scaled_concurrency(engine: TrialEngine, load: float) -> int | None:
    """Requests under way at a multiple of today's load; None in an open loop."""
    now = engine.max_concurrency
    return None if now is None else max(1, round(now * load))


def loads_within(
    engine: TrialEngine, loads: Sequence[float], low: float, high: float | None
) -> tuple[float, ...]:
    """Those loads that differ from each other and lie between two, both left out.

    In a closed loop a load is a whole number of requests; where all wait from the start,
    there are no more of them than the trace has.
    """
    now = engine.max_concurrency
    if now is not None:
        most = len(engine.workload) if engine.workload.duration_s == 0 else None
        whole = {max(1, round(now * load)) for load in loads}
        loads = [min(number, most or number) / now for number in whole]
    return tuple(
        load for load in sorted({*loads}) if load > low and (high is None or load < high)
    )


@contextmanager
def under_way(engine: TrialEngine, max_concurrency: int | None) -> Iterator[None]:
    """The engine with another number of requests under way for the time being."""
    before = engine.max_concurrency
    engine.max_concurrency = max_concurrency
    try:
        yield
    finally:
        engine.max_concurrency = before
