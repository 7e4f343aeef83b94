"""The summary document of a run: what ``blockbench run --json`` prints."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns, FloatArray
from results.findings import find
from results.findings.run_view import RunView
from results.goodput import Slo, count_good, judge_conditions
from results.kv_usage import KvUsage, kv_usage, num_usable_blocks
from results.latency import (
    inter_token_gaps,
    is_admitted,
    is_finished,
    request_latency,
)
from results.measured import NotMeasuredError, if_measured
from results.offload import OffloadTraffic, block_bytes_of_all_ranks, has_offload_tier
from results.record import RequestStatus
from results.run_info import RunInfo
from results.statistics import NS_PER_S, SampleSummary, summarize_samples
from results.waste import head_of_line_s, recompute_share, swap_share

SCHEMA_VERSION = 1
# 1  first version

TRACE_KEYS = (
    "name",
    "format",
    "num_requests",
    "num_skipped",
    "duration_s",
    "has_sharing",
)

Document = dict[str, Any]


def summarize(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    """The whole document; None stands for what does not apply or was not measured.

    Args:
        info: What is known besides the rows.
        requests: Columns of ``RequestRecord``.
        steps: Columns of ``StepRecord``, in time order.
    """
    duration_s = _duration_s(info, requests, steps)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "source": info.source,
        "engine": info.engine,
        "policy": info.policy,
        "complete": info.complete,
        "steady": is_steady(info, requests, steps),
        "config": dict(info.config),
        "trace": {key: info.trace[key] for key in TRACE_KEYS},
        "counts": _counts(info, requests, steps),
        "prefix_cache": _prefix_cache(info, requests),
        "latency_s": _latency(requests, steps),
        "throughput": _throughput(requests, duration_s),
        "goodput": _goodput(info, requests, steps, duration_s),
        "kv_cache": _kv_cache(info, steps),
        "waste": _waste(info, requests, steps),
        "findings": [finding.to_dict() for finding in find(info, requests, steps)],
        "simulated_s": duration_s if info.source == "simulated" else None,
        "wall_s": info.wall_s,
        "measurement": _measurement(info),
    }


def _measurement(info: RunInfo) -> Document | None:
    return None if info.measurement is None else info.measurement.to_dict()


def _duration_s(info: RunInfo, requests: Columns, steps: Columns) -> float:
    """As the rows tell, or the client where its rows do not tell when requests came."""
    known = None if info.measurement is None else info.measurement.duration_s
    return run_duration_s(requests, steps) if known is None else known


def run_duration_s(requests: Columns, steps: Columns) -> float:
    """Seconds from the first arrival to the last finish.

    While nothing has finished, to the end of the last step.
    """
    if not len(requests):
        return 0.0
    start = requests["arrival_ns"].min()
    ends = requests["finished_ns"][is_finished(requests)]
    last = ends if len(ends) else steps["end_ns"][-1:]
    return float((last.max() if len(last) else start) - start) / NS_PER_S


def is_steady(info: RunInfo, requests: Columns, steps: Columns) -> bool | None:
    """Whether waits settled, so that latencies do not depend on the trace's length.

    None in a closed loop, where no queue grows, for too few requests to tell, for a run
    that ended before it could show, and where nobody measured when requests were served.
    """
    view = RunView(info, requests, steps)
    trend = if_measured(lambda: view.trend)
    if trend is None or not (trend.is_growing or info.complete):
        return None
    return not trend.is_growing


# -- what was measured -------------------------------------------------------------------


def _total_of(columns: Columns, name: str) -> int | None:
    return if_measured(lambda: columns.total(name))


def _counted(info: RunInfo, rows: Callable[[], int], counter: str) -> int | None:
    """From the rows; else the engine's counter over the whole run, if it has one."""
    figure, counted = if_measured(rows), info.counter(counter)
    return figure if figure is not None or counted is None else round(counted)


def _is_caching(info: RunInfo) -> bool:
    """Prefix caching is on; an engine that does not say so but counts look-ups has it."""
    is_caching = if_measured(lambda: info.is_caching)
    if is_caching is None:
        return bool(info.counter("prefix_cache_query_tokens"))
    return is_caching


def _can_hit(info: RunInfo, requests: Columns) -> bool:
    """Prompts that only a length is known of have no hits to speak of."""
    is_known = info.trace["has_sharing"] or info.trace.get("is_observed", False)
    is_told = info.config["enable_prefix_caching"] is None and _tells_hits(requests)
    return bool(is_known) and (is_told or _is_caching(info))


def _tells_hits(requests: Columns) -> bool:
    """A server that says of each request what it found has a cache to look into."""
    return requests.has("num_cached_tokens")


def _has_tier(info: RunInfo) -> bool:
    """Something lies under the GPU blocks, as its traffic shows where nobody says it."""
    names = ("offload_store_bytes", "offload_load_bytes")
    return has_offload_tier(info) or any(info.counter(name) for name in names)


# -- sections ----------------------------------------------------------------------------


def _counts(info: RunInfo, requests: Columns, steps: Columns) -> Document:
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
        "evictions": _total_of(steps, "num_evictions") if _is_caching(info) else None,
        **_offload(info, steps),
        "prefill_tokens": _total_of(steps, "num_prefill_tokens"),
        "steps": _total_of(steps, "num_steps"),
    }


