"""An imported result as a measured run: its rows, and what is known besides."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from harness.vllm_engine.imports.imported import ImportedRequest, ImportedResult
from harness.vllm_engine.measured_run import MeasuredRun
from results.measured import Measurement
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows
from results.run_info import Ending, Outcome, RunInfo

NS_PER_S = 1e9
LONGEST_REASON = 120

ENGINE_KNOBS = (
    "gpu",
    "vllm_version",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "block_size",
    "block_bytes",
    "gpu_memory_gib",
    "watermark",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
)
"""What no client is told of the engine behind its server."""

ENGINE_COLUMNS = (
    "requests.queued_ns",
    "requests.first_scheduled_ns",
    "requests.num_offload_cached_tokens",
    "requests.num_recompute_cached_tokens",
    "requests.num_recomputed_tokens",
    "requests.num_preemptions",
    "requests.num_demand_blocks",
    "requests.num_shared_tokens",
    "requests.num_shared_prompt_tokens",
)
"""Columns that only an engine could fill."""

CLIENT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("num_prompt_tokens",),
    "output_tokens": ("num_output_tokens", "max_sample_tokens"),
    "requested_tokens": ("num_requested_tokens",),
    "cached_tokens": ("num_cached_tokens",),
    "ttft_s": ("first_token_ns",),
    "e2e_s": ("finished_ns",),
}
"""Columns by what a client may record of a request."""

STEP_COLUMNS = frozenset(("start_ns", "end_ns", "gap_ns", "gap_count"))
"""What the one row of steps of an imported run holds: the gaps between tokens."""


def measured_run(result: ImportedResult) -> MeasuredRun:
    """The rows of a result; each client counts TTFT and E2E from when it sent."""
    start_s = min((r.start_s or 0.0 for r in result.requests), default=0.0)
    requests = Rows(
        RequestRecord,
        (
            _record(place, request, start_s)
            for place, request in enumerate(result.requests)
        ),
    )
    last_ns = max((r.finished_ns or r.arrival_ns for r in requests), default=0)
    if not result.has_starts and result.duration_s is not None:
        last_ns = _ns(result.duration_s)
    return MeasuredRun(
        requests=requests,
        steps=Rows(StepRecord, _steps(result.requests, last_ns)),
        outcome=_outcome(result),
        wall_s=last_ns / NS_PER_S if result.duration_s is None else result.duration_s,
        measurement=_measurement(result),
    )


def run_info(
    result: ImportedResult, name: str, run: MeasuredRun, *, label: str
) -> RunInfo:
    """What is known of an imported run besides its rows.

    Args:
        result: What the file says.
        name: Of the file, as the run's trace is called.
        run: Its rows.
        label: Stands for the configuration of the server, which no client is told: runs
            of one label are repeats.
    """
    knobs: dict[str, Any] = dict.fromkeys(ENGINE_KNOBS)
    return RunInfo(
        source="measured",
        engine="server",
        policy="v1",
        config=knobs | _told(result, label),
        trace={
            "name": name,
            "format": result.format,
            "num_requests": len(result.requests),
            "num_skipped": 0,
            "duration_s": _duration_s(run),
            "has_sharing": False,
            "is_observed": True,
            "is_generated": False,
            "content_hash": _hash(result.requests),
            "notes": [],
        },
        outcome=run.outcome,
        wall_s=run.wall_s,
        measurement=run.measurement,
    )


def _told(result: ImportedResult, label: str) -> dict[str, Any]:
    """What is known of the configuration, and the load."""
    model = result.model or None
    return {"model": model, "policy": "v1", "label": label, **result.load}


def _duration_s(run: MeasuredRun) -> float:
    """From the first request to the last; of the whole run where nobody knows that."""
    if run.measurement.duration_s is not None:
        return run.measurement.duration_s
    return float(np.ptp(run.requests.column("arrival_ns"))) / NS_PER_S


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _record(place: int, request: ImportedRequest, start_s: float) -> RequestRecord:
    arrival_ns = _ns((request.start_s or start_s) - start_s)
    is_over = request.e2e_s is not None and not request.is_unfinished
    num_output = request.output_tokens or 0
    return RequestRecord(
        request_id=place,
        arrival_ns=arrival_ns,
        queued_ns=arrival_ns,
        num_prompt_tokens=request.prompt_tokens or 0,
        num_output_tokens=num_output,
        max_sample_tokens=num_output,
        num_requested_tokens=request.requested_tokens or 0,
        num_cached_tokens=request.cached_tokens or 0,
        first_token_ns=None
        if request.ttft_s is None
        else arrival_ns + _ns(request.ttft_s),
        finished_ns=arrival_ns + _ns(request.e2e_s or 0.0) if is_over else None,
        status=_status(request),
        reason=_reason(request),
    )


def _status(request: ImportedRequest) -> RequestStatus:
    if request.is_served:
        return RequestStatus.FINISHED
    return RequestStatus.ABORTED if request.error else RequestStatus.FAILED


def _reason(request: ImportedRequest) -> str:
    """The last line of the client's words, which of a traceback is the error."""
    if request.is_unfinished:
        return "the client stopped before its end"
    words = request.error.strip().splitlines()
    return words[-1].strip()[:LONGEST_REASON] if words else ""


