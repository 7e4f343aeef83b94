"""Results of ``vllm bench serve --save-result --save-detailed``.

Source: vLLM ``benchmarks/serve.py`` (``benchmarks/benchmark_serving.py`` before 0.10),
0.6 to 0.32. ``start_times`` and ``latencies`` came late; before, a request's latency is
its TTFT and the gaps after it. A request that failed has a text in ``errors``.
"""

import re
from typing import Any

from harness.errors import TraceError
from harness.vllm_engine.imports.imported import ImportedRequest, ImportedResult
from harness.vllm_engine.imports.json_node import JsonNode

FORMAT = "vllm bench serve"
DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "errors")
OWN = (
    *DETAILED,
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "rps_change_events",
)
LOAD = ("request_rate", "burstiness", "max_concurrency")
MS = 1e-3

_STATISTIC = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)_ms")


def is_bench(node: JsonNode) -> bool:
    """Whether a document is such a result."""
    known = node.value
    return isinstance(known, dict) and {"duration", "completed"} <= known.keys()


def read_bench(node: JsonNode) -> ImportedResult:
    """The requests of a result, in the order of its data set.

    Raises:
        TraceError: It has none, or something is wrong with them.
    """
    _check_detailed(node)
    requests = [_request(node, place) for place in range(_num_requests(node))]
    return ImportedResult(
        format=FORMAT,
        model=node.at("model_id").text(),
        requests=requests,
        load={name: node.at(name).value for name in LOAD},
        duration_s=node.at("duration").needed(),
        reported_s=_reported(node),
        facts=_facts(node),
        notes=() if node.at("start_times").value else (_no_starts(),),
    )


def _no_starts() -> str:
    return (
        "the file does not say when each request was sent: throughput is over the"
        " client's own duration, and whether the queue settled is not known"
    )


def _check_detailed(node: JsonNode) -> None:
    missing = [name for name in DETAILED if node.at(name).value is None]
    if missing:
        raise TraceError(
            node.path,
            f"has no {', '.join(missing)}: it holds averages and no requests, which make"
            " no run",
            "repeat vllm bench serve with --save-result --save-detailed (blockbench"
            " calibrate --from takes averages)",
        )


def _num_requests(node: JsonNode) -> int:
    names = [n for n in (*DETAILED, "start_times", "latencies") if node.at(n).value]
    if not names:
        raise TraceError(node.path, "holds no request", "name another file")
    lengths = {name: node.at(name).length() for name in names}
    shortest, longest = (f(lengths, key=lengths.__getitem__) for f in (min, max))
    if lengths[shortest] != lengths[longest]:
        raise TraceError(
            node.path,
            f"{shortest} has {lengths[shortest]} entries and {longest}"
            f" {lengths[longest]}; one a request is needed",
            "it was edited or cut off; repeat the benchmark that wrote it",
        )
    return lengths[longest]


def _request(node: JsonNode, place: int) -> ImportedRequest:
    def entry(name: str) -> JsonNode:
        values = node.at(name).value
        value = values[place] if values else None
        return JsonNode(node.path, value, f"{name}[{place}]")

    error = entry("errors").text().strip()
    gaps = entry("itls").numbers()
    ttft = entry("ttfts").needed()
    latency = entry("latencies").number()
    return ImportedRequest(
        start_s=entry("start_times").number(),
        prompt_tokens=entry("input_lens").count(),
        output_tokens=entry("output_lens").count(),
        ttft_s=None if error else ttft,
        e2e_s=ttft + sum(gaps) if latency is None else latency,
        gaps_s=gaps,
        error=error,
    )


def _reported(node: JsonNode) -> dict[str, float]:
    """Statistics of the file, as ``ttft_p99``: seconds."""
    found = {}
    for key in node.value:
        if named := _STATISTIC.fullmatch(key):
            statistic = "p50" if named[1] == "median" else named[1]
            metric = named[2].removesuffix("l") if named[2] == "e2el" else named[2]
            found[f"{metric}_{statistic}"] = node.at(key).needed() * MS
    return found


def _facts(node: JsonNode) -> dict[str, Any]:
    """What else it says in words and numbers, ``--metadata`` included."""
    skipped = {*OWN, *LOAD}
    return {
        "client": {
            key: value
            for key, value in node.value.items()
            if key not in skipped
            and not _STATISTIC.fullmatch(key)
            and isinstance(value, str | int | bool)
        }
    }
