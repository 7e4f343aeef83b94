"""Reports of GuideLLM in JSON.

Source: GuideLLM 0.2 and 0.3 (``start_time``, ``first_token_time``, ``last_token_time`` of
each request), and 0.4 to 0.8, which keep times under ``info.timings`` and counts under
``input_metrics`` and ``output_metrics``. It records no single gaps between tokens: its
inter-token latency is a request's mean, which is TPOT here.
"""

from typing import Any

from harness.errors import TraceError
from harness.vllm_engine.imports.imported import ImportedRequest, ImportedResult
from harness.vllm_engine.imports.json_node import JsonNode

FORMAT = "GuideLLM"
MS = 1e-3
STATUSES = ("successful", "errored", "incomplete")

METRICS = {
    "ttft": ("time_to_first_token_ms", MS),
    "tpot": ("inter_token_latency_ms", MS),
    "e2e": ("request_latency", 1.0),
}
STATISTICS = {"mean": "mean", "median": "p50"}
PERCENTILES = ("p90", "p95", "p99")


def is_report(node: JsonNode) -> bool:
    """Whether a document is such a report."""
    return isinstance(node.value, dict) and isinstance(node.value.get("benchmarks"), list)


def benchmarks_of(report: JsonNode) -> list[JsonNode]:
    """The benchmarks of a report: one a rate, or a concurrency."""
    return list(report.at("benchmarks").items())


def describe(benchmark: JsonNode) -> str:
    """How the requests of a benchmark were sent, for people."""
    strategy = _strategy(benchmark)
    kind = strategy.at("type_").text() or "unknown"
    rate = strategy.first("rate", "streams", "max_concurrency").value
    return f"{kind} {rate:g}" if isinstance(rate, int | float) else kind


def read_guidellm(report: JsonNode, benchmark: JsonNode) -> ImportedResult:
    """The requests of a benchmark, in the order in which they were sent.

    Raises:
        TraceError: Some are missing, or something is wrong with them.
    """
    requests = [
        _request(node, status)
        for status in STATUSES
        for node in benchmark.at("requests", status).items()
    ]
    _check_all(benchmark, len(requests))
    version = report.at("metadata", "guidellm_version").text()
    return ImportedResult(
        format=FORMAT,
        model=_model(report, benchmark),
        requests=sorted(requests, key=lambda request: request.start_s or 0.0),
        load=_load(benchmark),
        duration_s=benchmark.at("duration").number(),
        reported_s=_reported(benchmark),
        facts={"client": {"guidellm_version": version or None}},
        notes=("GuideLLM records no gaps between single tokens: ITL is n/a",),
    )


def _check_all(benchmark: JsonNode, num_found: int) -> None:
    totals = benchmark.first("request_totals").value
    total = totals if totals else benchmark.at("metrics", "request_totals").value
    num_made = total.get("total") if isinstance(total, dict) else None
    if not num_found:
        problem = f"{benchmark.place} holds no requests, only averages, which make no run"
    elif isinstance(num_made, int) and num_made > num_found:
        problem = (
            f"{benchmark.place} holds {num_found:,} of its {num_made:,} requests, a"
            " sample, which is another load"
        )
    else:
        return
    raise TraceError(
        benchmark.path,
        problem,
        "let GuideLLM keep all of them (--sample-requests, or --output-sampling, above"
        " their number) and write JSON",
    )


def _request(node: JsonNode, status: str) -> ImportedRequest:
    timings, output = node.at("info", "timings"), _output_tokens(node)
    start = _start(node, timings)
    ttft = node.at("time_to_first_token_ms").number()
    error = _error(node) if status == "errored" else ""
    return ImportedRequest(
        start_s=start,
        prompt_tokens=_prompt_tokens(node),
        output_tokens=output,
        cached_tokens=node.first("cached_tokens").count()
        if node.at("cached_tokens").value is not None
        else node.at("input_metrics", "cached_tokens").count(),
        ttft_s=None if ttft is None or error else ttft * MS,
        e2e_s=_e2e(node, timings, start),
        late_s=_lateness(timings, start),
        error=error,
        is_unfinished=status == "incomplete",
    )


def _start(node: JsonNode, timings: JsonNode) -> float:
    for found in (
        timings.at("request_start"),
        node.at("request_start_time"),
        node.at("start_time"),
        timings.at("resolve_start"),
    ):
        if found.value is not None:
            return found.needed()
    raise node.at("request_start_time").wrong("the time at which it was sent")


def _e2e(node: JsonNode, timings: JsonNode, start: float) -> float | None:
    """To the last token, as we define it; to the end of the request without one."""
    for found in (
        timings.at("last_token_iteration"),
        timings.at("last_iteration"),
        node.at("last_token_time"),
        timings.at("request_end"),
        node.at("request_end_time"),
        node.at("end_time"),
    ):
        if found.value is not None:
            return max(found.needed() - start, 0.0)
    return None


def _lateness(timings: JsonNode, start: float) -> float | None:
    due = timings.at("targeted_start").number()
    return None if due is None else max(start - due, 0.0)


def _prompt_tokens(node: JsonNode) -> int | None:
    count = node.at("prompt_tokens").count()
    return node.at("input_metrics", "text_tokens").count() if count is None else count


def _output_tokens(node: JsonNode) -> int | None:
    count = node.at("output_tokens").count()
    return node.at("output_metrics", "text_tokens").count() if count is None else count


def _error(node: JsonNode) -> str:
    found = node.at("error").value or node.at("info", "error").value
    return str(found) if found else "the client recorded an error and no words"


def _strategy(benchmark: JsonNode) -> JsonNode:
    """0.4 on has it under ``config``, before it was under ``args``."""
    new = benchmark.at("config", "strategy")
    return new if new.value is not None else benchmark.at("args", "strategy")


def _load(benchmark: JsonNode) -> dict[str, Any]:
    strategy = _strategy(benchmark)
    kind = strategy.at("type_").text()
    streams = strategy.first("streams", "max_concurrency").value
    return {
        "request_rate": strategy.at("rate").value,
        "max_concurrency": 1 if kind == "synchronous" else streams,
    }


def _model(report: JsonNode, benchmark: JsonNode) -> str:
    for found in (
        benchmark.at("worker", "backend_model"),
        benchmark.at("config", "backend", "model"),
        report.at("args", "model"),
        report.at("config", "model"),
        report.at("config", "backend", "model"),
    ):
        if isinstance(found.value, str):
            return found.value
    return ""


def _reported(benchmark: JsonNode) -> dict[str, float]:
    """Statistics of the file over requests that were served, seconds."""
    found: dict[str, float] = {}
    for metric, (key, unit) in METRICS.items():
        node = benchmark.at("metrics", key, "successful")
        figures = {s: node.at(name).number() for name, s in STATISTICS.items()}
        figures |= {p: node.at("percentiles", p).number() for p in PERCENTILES}
        for statistic, figure in figures.items():
            if figure is not None and node.at("count").value != 0:
                found[f"{metric}_{statistic}"] = figure * unit
    return found
