"""What happened how often: from the rows of a run, or from its engine's counters.

An engine that was started here gives rows; a server counts over the whole run, if at all.
Where neither tells, a figure is None.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from results.columns import BoolArray, Columns
from results.latency import is_admitted
from results.measured import if_measured
from results.offload import OffloadTraffic, block_bytes_of_all_ranks, has_offload_tier
from results.record import RequestStatus
from results.run_info import RunInfo

Document = dict[str, Any]


def total_of(columns: Columns, name: str) -> int | None:
    """Sum of a column; None where nobody measured it."""
    return if_measured(lambda: columns.total(name))


def _counted(info: RunInfo, rows: Callable[[], int], counter: str) -> int | None:
    """From the rows; else the engine's counter over the whole run, if it has one."""
    figure, counted = if_measured(rows), info.counter(counter)
    return figure if figure is not None or counted is None else round(counted)


def is_caching(info: RunInfo) -> bool:
    """Prefix caching is on; an engine that does not say so but counts look-ups has it."""
    is_caching = if_measured(lambda: info.is_caching)
    if is_caching is None:
        return bool(info.counter("prefix_cache_query_tokens"))
    return is_caching


def _can_hit(info: RunInfo, requests: Columns) -> bool:
    """Prompts that only a length is known of have no hits to speak of."""
    is_known = info.trace["has_sharing"] or info.trace.get("is_observed", False)
    is_told = info.config["enable_prefix_caching"] is None and _tells_hits(requests)
    return bool(is_known) and (is_told or is_caching(info))


def _tells_hits(requests: Columns) -> bool:
    """A server that says of each request what it found has a cache to look into."""
    return requests.has("num_cached_tokens")


def _has_tier(info: RunInfo) -> bool:
    """Something lies under the GPU blocks, as its traffic shows where nobody says it."""
    names = ("offload_store_bytes", "offload_load_bytes")
    return has_offload_tier(info) or any(info.counter(name) for name in names)


def counts_of(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    """Requests by how they ended, preemptions, copies, evictions, tokens and steps."""
    statuses = {
        status.value: int(requests.is_equal("status", status).sum())
        for status in RequestStatus
    }
    # A run that was killed has no rows of requests to which it had not come.
    statuses["failed"] += info.trace["num_requests"] - len(requests)
    return {
        **statuses,
        **_preemptions(info, steps),
        **_swaps(info, steps),
        "evictions": total_of(steps, "num_evictions") if is_caching(info) else None,
        **_offload(info, steps),
        "prefill_tokens": total_of(steps, "num_prefill_tokens"),
        "steps": total_of(steps, "num_steps"),
    }


def _preemptions(info: RunInfo, steps: Columns) -> Document:
    """All, and those by recomputation, which in v1 are all."""
    kinds = ("num_preempted_recompute", "num_preempted_swap")
    total = _counted(info, lambda: sum(map(steps.total, kinds)), "preemptions")
    recompute = total_of(steps, kinds[0])
    is_all = recompute is None and info.policy == "v1"
    return {
        "preemptions": total,
        "recompute_preemptions": total if is_all else recompute,
    }


def _swaps(info: RunInfo, steps: Columns) -> Document:
    """What v0 swaps and copies; v1 does neither."""
    swapped = "num_preempted_swap"
    names = {
        "swap_out_blocks": ("num_swap_out_blocks", "swap_out_blocks"),
        "swap_in_blocks": ("num_swap_in_blocks", "swap_in_blocks"),
        "copy_on_write": ("num_copy_on_write", "copy_on_write_blocks"),
    }
    if info.policy == "v1":
        return dict.fromkeys(("swap_preemptions", *names))
    return {"swap_preemptions": total_of(steps, swapped)} | {
        key: _counted(info, partial(steps.total, column), counter)
        for key, (column, counter) in names.items()
    }


def _offload(info: RunInfo, steps: Columns) -> Document:
    """Copies to and from the tier, in blocks and in bytes over all GPUs."""
    names = ("store_blocks", "load_blocks", "store_bytes", "load_bytes", "evictions")
    if not _has_tier(info):
        return dict.fromkeys(f"offload_{name}" for name in names)
    traffic = if_measured(lambda: OffloadTraffic.of(steps))
    stored, loaded = "num_offload_store_blocks", "num_offload_load_blocks"
    return {
        "offload_store_blocks": total_of(steps, stored),
        "offload_load_blocks": total_of(steps, loaded),
        "offload_store_bytes": _copied_bytes(info, steps, stored, "offload_store_bytes"),
        "offload_load_bytes": _copied_bytes(info, steps, loaded, "offload_load_bytes"),
        "offload_evictions": None if traffic is None else traffic.num_evictions,
    }


def _copied_bytes(info: RunInfo, steps: Columns, column: str, counter: str) -> int | None:
    return _counted(
        info, lambda: steps.total(column) * block_bytes_of_all_ranks(info), counter
    )


def prefix_cache_of(info: RunInfo, requests: Columns) -> Document:
    """Hits at first admissions, those in the GPU's blocks and those in the tier apart."""
    if not _can_hit(info, requests):
        names = ("query", "hit", "gpu_hit", "offload_hit", "recompute_hit")
        return {"hit_rate": None} | dict.fromkeys(f"{name}_tokens" for name in names)
    hits = if_measured(lambda: _hits_of_rows(requests)) or _hits_of_counters(info)
    query, hit, offload_hit = hits
    has_tier = _has_tier(info)
    elsewhere = offload_hit if has_tier else 0
    gpu_hit = None if hit is None or elsewhere is None else hit - elsewhere
    return {
        "query_tokens": query,
        "hit_tokens": hit,
        "gpu_hit_tokens": gpu_hit,
        "offload_hit_tokens": offload_hit if has_tier else None,
        "hit_rate": hit / query if query and hit is not None else None,
        "recompute_hit_tokens": total_of(requests, "num_recompute_cached_tokens"),
    }


Hits = tuple[int | None, int | None, int | None]
"""Prompt tokens looked up; found; found in the tier."""


def _hits_of_rows(requests: Columns) -> Hits:
    admitted = is_admitted(requests)
    hit = total_where(requests, "num_cached_tokens", admitted)
    return (
        total_where(requests, "num_prompt_tokens", admitted),
        hit,
        if_measured(lambda: total_where(requests, "num_offload_cached_tokens", admitted)),
    )


def _hits_of_counters(info: RunInfo) -> Hits:
    """What vLLM finds on the GPU, and what others have for it, it counts apart."""
    query, on_gpu = (
        info.counter(f"prefix_cache_{name}_tokens") for name in ("query", "hit")
    )
    if query is None or on_gpu is None:
        return None, None, None
    elsewhere = round(info.counter("external_prefix_cache_hit_tokens") or 0)
    return round(query), round(on_gpu) + elsewhere, elsewhere


def total_where(requests: Columns, name: str, chosen: BoolArray) -> int:
    """Sum of a column over the chosen requests."""
    return int(requests[name][chosen].sum())
