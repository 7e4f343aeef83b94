"""What a server's ``/metrics`` say, by one name whatever its version calls it.

Sources: vLLM 0.32.0, ``v1/metrics/loggers.py``; vLLM 0.10, ``engine/metrics.py``; vLLM
0.8 to 0.31 by their documentation of production metrics, and pull requests 18003 (hits in
tokens) and 25787.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness.vllm_engine.server.histogram import Histogram

GAUGES: Mapping[str, tuple[str, ...]] = {
    "num_running": ("vllm:num_requests_running",),
    "num_waiting": ("vllm:num_requests_waiting",),
    "num_swapped": ("vllm:num_requests_swapped",),  # V0
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "cpu_cache_usage": ("vllm:cpu_cache_usage_perc",),  # V0's swap space
    "offload_usage": ("vllm:kv_offload_cpu_cache_usage_perc",),
    "prefix_cache_hit_rate": ("vllm:gpu_prefix_cache_hit_rate",),  # V0
}
"""Gauges by our names; of several names of one thing the first that is there counts."""

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_cache_query_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    "prefix_cache_hit_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    "external_prefix_cache_query_tokens": ("vllm:external_prefix_cache_queries_total",),
    "external_prefix_cache_hit_tokens": ("vllm:external_prefix_cache_hits_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "finished_requests": ("vllm:request_success_total",),
    "offload_load_bytes": ("vllm:kv_offload_load_bytes_total",),
    "offload_store_bytes": ("vllm:kv_offload_store_bytes_total",),
}
"""Counters by the names of ``results.measured``."""

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot_s": ("vllm:request_time_per_output_token_seconds",),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
    "queue_s": ("vllm:request_queue_time_seconds",),
    "prompt_tokens": ("vllm:request_prompt_tokens",),
    "generation_tokens": ("vllm:request_generation_tokens",),
    "n": ("vllm:request_params_n",),
}
"""Histograms by our names. What vLLM up to 0.10 calls time per output token is the time
between two tokens; its mean over a request came later."""

MOST = 2.0**56
"""A number above this says nothing, no more than one that is none: rows of whole numbers
could not hold the sum of a hundred. Bytes to an offload tier take weeks to get there."""

CONFIG_INFO = "vllm:cache_config_info"
STARTED_AT = "process_start_time_seconds"

_OLD_OFFLOAD = "vllm:kv_offload_total_bytes_total"
_OLD_DIRECTION = {"offload_load_bytes": "CPU_to_GPU", "offload_store_bytes": "GPU_to_CPU"}
_HITS = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
_BRIEF = tuple(name for names in GAUGES.values() for name in names) + tuple(
    name for names in COUNTERS.values() for name in names
)

Series = tuple[str, Mapping[str, str], float]


@dataclass(frozen=True)
class Snapshot:
    """The metrics of one moment.

    Attributes:
        time_ns: When they were asked for.
        series: Name, labels and value of each number. Those of one name are added up,
            whatever tells them apart: engine, model or why a request ended.
        hits_in_blocks: Prefix cache counters count blocks, as they did before May 2025;
            :meth:`counter` turns them into tokens.
    """

    time_ns: int
    series: tuple[Series, ...]
    hits_in_blocks: bool = False

    @classmethod
    def of(cls, text: str, time_ns: int, *, brief: bool = False) -> "Snapshot":
        """The metrics in a text; ``brief``: gauges and counters that we know.

        A whole text takes 20 ms to read, in which no token is noticed.

        Raises:
            ValueError: It is none of Prometheus.
        """
        if brief:
            lines = [line for line in text.splitlines() if line.startswith(_BRIEF)]
            text = "\n".join(lines) + "\n"
        families = list(text_string_to_metric_families(text))
        return cls(
            time_ns,
            tuple(
                (s.name, s.labels, s.value)
                for f in families
                for s in f.samples
                if abs(s.value) <= MOST
            ),
            any(f.name in _HITS and "blocks" in f.documentation for f in families),
        )

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for name, labels, value in self.series:
            by_name.setdefault(name, []).append((labels, value))
        return by_name

    @property
    def has_vllm(self) -> bool:
        """Whether a vLLM wrote them."""
        return any(name.startswith("vllm:") for name in self._by_name)

    def has(self, name: str) -> bool:
        """Whether there is a series of this name."""
        return name in self._by_name

    def values(self, names: Iterable[str]) -> list[float] | None:
        """The series of the first name that is there, one an engine; None for none."""
        for name in names:
            if name in self._by_name:
                return [value for _, value in self._by_name[name]]
        return None

    def gauge(self, name: str) -> float | None:
        """A number of requests summed over the engines of a server, a share as a mean."""
        values = self.values(GAUGES[name])
        if values is None:
            return None
        total = sum(max(value, 0.0) for value in values)  # some tell less than nothing
        return min(total / (1 if name.startswith("num_") else len(values)), MOST)

    def counter(self, name: str) -> float | None:
        """A counter summed over the engines; None where this version has none."""
        values = self.values(COUNTERS[name])
        if values is None and name in _OLD_DIRECTION and _OLD_OFFLOAD in self._by_name:
            values = [
                value
                for labels, value in self._by_name[_OLD_OFFLOAD]
                if labels.get("transfer_type") == _OLD_DIRECTION[name]
            ]
        if values is None:
            return None
        is_in_blocks = self.hits_in_blocks and name.startswith("prefix_cache_")
        return sum(values) * (self._block_size if is_in_blocks else 1)

    @cached_property
    def _block_size(self) -> int:
        sizes = (config.get("block_size") for config in self.config_info())
        return next((size for size in sizes if type(size) is int and size > 0), 1)

    def histogram(self, name: str) -> Histogram | None:
        """A histogram summed over the engines; None where this version has none.

        One without a sum is none, as its mean would be a guess.
        """
        for vllm_name in HISTOGRAMS[name]:
            buckets = [
                (bound, value)
                for labels, value in self._by_name.get(f"{vllm_name}_bucket", ())
                if (bound := _bound(labels)) is not None
            ]
            sums = self.values([f"{vllm_name}_sum"])
            if buckets and sums is not None:
                return Histogram.of(buckets, sum(sums))
        return None

    def raw_counters(self) -> dict[str, float]:
        """Every counter of vLLM's by its own name, summed over its labels."""
        return {
            name: sum(value for _, value in series)
            for name, series in self._by_name.items()
            if name.startswith("vllm:") and name.endswith(("_total", "_sum", "_count"))
        }

    def config_info(self) -> list[dict[str, Any]]:
        """What each engine says of its cache, numbers and truths read."""
        return [
            {key: _read(value) for key, value in labels.items()}
            for labels, _ in self._by_name.get(CONFIG_INFO, ())
        ]

    @property
    def started_at(self) -> float | None:
        """When the process began, seconds since 1970; None where it does not say."""
        values = self.values([STARTED_AT])
        return None if values is None else values[0]


