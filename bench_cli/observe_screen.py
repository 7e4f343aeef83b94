"""What ``blockbench observe`` says: its document, and the screen."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bench_cli.console import Screen, join
from bench_cli.quantity import (
    format_count,
    format_duration,
    format_number_of,
    format_share,
)
from bench_cli.run_screen import print_findings

if TYPE_CHECKING:
    from harness.vllm_engine.server.observation import Observation

SCHEMA_VERSION = 1
# 1  first version

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
LENGTHS = ("prompt_tokens", "generation_tokens")
_SHOWN = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "queue": "queue"}

Document = dict[str, Any]


def observation_document(seen: "Observation", url: str) -> Document:
    """The whole document; None stands for what this server does not tell."""
    from harness.vllm_engine.server.observed_findings import find_observed

    counters = seen.counters()
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "observation",
        "source": "measured",
        "url": url,
        "complete": not (seen.fault_kind or seen.is_interrupted),
        "duration_s": seen.duration_s,
        "num_looks": len(seen.looks),
        "num_missed": seen.num_missed,
        "num_restarts": seen.num_restarts,
        "server": seen.server.facts(),
        "requests": _requests(seen),
        "counters": counters,
        "prefix_cache": _prefix_cache(counters),
        "kv_cache": _extent(seen, "kv_cache_usage", "usage"),
        "cpu_cache": _extent(seen, "cpu_cache_usage", "usage"),
        "running": _extent(seen, "num_running", "requests"),
        "waiting": _extent(seen, "num_waiting", "requests"),
        "swapped": _extent(seen, "num_swapped", "requests"),
        "latency_s": {n.removesuffix("_s"): _histogram(seen, n) for n in LATENCIES},
        "lengths": {name: _histogram(seen, name) for name in LENGTHS},
        "findings": [finding.to_dict() for finding in find_observed(seen)],
    }


def _requests(seen: "Observation") -> Document:
    arrivals = seen.arrivals()
    arrived = int(arrivals.sum())
    finished = seen.counter("finished_requests")
    return {
        "arrived": arrived,
        "finished": None if finished is None else round(finished),
        "request_per_s": arrived / seen.duration_s if seen.duration_s else None,
    }


def _prefix_cache(counters: dict[str, float | None]) -> Document:
    queries = counters["prefix_cache_query_tokens"]
    hits = counters["prefix_cache_hit_tokens"]
    rate = hits / queries if queries and hits is not None else None
    return {"query_tokens": queries, "hit_tokens": hits, "hit_rate": rate}


def _extent(seen: "Observation", gauge: str, what: str) -> Document:
    """Peak and mean of a gauge over the looks."""
    values = seen.gauge(gauge)
    values = values[~np.isnan(values)]
    return {
        f"peak_{what}": float(values.max()) if len(values) else None,
        f"mean_{what}": float(values.mean()) if len(values) else None,
    }


def _histogram(seen: "Observation", name: str) -> Document | None:
    histogram = seen.histogram(name)
    if histogram is None or histogram.num_values <= 0:
        return None
    return histogram.summary()


def print_observation(document: Document) -> None:
    """Print what was seen, and what to do about it."""
    screen = Screen()
    server = document["server"]
    screen.spread(
        join(
            server.get("model") or document["url"],
            f"vLLM {server['vllm_version']}" if "vllm_version" in server else "",
            f"watched for {format_duration(document['duration_s'])}",
            format_number_of(document["num_looks"], "look"),
        ),
        "measured",
    )
    screen.facts(list(_facts(document)))
    _print_latency(screen, document)
    screen.line()
    print_findings(screen, document["findings"])


def _facts(document: Document) -> list[tuple[str, str]]:
    requests, cache = document["requests"], document["kv_cache"]
    prefix, counters = document["prefix_cache"], document["counters"]
    server = document["server"]
    blocks = server.get("num_gpu_blocks")
    rate = requests["request_per_s"]
    return [
        (
            "requests",
            join(
                f"{requests['arrived']:,} came",
                f"{format_count(requests['finished'])} finished",
                f"{format_count(rate)} requests/s",
            ),
        ),
        (
            "KV cache",
            join(
                f"{blocks:,} blocks of {server.get('block_size', '?')}" if blocks else "",
                f"peak {format_share(cache['peak_usage'])}",
                f"mean {format_share(cache['mean_usage'])}",
            ),
        ),
        (
            "queue",
            join(
                _range(document["running"], "running"),
                _range(document["waiting"], "waiting"),
            ),
        ),
        ("pressure", f"{_whole(counters['preemptions'])} preemptions"),
        ("prefix", f"{format_share(prefix['hit_rate'])} of prompt tokens were hits"),
    ]


def _range(extent: Document, what: str) -> str:
    mean, peak = extent["mean_requests"], extent["peak_requests"]
    return f"{format_count(mean)} {what}, {_whole(peak)} at most"


def _whole(number: float | None) -> str:
    return format_count(None if number is None else round(number))


def _print_latency(screen: Screen, document: Document) -> None:
    known = {_SHOWN[name]: each for name, each in document["latency_s"].items() if each}
    if not known:
        return
    names = ("mean", "p50", "p90", "p99")
    screen.table(
        ["as the server counts", *names],
        [
            [label, *(format_duration(each[name]) for name in names)]
            for label, each in known.items()
        ],
    )
    screen.aside("means are exact; percentiles lie in the right bucket of the server's")
