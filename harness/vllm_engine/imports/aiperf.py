"""Records of AIPerf: ``profile_export.jsonl``, and the averages that lie beside it.

Source: AIPerf documentation, "Working with Profile Export Files" and
"profile_export_aiperf.json Schema", 0.3 to 0.14. Its inter-chunk latencies are the times
between pieces of a stream, ITL here; its inter-token latency is a request's mean, TPOT.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import TraceError
from harness.vllm_engine.imports.imported import ImportedRequest, ImportedResult
from harness.vllm_engine.imports.json_node import JsonNode, read_nodes

FORMAT = "AIPerf"
RECORDS = "profile_export.jsonl"
NS = 1e-9
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}

METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}
STATISTICS = {"avg": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def is_record(node: JsonNode) -> bool:
    """Whether a document is the record of a request."""
    value = node.value
    return isinstance(value, dict) and {"metadata", "metrics"} <= value.keys()


def is_averages(node: JsonNode) -> bool:
    """Whether a document is what AIPerf makes of its records."""
    value = node.value
    if not isinstance(value, dict):
        return False
    throughput = value.get("request_throughput")
    return "aiperf_version" in value or (
        isinstance(throughput, dict) and "unit" in throughput
    )


def records_beside(averages: JsonNode) -> list[JsonNode]:
    """The records that lie beside averages.

    Raises:
        TraceError: There are none.
    """
    name = averages.path.name.removesuffix("_aiperf.json")
    path = averages.path.with_name(f"{name}.jsonl" if name else RECORDS)
    if not path.is_file():
        raise TraceError(
            averages.path,
            f"holds averages and no requests, which make no run, and there is no"
            f" {path.name} beside it",
            f"name the {RECORDS} of that benchmark, or repeat it with --export-level"
            " records",
        )
    return read_nodes(path)


def averages_beside(records: Path) -> JsonNode | None:
    """The averages that lie beside records; None where there are none."""
    path = records.with_name(f"{records.stem}_aiperf.json")
    return read_nodes(path)[0] if path.is_file() else None


def read_aiperf(records: Sequence[JsonNode], averages: JsonNode | None) -> ImportedResult:
    """The requests of a benchmark, in the order in which they were sent.

    Raises:
        TraceError: There is none, or something is wrong with one.
    """
    measured = [node for node in records if _phase(node) != "warmup"]
    if not measured:
        raise TraceError(
            records[0].path,
            "holds no request but those of a warm-up",
            "name the records of a benchmark that went on after it",
        )
    requests = [_request(node) for node in measured]
    known = averages or JsonNode(records[0].path, {})
    return ImportedResult(
        format=FORMAT,
        model=_model(known),
        requests=sorted(requests, key=lambda request: request.start_s or 0.0),
        load=_load(known),
        duration_s=_figure(known.at("benchmark_duration"), "avg"),
        reported_s=_reported(known),
        facts={"client": {"aiperf_version": known.at("aiperf_version").value}},
        warmup_requests=len(records) - len(measured),
        stopped=_stopped(known),
    )


def _phase(node: JsonNode) -> str:
    return node.at("metadata", "benchmark_phase").text()


def _request(node: JsonNode) -> ImportedRequest:
    metadata, metrics = node.at("metadata"), node.at("metrics")
    start_ns = metadata.at("request_start_ns").needed()
    end_ns = metadata.at("request_end_ns").number()
    latency = _figure(metrics.at("request_latency"))
    if latency is None and end_ns is not None:
        latency = max(end_ns - start_ns, 0.0) * NS
    return ImportedRequest(
        start_s=start_ns * NS,
        prompt_tokens=_count(metrics.first("input_sequence_length", "error_isl")),
        output_tokens=_count(
            metrics.first("output_sequence_length", "output_token_count")
        ),
        requested_tokens=_count(metrics.at("requested_osl")),
        cached_tokens=_count(metrics.at("usage_prompt_cache_read_tokens")),
        ttft_s=_figure(metrics.at("time_to_first_token")),
        e2e_s=latency,
        gaps_s=_gaps(metrics.at("inter_chunk_latency")),
        late_s=_lateness(metadata, start_ns),
        error=_error(node.at("error")),
    )


def _figure(node: JsonNode, key: str = "value") -> float | None:
    """A time in seconds, whatever its unit."""
    number = node.at(key).number() if node.value is not None else None
    return None if number is None else number * _unit(node)


def _unit(node: JsonNode) -> float:
    unit = node.at("unit").text()
    if unit not in UNITS:
        raise node.at("unit").wrong(f"one of {', '.join(UNITS)}")
    return UNITS[unit]


def _count(node: JsonNode) -> int | None:
    return node.at("value").count() if node.value is not None else None


def _gaps(node: JsonNode) -> tuple[float, ...] | None:
    if node.value is None:
        return None
    unit = _unit(node)
    return tuple(gap * unit for gap in node.at("value").numbers())


def _lateness(metadata: JsonNode, start_ns: float) -> float | None:
    """Between the moment at which its rate let it go and that at which it was sent."""
    due_ns = metadata.at("credit_issued_ns").number()
    return None if due_ns is None else max(start_ns - due_ns, 0.0) * NS


def _error(node: JsonNode) -> str:
    if node.value is None:
        return ""
    words = [str(node.at(key).value) for key in ("code", "type") if node.at(key).value]
    message = node.at("message").value
    return f"{' '.join(words)}: {message}" if message else " ".join(words) or "an error"


def _stopped(averages: JsonNode) -> str:
    if averages.at("was_cancelled").value is True:
        return "cancelled"
    if averages.at("is_complete").value is False:
        return averages.at("incomplete_reason").text() or "incomplete"
    return ""


def _model(averages: JsonNode) -> str:
    """The first model that was asked for; empty where none is named."""
    config = averages.value.get("input_config")
    models = _under(config, "models") or _under(config, "endpoint", "model_names")
    first = _first(_under(models, "items") or models)
    name = _under(first, "name") or first
    return name if isinstance(name, str) else ""


def _load(averages: JsonNode) -> dict[str, Any]:
    """Rate and concurrency: of the last phase; before there were any, of ``loadgen``."""
    config = averages.value.get("input_config")
    phases = _under(config, "phases")
    phase = phases[-1] if isinstance(phases, list) and phases else phases
    known = phase or _under(config, "loadgen")
    rate = _under(known, "rate") or _under(known, "request_rate")
    return {"request_rate": rate, "max_concurrency": _under(known, "concurrency")}


def _under(value: Any, *keys: str) -> Any:
    """What stands under the keys; None where versions have another form."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _reported(averages: JsonNode) -> dict[str, float]:
    """Statistics of the file, seconds."""
    found = {}
    for metric, key in METRICS.items():
        for name, statistic in STATISTICS.items():
            figure = _figure(averages.at(key), name)
            if figure is not None:
                found[f"{metric}_{statistic}"] = figure
    return found
