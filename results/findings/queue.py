"""Whether requests come faster than they are served."""

from results.findings.finding import Finding
from results.findings.fit import HARDWARE
from results.findings.place import waited_for
from results.findings.run_view import RunView
from results.measured import if_measured
from results.queueing import QueueTrend, is_queue_measured

BURST_S = 10.0
"""Arrivals within less are one burst, and no rate."""


def find_queue(run: RunView) -> list[Finding]:
    """A queue that grew for as long as requests came."""
    trend = run.trend
    if trend is None or not trend.is_growing:
        return []
    first, last = trend.wait_s[0], trend.wait_s[-1]
    came = f"for {trend.span_s:,.0f} s requests came faster than they were"
    if trend.span_s < BURST_S:
        came = f"all requests came within {trend.span_s:.1f} s, faster than they were"
    place = if_measured(lambda: waited_for(run, trend.total_s))
    for_token = "" if is_queue_measured(run.requests) else " for a first token"
    what = f", most of it for {place[0]}" if place else ""
    return [
        Finding(
            code="overloaded",
            severity="warning",
            message=f"{came} served: the first quarter waited {first:,.1f} s on average"
            f"{for_token}, the last {last:,.1f} s{what}; latencies depend on the trace's"
            " length",
            advice=_advice(trend, place and place[1]),
        )
    ]


def _advice(trend: QueueTrend, remedy: str | None) -> str:
    """First what requests waited for, then hardware, then a lighter load to compare."""
    lighter = "--speedup below 1 shows a lighter load"
    if trend.span_s < BURST_S:
        lighter = "--request-rate spreads the arrivals out"
    what = remedy or HARDWARE
    if HARDWARE not in what:
        what += f"; if the queue grows all the same, {HARDWARE}"
    return f"{what} ({lighter}, here and not in vLLM)"