def _preemptions(info: RunInfo, steps: Columns) -> Document:
    """All, and those by recomputation, which in v1 are all."""
    kinds = ("num_preempted_recompute", "num_preempted_swap")
    total = _counted(info, lambda: sum(map(steps.total, kinds)), "preemptions")
    recompute = _total_of(steps, kinds[0])
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
    return {"swap_preemptions": _total_of(steps, swapped)} | {
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
        "offload_store_blocks": _total_of(steps, stored),
        "offload_load_blocks": _total_of(steps, loaded),
        "offload_store_bytes": _copied_bytes(info, steps, stored, "offload_store_bytes"),
        "offload_load_bytes": _copied_bytes(info, steps, loaded, "offload_load_bytes"),
        "offload_evictions": None if traffic is None else traffic.num_evictions,
    }


def _copied_bytes(info: RunInfo, steps: Columns, column: str, counter: str) -> int | None:
    return _counted(
        info, lambda: steps.total(column) * block_bytes_of_all_ranks(info), counter
    )


def _prefix_cache(info: RunInfo, requests: Columns) -> Document:
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
        "recompute_hit_tokens": _total_of(requests, "num_recompute_cached_tokens"),
    }


Hits = tuple[int | None, int | None, int | None]
"""Prompt tokens looked up; found; found in the tier."""


def _hits_of_rows(requests: Columns) -> Hits:
    admitted = is_admitted(requests)
    hit = _total(requests, "num_cached_tokens", admitted)
    return (
        _total(requests, "num_prompt_tokens", admitted),
        hit,
        if_measured(lambda: _total(requests, "num_offload_cached_tokens", admitted)),
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


def _total(requests: Columns, name: str, chosen: BoolArray) -> int:
    return int(requests[name][chosen].sum())


def _latency(requests: Columns, steps: Columns) -> Document:
    latency = request_latency(requests)
    return {
        "ttft": summarize_samples(latency.ttft_s),
        "tpot": summarize_samples(latency.tpot_s),
        "itl": _itl(steps),
        "e2e": summarize_samples(latency.e2e_s),
        "queue": summarize_samples(latency.queue_s),
    }


def _itl(steps: Columns) -> SampleSummary:
    gaps = if_measured(lambda: inter_token_gaps(steps))
    return summarize_samples(*(gaps or (np.zeros(0),)))


def _per_s(amount: int | None, duration_s: float) -> float | None:
    return amount / duration_s if amount is not None and duration_s > 0 else None


def _throughput(requests: Columns, duration_s: float) -> Document:
    done = is_finished(requests)
    output = if_measured(lambda: _total(requests, "num_output_tokens", done))
    prompt = if_measured(lambda: _total(requests, "num_prompt_tokens", done))
    total = None if prompt is None or output is None else prompt + output
    return {
        "request_per_s": _per_s(int(done.sum()), duration_s),
        "output_token_per_s": _per_s(output, duration_s),
        "total_token_per_s": _per_s(total, duration_s),
    }


def _goodput(
    info: RunInfo, requests: Columns, steps: Columns, duration_s: float
) -> Document | None:
    if info.slo is None:
        return None
    slo = Slo.from_dict(info.slo)
    good = if_measured(lambda: count_good(requests, slo))
    num_requests = info.trace["num_requests"]
    return {
        "slo": slo.to_dict(),
        "request_per_s": _per_s(good, duration_s),
        "fraction": good / num_requests if num_requests and good is not None else None,
        "conditions": judge_conditions(requests, steps, slo),
    }


def _kv_cache(info: RunInfo, steps: Columns) -> Document:
    config = info.config
    usage = if_measured(lambda: _kv_usage(info, steps)) or KvUsage()
    peak_cpu = if_measured(lambda: int(steps["num_used_cpu_blocks"].max(initial=0)))
    return {
        "num_gpu_blocks": config["num_gpu_blocks"],
        "num_cpu_blocks": config["num_cpu_blocks"],
        "block_size": config["block_size"],
        **asdict(usage),
        "peak_cpu_blocks": peak_cpu if config["num_cpu_blocks"] else None,
    }


def _kv_usage(info: RunInfo, steps: Columns) -> KvUsage:
    config = info.config
    return kv_usage(
        steps,
        num_gpu_blocks=num_usable_blocks(config["num_gpu_blocks"], info.policy),
        block_size=config["block_size"],
        caching=_is_caching(info),
    )


def _waste(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    blocked = if_measured(lambda: _blocked_s(info, requests, steps))
    forced = _total_of(steps, "num_forced_stores")
    regretted = _total_of(steps, "num_regretted_evictions")
    swap = if_measured(lambda: swap_share(steps))
    has_tier = has_offload_tier(info)
    return {
        "recomputed_tokens": _total_of(steps, "num_recomputed_tokens"),
        "recompute_time_share": if_measured(lambda: recompute_share(steps)),
        "swap_time_share": swap if has_tier or info.policy == "v0" else None,
        "forced_stores": forced if has_tier else None,
        "regretted_evictions": regretted if _is_caching(info) else None,
        "head_of_line_s": None if blocked is None else float(blocked.sum()),
        "head_of_line_requests": None if blocked is None else int((blocked > 0).sum()),
    }


def _blocked_s(info: RunInfo, requests: Columns, steps: Columns) -> FloatArray:
    block_size = info.config["block_size"]
    if block_size is None:
        raise NotMeasuredError("block_size")
    return head_of_line_s(requests, steps, block_size)
