"""The summary document of a run: what ``blockbench run --json`` prints."""

from dataclasses import asdict
from typing import Any

import numpy as np

from results.columns import Columns, FloatArray
from results.counts import (
    counts_of,
    is_caching,
    prefix_cache_of,
    total_of,
    total_where,
)
from results.findings import find
from results.findings.run_view import RunView
from results.goodput import Slo, count_good, judge_conditions
from results.kv_usage import KvUsage, kv_usage, num_usable_blocks
from results.latency import (
    inter_token_gaps,
    is_finished,
    request_latency,
)
from results.measured import NotMeasuredError, if_measured
from results.offload import has_offload_tier
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
        "counts": counts_of(info, requests, steps),
        "prefix_cache": prefix_cache_of(info, requests),
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
    last = ends if len(ends) or not len(steps) else steps["end_ns"][-1:]
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
    output = if_measured(lambda: total_where(requests, "num_output_tokens", done))
    prompt = if_measured(lambda: total_where(requests, "num_prompt_tokens", done))
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
        caching=is_caching(info),
    )


def _waste(info: RunInfo, requests: Columns, steps: Columns) -> Document:
    blocked = if_measured(lambda: _blocked_s(info, requests, steps))
    forced = total_of(steps, "num_forced_stores")
    regretted = total_of(steps, "num_regretted_evictions")
    swap = if_measured(lambda: swap_share(steps))
    has_tier = has_offload_tier(info)
    return {
        "recomputed_tokens": total_of(steps, "num_recomputed_tokens"),
        "recompute_time_share": if_measured(lambda: recompute_share(steps)),
        "swap_time_share": swap if has_tier or info.policy == "v0" else None,
        "forced_stores": forced if has_tier else None,
        "regretted_evictions": regretted if is_caching(info) else None,
        "head_of_line_s": None if blocked is None else float(blocked.sum()),
        "head_of_line_requests": None if blocked is None else int((blocked > 0).sum()),
    }


def _blocked_s(info: RunInfo, requests: Columns, steps: Columns) -> FloatArray:
    block_size = info.config["block_size"]
    if block_size is None:
        raise NotMeasuredError("block_size")
    return head_of_line_s(requests, steps, block_size)
