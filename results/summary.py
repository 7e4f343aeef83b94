"""The summary document of a run: what ``blockbench run --json`` prints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.findings import Finding
from results.goodput import Slo, count_good
from results.kv_usage import kv_usage
from results.latency import finished, inter_token_gaps, request_latency
from results.record import RequestRecord, RequestStatus, StepRecord
from results.statistics import NS_PER_S, summarize_samples

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known of a run besides its records; all of it is strict JSON.

    It can be made before the run, so that nothing unfit for JSON is found only after it.

    Attributes:
        source: ``simulated`` or ``measured``.
        engine: ``sim``, ``torch``, ``vllm`` or ``server``.
        policy: ``v0`` or ``v1``.
        complete: False when the run was interrupted or could not go on.
        config: Every knob as resolved; holds ``num_gpu_blocks``, ``num_cpu_blocks``,
            ``block_size`` and ``enable_prefix_caching``.
        trace: What is known of it, ``TRACE_KEYS`` at least.
        workload: How requests were chosen and timed, by flag; None where not given. Part
            of the configuration in the document.
        wall_s: Seconds that the run itself took.
    """

    source: str
    engine: str
    policy: str
    complete: bool = False
    config: Mapping[str, Any]
    trace: Mapping[str, Any]
    workload: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        json.dumps((self.config, self.trace, self.workload), allow_nan=False)


def summarize(
    info: RunInfo,
    requests: Sequence[RequestRecord],
    steps: Sequence[StepRecord],
    findings: Sequence[Finding] = (),
    slo: Slo | None = None,
) -> Document:
    """The whole document; None stands for what does not apply or was not measured."""
    duration_s = run_duration_s(requests, steps)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "source": info.source,
        "engine": info.engine,
        "policy": info.policy,
        "complete": info.complete,
        "config": dict(info.config) | dict(info.workload),
        "trace": {key: info.trace[key] for key in TRACE_KEYS},
        "counts": _counts(requests, steps, caching=_is_caching(info)),
        "prefix_cache": _prefix_cache(requests, caching=_can_hit(info)),
        "latency_s": _latency(requests, steps),
        "throughput": _throughput(requests, duration_s),
        "goodput": _goodput(requests, slo, duration_s),
        "kv_cache": _kv_cache(info.config, steps),
        "findings": [finding.to_dict() for finding in findings],
        "simulated_s": duration_s if info.source == "simulated" else None,
        "wall_s": info.wall_s,
    }


def run_duration_s(
    requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> float:
    """Seconds from the first arrival to the last finish.

    While nothing has finished, to the end of the last step.
    """
    if not requests:
        return 0.0
    start = min(r.arrival_ns for r in requests)
    ends = [r.finished_ns for r in finished(requests) if r.finished_ns is not None]
    end = max(ends or [s.end_ns for s in steps[-1:]], default=start)
    return (end - start) / NS_PER_S


def _is_caching(info: RunInfo) -> bool:
    return bool(info.config["enable_prefix_caching"])


def _can_hit(info: RunInfo) -> bool:
    """A trace that does not say which prompts begin alike has no hits to speak of."""
    return _is_caching(info) and bool(info.trace["has_sharing"])


def _counts(
    requests: Sequence[RequestRecord], steps: Sequence[StepRecord], *, caching: bool
) -> Document:
    status = [r.status for r in requests]
    recompute = sum(s.num_preempted_recompute for s in steps)
    swap = sum(s.num_preempted_swap for s in steps)
    return {
        **{kind.value: status.count(kind) for kind in RequestStatus},
        "preemptions": recompute + swap,
        "recompute_preemptions": recompute,
        "swap_preemptions": swap,
        "swap_out_blocks": sum(s.num_swap_out_blocks for s in steps),
        "swap_in_blocks": sum(s.num_swap_in_blocks for s in steps),
        "copy_on_write": sum(s.num_copy_on_write for s in steps),
        "evictions": sum(s.num_evictions for s in steps) if caching else None,
        "offload_store_blocks": None,
        "offload_load_blocks": None,
        "steps": sum(s.num_steps for s in steps),
    }


def _prefix_cache(requests: Sequence[RequestRecord], *, caching: bool) -> Document:
    if not caching:
        names = ("query_tokens", "hit_tokens", "hit_rate", "recompute_hit_tokens")
        return dict.fromkeys(names)
    admitted = [r for r in requests if r.first_scheduled_ns is not None]
    query = sum(r.num_prompt_tokens for r in admitted)
    hit = sum(r.num_cached_tokens for r in admitted)
    return {
        "query_tokens": query,
        "hit_tokens": hit,
        "hit_rate": hit / query if query else None,
        "recompute_hit_tokens": sum(r.num_recompute_cached_tokens for r in admitted),
    }


def _latency(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Document:
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


def _throughput(requests: Sequence[RequestRecord], duration_s: float) -> Document:
    done = finished(requests)
    output = sum(r.num_output_tokens for r in done)
    prompt = sum(r.num_prompt_tokens for r in done)
    return {
        "request_per_s": _per_s(len(done), duration_s),
        "output_token_per_s": _per_s(output, duration_s),
        "total_token_per_s": _per_s(prompt + output, duration_s),
    }


def _goodput(
    requests: Sequence[RequestRecord], slo: Slo | None, duration_s: float
) -> Document | None:
    if slo is None:
        return None
    good = count_good(requests, slo)
    return {
        "slo": slo.to_dict(),
        "request_per_s": _per_s(good, duration_s),
        "fraction": good / len(requests) if requests else None,
    }


def _kv_cache(config: Mapping[str, Any], steps: Sequence[StepRecord]) -> Document:
    usage = kv_usage(
        steps,
        num_gpu_blocks=config["num_gpu_blocks"],
        block_size=config["block_size"],
    )
    return {
        "num_gpu_blocks": config["num_gpu_blocks"],
        "num_cpu_blocks": config["num_cpu_blocks"],
        "block_size": config["block_size"],
        "peak_usage": usage.peak_usage,
        "mean_usage": usage.mean_usage,
        "fragmentation": usage.fragmentation,
    }