def _steps(requests: Sequence[ImportedRequest], last_ns: int) -> list[StepRecord]:
    """One row that holds all gaps between tokens; none where nobody recorded any."""
    gaps = [_ns(gap) for request in requests for gap in _gaps(request)]
    if not gaps:
        return []
    distinct, counts = np.unique(np.array(gaps, dtype=np.int64), return_counts=True)
    unknown = dict.fromkeys((f.name for f in fields(StepRecord)), 0)
    known: dict[str, Any] = {
        "end_ns": last_ns,
        "gap_ns": distinct.tolist(),
        "gap_count": counts.tolist(),
    }
    return [StepRecord(**(unknown | known))]


def _gaps(request: ImportedRequest) -> tuple[float, ...]:
    return (request.gaps_s or ()) if request.is_served else ()


def _outcome(result: ImportedResult) -> Outcome:
    if result.stopped:
        return Outcome(ending=Ending.INTERRUPTED, message=result.stopped)
    return Outcome(ending=Ending.COMPLETE)


def _measurement(result: ImportedResult) -> Measurement:
    return Measurement(
        unmeasured=(*_unmeasured_requests(result), *_unmeasured_steps(result)),
        facts={"reported_s": dict(result.reported_s), **result.facts},
        lateness_s=_lateness(result.requests),
        warmup_requests=result.warmup_requests,
        duration_s=None if result.has_starts else result.duration_s,
        notes=(
            f"imported from {result.format}: TTFT and E2E begin when it sent a request;"
            " what the engine did is not known",
            *result.notes,
        ),
    )


def _unmeasured_requests(result: ImportedResult) -> Iterable[str]:
    """What a client cannot see, and what this one did not record of all it served."""
    served = [request for request in result.requests if request.is_served]
    yield from ENGINE_COLUMNS
    for name, columns in CLIENT_COLUMNS.items():
        if any(getattr(request, name) is None for request in served):
            yield from (f"requests.{column}" for column in columns)


def _unmeasured_steps(result: ImportedResult) -> Iterable[str]:
    has_gaps = any(_gaps(request) for request in result.requests)
    known = STEP_COLUMNS if has_gaps else frozenset[str]()
    names = (f.name for f in fields(StepRecord))
    return (f"steps.{name}" for name in names if name not in known)


def _lateness(requests: Sequence[ImportedRequest]) -> dict[str, float] | None:
    late = [request.late_s for request in requests if request.late_s is not None]
    if not late:
        return None
    p50, p99 = np.percentile(late, [50, 99]).tolist()
    return {"p50": p50, "p99": p99, "max": max(late)}


def _hash(requests: Sequence[ImportedRequest]) -> str:
    """Prompts of the same lengths in the same order stand for the same ones."""
    lengths = [request.prompt_tokens for request in requests]
    return hashlib.sha256(json.dumps(["lengths", lengths]).encode()).hexdigest()
