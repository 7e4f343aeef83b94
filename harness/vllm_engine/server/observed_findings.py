"""What a server's metrics teach about its settings, without any load of ours."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from harness.vllm_engine.server.observation import Observation
from results.columns import FloatArray
from results.findings.finding import Finding
from results.naming import number_of, seconds

MANY_PREEMPTIONS = 0.01
"""Of the requests that finished. Fewer are the ordinary price of a well filled pool."""

FULL = 0.95
"""Of the KV cache; requests that wait then wait for blocks."""

OFTEN = 0.1
"""Of the looks."""

ROOMY = 0.5
"""Of the KV cache at its peak. Waiting is not for blocks then."""

IDLE = 0.3
"""Of the KV cache at its peak. The rest was never needed."""

FEW_HITS = 0.05
MANY_HITS = 0.3
MOST_OF_TTFT = 0.5
MIN_QUEUE_S = 0.1
"""Mean wait that somebody notices."""

FEWEST_REQUESTS = 20
"""Finished ones. With fewer, shares of them say nothing."""

_RANK = {"error": 0, "warning": 1, "info": 2}


def find_observed(seen: Observation) -> list[Finding]:
    """The findings, what cost requests first."""
    found = [finding for rule in RULES for finding in rule(seen)]
    return sorted(found, key=lambda finding: _RANK[finding.severity])


def _ended(seen: Observation) -> Iterator[Finding]:
    if seen.fault_kind:
        yield Finding(
            code=seen.fault_kind,
            severity="error",
            message=f"watching ended after {seen.duration_s:.0f} s: {seen.fault}",
            advice="see whether the server is still there, and its log",
        )
    if seen.num_restarts:
        yield Finding(
            code="server_restarted",
            severity="warning",
            message=f"the server was started anew {number_of(seen.num_restarts, 'time')}"
            " meanwhile: what its counters held at the end of each life is lost",
            advice="see its log for what ended it",
        )


def _preempted(seen: Observation) -> Iterator[Finding]:
    preemptions = seen.counter("preemptions")
    finished = seen.counter("finished_requests") or 0.0
    if not preemptions or preemptions < MANY_PREEMPTIONS * finished:
        return
    each = f", {100 * preemptions / finished:.3g} for 100 finished" if finished else ""
    yield Finding(
        code="preemptions",
        severity="warning",
        message=f"{number_of(round(preemptions), 'preemption')}{each}: what was computed"
        " for them was lost and computed again",
        advice="a larger KV cache (--gpu-memory-utilization, --kv-cache-dtype fp8, more"
        " GPUs), or fewer requests at a time (--max-num-seqs)",
    )


def _queued(seen: Observation) -> Iterator[Finding]:
    waiting, usage = seen.gauge("num_waiting"), seen.gauge("kv_cache_usage")
    share = float(np.mean(waiting > 0)) if len(waiting) else 0.0
    if share < OFTEN:
        return
    told = (
        f"requests waited in {100 * share:.0f} % of the looks,"
        f" {peak(waiting):,.0f} of them at most"
    )
    most, running = peak(usage), peak(seen.gauge("num_running"))
    is_full = (waiting > 0) & (usage >= FULL)
    if float(np.mean(is_full)) >= share / 2:
        yield Finding(
            code="waiting_for_blocks",
            severity="warning",
            message=f"{told}, mostly with the KV cache full",
            advice="a larger KV cache (--gpu-memory-utilization, --kv-cache-dtype fp8,"
            " more GPUs), or another replica",
        )
    elif most is not None and running is not None and most < ROOMY:
        yield Finding(
            code="waiting_with_room",
            severity="warning",
            message=f"{told}, with the KV cache at {100 * most:.0f} % at"
            f" most and {running:,.0f} requests running",
            advice="a higher --max-num-seqs where it stands near those running, or a"
            " higher --max-num-batched-tokens",
        )
    else:
        yield Finding(code="queueing", severity="warning", message=told)


def _overloaded(seen: Observation) -> Iterator[Finding]:
    """Where the queue grew from each quarter to the next."""
    waiting = seen.gauge("num_waiting")
    if len(waiting) < 40:
        return
    quarters = [float(part.mean()) for part in np.array_split(waiting, 4)]
    grows = all(b > a for a, b in pairwise(quarters))
    if grows and quarters[3] > quarters[0] + 5:
        yield Finding(
            code="not_keeping_up",
            severity="warning",
            message=f"the queue grew all the time, from {quarters[0]:.0f} to"
            f" {quarters[3]:.0f} requests",
            advice="another replica, or less traffic: no setting makes up for that",
        )


def _queue_time(seen: Observation) -> Iterator[Finding]:
    queue, ttft = seen.histogram("queue_s"), seen.histogram("ttft_s")
    waited = None if queue is None else queue.mean
    first = None if ttft is None else ttft.mean
    if waited is None or first is None or waited < MIN_QUEUE_S:
        return
    if waited >= MOST_OF_TTFT * first:
        yield Finding(
            code="ttft_is_waiting",
            severity="warning",
            message=f"of a mean TTFT of {seconds(first)}, {seconds(waited)} is waiting in"
            " the queue",
            advice="what makes requests wait is above; computing prompts faster would"
            " not help much",
        )


def _hits(seen: Observation) -> Iterator[Finding]:
    finished = seen.counter("finished_requests") or 0.0
    if seen.server.is_caching is False:
        yield Finding(
            code="prefix_caching_off",
            severity="info",
            message="prefix caching is off, so that nothing shows whether prompts share",
            advice="--enable-prefix-caching, if prompts begin alike (system prompts,"
            " conversations)",
        )
    queries = seen.counter("prefix_cache_query_tokens")
    hits = seen.counter("prefix_cache_hit_tokens")
    if not queries or hits is None or finished < FEWEST_REQUESTS:
        return
    share = hits / queries
    told = f"{100 * share:.3g} % of prompt tokens were found in the prefix cache"
    if share < FEW_HITS:
        yield Finding(
            code="few_hits",
            severity="info",
            message=told,
            advice="if prompts do begin alike, see whether something that differs comes"
            " first in them, or requests of a conversation reach other replicas",
        )
    elif share >= MANY_HITS:
        yield Finding(
            code="many_hits",
            severity="info",
            message=told,
            advice="the workload written here knows nothing of it: give tune a trace"
            " that says which prompts begin alike",
        )


def _swapped(seen: Observation) -> Iterator[Finding]:
    swapped, usage = peak(seen.gauge("num_swapped")), peak(seen.gauge("cpu_cache_usage"))
    if swapped is None or swapped < 1:
        return
    full = "" if usage is None else f", its blocks up to {100 * usage:.0f} % full"
    yield Finding(
        code="swapping",
        severity="warning",
        message=f"up to {swapped:,.0f} requests were swapped out to the CPU{full}",
        advice="a larger KV cache, or fewer requests at a time (--max-num-seqs); more"
        " --swap-space where it was full",
    )


def _roomy(seen: Observation) -> Iterator[Finding]:
    most = peak(seen.gauge("kv_cache_usage"))
    if most is None or (seen.counter("finished_requests") or 0) < 1:
        return
    if most < IDLE and not (seen.gauge("num_waiting") > 0).any():
        yield Finding(
            code="kv_cache_idle",
            severity="info",
            message=f"the KV cache was {100 * most:.2g} % full at most; nobody waited",
            advice="it is larger than this traffic needs; there is room for more of it",
        )


def _nothing(seen: Observation) -> Iterator[Finding]:
    if not seen.arrivals().sum() and not seen.counter("finished_requests"):
        yield Finding(
            code="no_traffic",
            severity="info",
            message=f"no request came in {seen.duration_s:.0f} s",
            advice="watch while there is traffic, or longer (--for)",
        )


def peak(looks: FloatArray) -> float | None:
    """The most at any look; None where no look told."""
    told = looks[~np.isnan(looks)]
    return float(told.max()) if len(told) else None


RULES: tuple[Callable[[Observation], Iterator[Finding]], ...] = (
    _ended,
    _nothing,
    _preempted,
    _overloaded,
    _queued,
    _queue_time,
    _swapped,
    _hits,
    _roomy,
)
"""What looks for findings, in the order in which they are shown."""
