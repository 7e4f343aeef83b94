"""Whether requests come faster than they are served."""

from results.findings.finding import Finding
from results.findings.run_view import RunView

BURST_S = 10.0
"""Arrivals within less are one burst, and no rate."""


def find_queue(run: RunView) -> list[Finding]:
    """A queue that grew for as long as requests came."""
    trend = run.trend
    if trend is None or not trend.is_growing:
        return []
    first, last = trend.wait_s[0], trend.wait_s[-1]
    if trend.span_s < BURST_S:
        came = f"all requests come within {trend.span_s:.1f} s, faster than they are"
        advice = "--request-rate spreads them out; --max-concurrency sends the next when"
        advice += " one is done"
    else:
        came = f"for {trend.span_s:,.0f} s requests come faster than they are"
        advice = "--tensor-parallel-size or a larger GPU; --speedup below 1 shows a"
        advice += " lighter load"
    return [
        Finding(
            code="overloaded",
            severity="warning",
            message=f"{came} served: the first quarter waited {first:,.1f} s on average,"
            f" the last {last:,.1f} s, so latencies depend on the trace's length",
            advice=advice,
        )
    ]
