"""The summary document of a run: what ``blockbench run --json`` prints."""

from dataclasses import asdict
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns
from results.findings import find
from results.findings.run_view import RunView
from results.goodput import Slo, count_good, judge_conditions
from results.kv_usage import kv_usage
from results.latency import inter_token_gaps, is_finished, request_latency
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
        "prefix_cache": _prefix_cache(requests, caching=_can_hit(info)),
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
        "swap_preemptions": swap,
        "swap_out_blocks": steps.total("num_swap_out_blocks"),
        "swap_in_blocks": steps.total("num_swap_in_blocks"),
        "copy_on_write": steps.total("num_copy_on_write"),
        "evictions": steps.total("num_evictions") if info.is_caching else None,
        "offload_store_blocks": None,
        "offload_load_blocks": None,
        "steps": steps.total("num_steps"),
    }


def _prefix_cache(requests: Columns, *, caching: bool) -> Document:
    if not caching:
        names = ("query_tokens", "hit_tokens", "hit_rate", "recompute_hit_tokens")
        return dict.fromkeys(names)
    admitted = ~np.isnan(requests["first_scheduled_ns"])
    query = _total(requests, "num_prompt_tokens", admitted)
    hit = _total(requests, "num_cached_tokens", admitted)
    return {
        "query_tokens": query,
        "hit_tokens": hit,
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
        num_gpu_blocks=config["num_gpu_blocks"],
        block_size=config["block_size"],
        caching=info.is_caching,
    )
    return {
        "num_gpu_blocks": config["num_gpu_blocks"],
        "num_cpu_blocks": config["num_cpu_blocks"],
        "block_size": config["block_size"],
        **asdict(usage),
    }


def _waste(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    shares = time_shares(steps)
    blocked_s = head_of_line_s(requests, steps, info.config["block_size"])
    regretted = steps.total("num_regretted_evictions")
    return {
        "recomputed_tokens": steps.total("num_recomputed_tokens"),
        "recompute_time_share": shares.recompute,
        "swap_time_share": shares.swap,
        "regretted_evictions": regretted if info.is_caching else None,
        "head_of_line_s": float(blocked_s.sum()),
        "head_of_line_requests": int((blocked_s > 0).sum()),
    }
