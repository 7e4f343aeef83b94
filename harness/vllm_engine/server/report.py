"""What a replay on a server leaves behind besides its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.vllm_engine.server.cold import CacheState, checked, most_findable
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.metrics import HISTOGRAMS, Difference, Snapshot
from harness.vllm_engine.server.options import ServerOptions
from harness.vllm_engine.server.priority import PriorityState
from harness.vllm_engine.server.rows import RequestRows
from harness.workload import Workload
from results.measured import Measurement
from results.record import RequestStatus, StepRecord

_NS_PER_S = 1_000_000_000

_OF_STEPS = {
    "start_ns",
    "end_ns",
    "num_steps",
    "first_step_ns",
    "last_step_ns",
    "gap_ns",
    "gap_count",
}
_OF_METRICS = {
    "num_running": "num_running",
    "num_waiting": "num_waiting",
    "num_swapped": "num_swapped",
    "num_used_blocks": "kv_cache_usage",
    "num_used_blocks_end": "kv_cache_usage",
}
_OF_REQUESTS = (
    "num_offload_cached_tokens",
    "num_recompute_cached_tokens",
    "num_recomputed_tokens",
    "num_preemptions",
)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All that a replay has seen."""

    workload: Workload
    options: ServerOptions
    server: Server | None
    requests: RequestRows
    before: Snapshot | None
    difference: Difference | None
    cache: CacheState
    priority: PriorityState
    num_cut: int
    num_unlearned: int
    num_missed_looks: int
    num_retries: int


def measurement(seen: Observed) -> Measurement:
    """What is known of a replay besides its rows."""
    counters = {} if seen.difference is None else seen.difference.counters()
    cache = checked(
        seen.cache,
        seen.requests.records,
        most_findable(seen.workload),
        is_cached_known=_is_cached_known(seen.requests),
        num_hit_tokens=counters.get("prefix_cache_hit_tokens"),
    )
    return Measurement(
        unmeasured=unmeasured_of(seen.requests, seen.before, seen.server),
        counters=counters,
        facts=_facts(seen),
        lateness_s=_lateness_s(seen.requests.lateness_ns),
        is_cold=cache.is_cold,
        warmup_requests=seen.options.warmup_requests,
        notes=tuple(_notes(seen, cache)),
    )


def unmeasured_of(
    requests: RequestRows | None, metrics: Snapshot | None, server: Server | None = None
) -> tuple[str, ...]:
    """The columns that say nothing; before anything is known, all that might."""
    names = [f"steps.{name}" for name in _unmeasured_of_steps(metrics, server)]
    names += [f"requests.{name}" for name in _OF_REQUESTS]
    if requests is None or not _is_cached_known(requests):
        names.append("requests.num_cached_tokens")
    if requests is None or not requests.is_queue_known or not requests.num_done:
        names += ["requests.queued_ns", "requests.first_scheduled_ns"]
    return tuple(names)


def _unmeasured_of_steps(
    metrics: Snapshot | None, server: Server | None
) -> Iterator[str]:
    shown = {name for name, gauge in _OF_METRICS.items() if _is_shown(metrics, gauge)}
    if server is None or not server.num_usable_blocks:
        shown -= {"num_used_blocks", "num_used_blocks_end"}
    for name in StepRecord.__dataclass_fields__:
        if name not in _OF_STEPS | shown:
            yield name


def _is_shown(metrics: Snapshot | None, gauge: str) -> bool:
    return metrics is not None and metrics.gauge(gauge) is not None


def _is_cached_known(requests: RequestRows) -> bool:
    return requests.is_cached_known and requests.num_done > 0