@dataclass(frozen=True)
class Difference:
    """What happened between two looks at one server."""

    before: Snapshot
    after: Snapshot

    @property
    def is_restarted(self) -> bool:
        """The server began anew in between, so that counters say nothing."""
        first, second = self.before.raw_counters(), self.after.raw_counters()
        fell = any(second.get(name, value) < value for name, value in first.items())
        return fell or self.before.started_at != self.after.started_at

    def counter(self, name: str) -> float | None:
        """By how much a counter rose; None where nobody counts, or after a restart.

        One that appears only later began at 0.
        """
        last = self.after.counter(name)
        if last is None or self.is_restarted:
            return None
        return last - (self.before.counter(name) or 0.0)

    def histogram(self, name: str) -> Histogram | None:
        """What a histogram took up in between."""
        last, first = self.after.histogram(name), self.before.histogram(name)
        if last is None or self.is_restarted:
            return None
        return last if first is None else last.less(first)

    def counters(self) -> dict[str, Any]:
        """All counters by our names, and under ``raw`` by vLLM's own."""
        first, second = self.before.raw_counters(), self.after.raw_counters()
        raw = {name: value - first.get(name, 0.0) for name, value in second.items()}
        known: dict[str, Any] = {name: self.counter(name) for name in COUNTERS}
        return known | {"raw": {} if self.is_restarted else raw}


def _bound(labels: Mapping[str, str]) -> float | None:
    """The upper bound of a bucket; None where that is no number, or could be none."""
    try:
        bound = float(labels["le"])
    except (KeyError, ValueError):
        return None
    return bound if 0 <= bound <= MOST or bound == math.inf else None


def _read(text: str) -> Any:
    """A label's text as what it was made from."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if number - number == 0 else text  # JSON has no infinity
    return text
