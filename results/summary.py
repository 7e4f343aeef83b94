"""The summary document of a run: what ``blockbench run --json`` prints."""

from dataclasses import asdict
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns
from results.findings import find
from results.findings.run_view import RunView
from results.goodput import Slo, count_good, judge_conditions
from results.kv_usage import kv_usage, num_usable_blocks
from results.latency import inter_token_gaps, is_finished, request_latency
from results.offload import OffloadTraffic, block_bytes_of_all_ranks, has_offload_tier
from results.record import RequestStatus
from results.run_info import RunInfo
from results.statistics import NS_PER_S, summarize_samples
from results.waste import head_of_line_s, time_shares

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
    duration_s = run_duration_s(requests, steps)
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
    }


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

    None in a closed loop, where no queue grows, for too few requests to tell, and for a
    run that ended before it could show.
    """
    trend = RunView(info, requests, steps).trend
    if trend is None or not (trend.is_growing or info.complete):
        return None
    return not trend.is_growing


def _can_hit(info: RunInfo) -> bool:
    """A trace that does not say which prompts begin alike has no hits to speak of."""
    return info.is_caching and bool(info.trace["has_sharing"])


def _counts(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    statuses = {
        status.value: int(requests.is_equal("status", status).sum())
        for status in RequestStatus
    }
    # A run that was killed has no rows of requests to which it had not come.
    statuses["failed"] += info.trace["num_requests"] - len(requests)
    recompute = steps.total("num_preempted_recompute")
    swap = steps.total("num_preempted_swap")
    return {
        **statuses,
        "preemptions": recompute + swap,
        "recompute_preemptions": recompute,
        **_swaps(info, steps),
        "evictions": steps.total("num_evictions") if info.is_caching else None,
        **_offload(info, steps),
        "prefill_tokens": steps.total("num_prefill_tokens"),
        "steps": steps.total("num_steps"),
    }


def _swaps(info: RunInfo, steps: Columns) -> Document:
    """What v0 swaps and copies; v1 does neither."""
    names = {
        "swap_preemptions": "num_preempted_swap",
        "swap_out_blocks": "num_swap_out_blocks",
        "swap_in_blocks": "num_swap_in_blocks",
        "copy_on_write": "num_copy_on_write",
    }
    if info.policy == "v1":
        return dict.fromkeys(names)
    return {key: steps.total(name) for key, name in names.items()}


def _offload(info: RunInfo, steps: Columns) -> Document:
    """Copies to and from the tier, in blocks and in bytes over all GPUs."""
    names = ("store_blocks", "load_blocks", "store_bytes", "load_bytes", "evictions")
    if not has_offload_tier(info):
        return dict.fromkeys(f"offload_{name}" for name in names)
    traffic, block_bytes = OffloadTraffic.of(steps), block_bytes_of_all_ranks(info)
    return {
        "offload_store_blocks": traffic.num_stored,
        "offload_load_blocks": traffic.num_loaded,
        "offload_store_bytes": traffic.num_stored * block_bytes,
        "offload_load_bytes": traffic.num_loaded * block_bytes,
        "offload_evictions": traffic.num_evictions,
    }


def _prefix_cache(info: RunInfo, requests: Columns) -> Document:
    """Hits at first admissions, those in the GPU's blocks and those in the tier apart."""
    if not _can_hit(info):
        names = ("query", "hit", "gpu_hit", "offload_hit", "recompute_hit")
        return {"hit_rate": None} | dict.fromkeys(f"{name}_tokens" for name in names)
    admitted = ~np.isnan(requests["first_scheduled_ns"])
    query = _total(requests, "num_prompt_tokens", admitted)
    hit = _total(requests, "num_cached_tokens", admitted)
    offload_hit = _total(requests, "num_offload_cached_tokens", admitted)
    return {
        "query_tokens": query,
        "hit_tokens": hit,
        "gpu_hit_tokens": hit - offload_hit,
        "offload_hit_tokens": offload_hit if has_offload_tier(info) else None,
        "hit_rate": hit / query if query else None,
        "recompute_hit_tokens": requests.total("num_recompute_cached_tokens"),
    }


def _total(requests: Columns, name: str, chosen: BoolArray) -> int:
    return int(requests[name][chosen].sum())


def _latency(requests: Columns, steps: Columns) -> Document:
    latency = request_latency(requests)
    return {
        "ttft": summarize_samples(latency.ttft_s),
        "tpot": summarize_samples(latency.tpot_s),
        "itl": summarize_samples(*inter_token_gaps(steps)),
        "e2e": summarize_samples(latency.e2e_s),
        "queue": summarize_samples(latency.queue_s),
    }


def _per_s(amount: int, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None


def _throughput(requests: Columns, duration_s: float) -> Document:
    done = is_finished(requests)
    output = _total(requests, "num_output_tokens", done)
    prompt = _total(requests, "num_prompt_tokens", done)
    return {
        "request_per_s": _per_s(int(done.sum()), duration_s),
        "output_token_per_s": _per_s(output, duration_s),
        "total_token_per_s": _per_s(prompt + output, duration_s),
    }


def _goodput(
    info: RunInfo, requests: Columns, steps: Columns, duration_s: float
) -> Document | None:
    if info.slo is None:
        return None
    slo = Slo.from_dict(info.slo)
    good = count_good(requests, slo)
    num_requests = info.trace["num_requests"]
    return {
        "slo": slo.to_dict(),
        "request_per_s": _per_s(good, duration_s),
        "fraction": good / num_requests if num_requests else None,
        "conditions": judge_conditions(requests, steps, slo),
    }


def _kv_cache(info: RunInfo, steps: Columns) -> Document:
    config = info.config
    usage = kv_usage(
        steps,
        num_gpu_blocks=num_usable_blocks(config["num_gpu_blocks"], info.policy),
        block_size=config["block_size"],
        caching=info.is_caching,
    )
    peak_cpu = int(steps["num_used_cpu_blocks"].max(initial=0))
    return {
        "num_gpu_blocks": config["num_gpu_blocks"],
        "num_cpu_blocks": config["num_cpu_blocks"],
        "block_size": config["block_size"],
        **asdict(usage),
        "peak_cpu_blocks": peak_cpu if config["num_cpu_blocks"] else None,
    }


def _waste(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    shares = time_shares(steps)
    blocked_s = head_of_line_s(requests, steps, info.config["block_size"])
    regretted = steps.total("num_regretted_evictions")
    has_tier = has_offload_tier(info)
    is_copying = has_tier or info.policy == "v0"
    return {
        "recomputed_tokens": steps.total("num_recomputed_tokens"),
        "recompute_time_share": shares.recompute,
        "swap_time_share": shares.swap if is_copying else None,
        "forced_stores": steps.total("num_forced_stores") if has_tier else None,
        "regretted_evictions": regretted if info.is_caching else None,
        "head_of_line_s": float(blocked_s.sum()),
        "head_of_line_requests": int((blocked_s > 0).sum()),
    }