def _facts(seen: Observed) -> dict[str, Any]:
    facts = {} if seen.server is None else seen.server.facts()
    if seen.priority.policy is not None:
        facts["scheduling_policy"] = seen.priority.policy
    if seen.cache.is_cold:
        facts["cold_cache_by"] = seen.cache.how
    if seen.difference is None or seen.difference.is_restarted:
        return facts
    found = {name: seen.difference.histogram(name) for name in HISTOGRAMS}
    facts["server_histograms"] = {
        name: {"num": each.num_values, **each.summary()}
        for name, each in found.items()
        if each is not None and each.num_values > 0
    }
    return facts


def _lateness_s(lateness_ns: list[int]) -> dict[str, float] | None:
    if not lateness_ns:
        return None
    seconds = np.array(lateness_ns) / _NS_PER_S
    p50, p99 = np.percentile(seconds, (50, 99))
    return {"p50": float(p50), "p99": float(p99), "max": float(seconds.max())}


def _notes(seen: Observed, cache: CacheState) -> Iterator[str]:
    """What a reader must know to read the figures."""
    if seen.server is None:
        return
    requests, difference = seen.requests, seen.difference
    if not cache.is_cold:
        yield cache.how
    if seen.before is None:
        yield "the server has no metrics of vLLM: KV cache and preemptions are unknown"
    elif difference is not None and difference.is_restarted:
        yield "the server was started anew during the run: its counters say nothing"
    yield from _notes_on_others(seen)
    yield from _notes_on_hits(seen)
    yield from _notes_on_outputs(seen)
    for said, number in requests.refusals.most_common(3):
        yield f"refused {number:,} times: {said}"
    if seen.num_retries:
        yield f"{seen.num_retries:,} connections had to be tried again"
    if seen.num_missed_looks:
        yield f"{seen.num_missed_looks:,} looks at the metrics were not answered in time"
    if seen.priority.note:
        yield seen.priority.note


def _notes_on_others(seen: Observed) -> Iterator[str]:
    """Whether somebody else's requests are in the figures."""
    names = ("num_running", "num_waiting")
    num_before = sum((seen.before and seen.before.gauge(name)) or 0 for name in names)
    if num_before:
        yield f"{num_before:,.0f} requests of others were in the server at the start"
    finished = seen.difference and seen.difference.counter("finished_requests")
    ours = seen.requests.num_finished_samples
    if finished and finished > max(ours, seen.requests.num_done):
        yield (
            "the server finished more requests than the run sent: its counters have those"
            " of others in them"
        )


def _notes_on_hits(seen: Observed) -> Iterator[str]:
    """Where the server's counter and what it said of each request differ."""
    difference = seen.difference
    counted = difference and difference.counter("prefix_cache_hit_tokens")
    records = seen.requests.records
    if counted is None or not _is_cached_known(seen.requests):
        return
    told = sum(record.num_cached_tokens for record in records)
    is_all_told = all(
        record.n == 1 and record.status is RequestStatus.FINISHED for record in records
    )
    if counted == told or not is_all_told or len(records) < len(seen.workload):
        return
    yield (
        f"the server's counter has {counted:,.0f} tokens of hits, its answers {told:,}:"
        " versions before July 2026 count a request again each time that it is tried"
        " (vLLM #43736), and up to 0.10 once more after a preemption (#25780)"
    )


def _notes_on_outputs(seen: Observed) -> Iterator[str]:
    requests = seen.requests
    if seen.num_cut:
        yield f"{seen.num_cut:,} outputs were cut where the model ends, as simulated"
    if requests.num_short:
        yield f"{requests.num_short:,} outputs are shorter than asked for"
    if requests.num_long:
        yield f"{requests.num_long:,} outputs are longer than asked for"
    if requests.num_uneven:
        yield (
            f"{requests.num_uneven:,} requests have samples of several lengths in the"
            " trace: a server gives all the longest"
        )
    if requests.has_lumps:
        yield "several tokens came in a chunk: ITL is between chunks, as in vllm bench"
    if seen.num_unlearned:
        yield (
            f"{seen.num_unlearned:,} outputs are not known token by token: prompts"
            " that continue them find the prompt before them and no more"
        )
