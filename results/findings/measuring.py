"""What a measurement shows that no simulation has: its client, and samples of a server.

A server tells how many requests wait and how many blocks are in use, but not what the
first in its queue waits for. Where an engine tells that, other rules speak of it.
"""

from results.columns import BoolArray, FloatArray
from results.findings.finding import Finding
from results.findings.rule import findings_of
from results.findings.run_view import RunView, percent
from results.kv_usage import used_at_end
from results.measured import LATE_S
from results.naming import number_of, seconds

FULL = 0.95
"""Share of the blocks in use from which on a request may well wait for some."""

HALF_EMPTY = 0.5
"""Share of the blocks in use below which hardly any request waits for some."""

MIN_SHARE = 0.2
"""Of the time. Less is a burst."""

MIN_PREEMPTED_SHARE = 0.05
"""Preemptions per request that ran, where no more is known of them. Fewer cost little."""


def find_measuring(run: RunView) -> list[Finding]:
    """What to know before a measurement is believed, and what samples tell."""
    if run.info.measurement is None:
        return []
    return findings_of(
        run,
        _client_late,
        _cache_not_cold,
        _preempted,
        _cache_full,
        _waiting_beside_room,
    )


def _client_late(run: RunView) -> list[Finding]:
    """Latencies begin when a request was due, so that a late client lengthens them."""
    measurement = run.info.measurement
    assert measurement is not None, "find_measuring looks at measured runs only"
    late = measurement.lateness_s
    if late is None or not measurement.is_late:
        return []
    return [
        Finding(
            code="client_late",
            severity="warning",
            message=f"requests were sent {seconds(late['p50'])} late in the median (p99"
            f" {seconds(late['p99'])}, at most {seconds(late['max'])}), more than"
            f" {seconds(LATE_S)}: TTFT and E2E are longer by that, and the load was not"
            " quite the one asked for",
            advice="lower the rate, or run the client on another machine",
        )
    ]


def _cache_not_cold(run: RunView) -> list[Finding]:
    measurement = run.info.measurement
    assert measurement is not None, "find_measuring looks at measured runs only"
    if measurement.is_cold is not False or run.info.trace.get("is_observed"):
        return []
    return [
        Finding(
            code="cache_not_cold",
            severity="warning",
            message="the prefix cache was not empty when the first request was sent: some"
            " hits may be of what was there before",
            advice="restart the server, or let it reset its cache"
            " (VLLM_SERVER_DEV_MODE=1 has /reset_prefix_cache), and repeat the run",
        )
    ]


def _preempted(run: RunView) -> list[Finding]:
    """Preemptions that only a counter tells of."""
    if run.requests.has("num_preemptions"):
        return []
    num_preemptions = run.info.counter("preemptions") or 0
    num_ran = int(run.is_admitted.sum())
    if num_preemptions < max(1, MIN_PREEMPTED_SHARE * num_ran):
        return []
    return [
        Finding(
            code="preempted",
            severity="warning",
            message=f"{number_of(round(num_preemptions), 'preemption')} in all, by the"
            f" engine's counter, with {number_of(num_ran, 'request')} that ran: there"
            " were too few blocks for those it had admitted",
            advice="a larger pool (--gpu-memory-utilization, --tensor-parallel-size or a"
            " larger GPU), or a lower --max-num-seqs; blockbench tune finds how low",
        )
    ]


def _cache_full(run: RunView) -> list[Finding]:
    share = _share_of_waiting(run, _usage(run) >= FULL)
    if share < MIN_SHARE:
        return []
    return [
        Finding(
            code="kv_cache_full",
            severity="warning",
            message=f"{percent(share)} of the time requests waited while {percent(FULL)}"
            " of the blocks or more were in use",
            advice="a larger pool (--gpu-memory-utilization, --tensor-parallel-size or a"
            " larger GPU), or fewer or shorter requests; blockbench tune finds what"
            " helps most",
        )
    ]


def _waiting_beside_room(run: RunView) -> list[Finding]:
    share = _share_of_waiting(run, _usage(run) < HALF_EMPTY)
    if share < MIN_SHARE:
        return []
    return [
        Finding(
            code="not_kv_bound",
            severity="warning",
            message=f"{percent(share)} of the time requests waited while less than half"
            " of the blocks were in use: it is not the KV cache that keeps them out",
            advice="a higher --max-num-seqs if that many ran, else a higher"
            " --max-num-batched-tokens, or a faster GPU",
        )
    ]


def _usage(run: RunView) -> FloatArray:
    usage: FloatArray = used_at_end(run.steps) / run.num_usable_blocks
    return usage


def _share_of_waiting(run: RunView, chosen: BoolArray) -> float:
    """Part of the time in which requests waited so; 0 where the engine tells more."""
    if run.steps.has("num_head_blocks"):
        return 0.0
    return run.share_of_time(chosen & (run.steps["num_waiting"] > 0))
