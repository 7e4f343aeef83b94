"""What runs are compared by: each metric's name, unit, and which way is better."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.columns import FloatArray
from results.comparison.samples import LATENCIES, RequestSamples
from results.statistics import statistic_of

Summary = Mapping[str, Any]

STATISTICS = ("mean", "p50", "p90", "p99")
"""Those of a latency that are compared; any percentile can be asked for by its name."""

FEWEST_BEYOND = 5
"""Requests beyond a percentile, for it to say something of others."""

_PERCENTILE = re.compile(r"p(?:100|\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of a run.

    It is a statistic over requests where ``sample`` names one of ``RequestSamples``, and
    a figure of the whole run, at ``path`` in its summary, where not.

    Attributes:
        name: As conditions and documents write it.
        label: As people read it.
        unit: ``s``, ``share``, ``per_s``, or what is counted.
        is_more_better: Whether a larger figure is the better one.
        outcome: What users feel by it: ``TTFT``, ``TPOT``, ``ITL``, ``E2E``,
            ``throughput``, ``goodput`` or ``finished``; empty for causes.
        sample: Values over requests that it is a statistic of; else empty.
        statistic: ``mean``, ``sum``, or a percentile as ``p99``.
        path: Keys of the summary, for runs without such values as well; else empty.
        is_zero_without: What cannot have any has 0: hits without a cache, swaps in v1.
    """

    name: str
    label: str
    unit: str
    is_more_better: bool = False
    outcome: str = ""
    sample: str = ""
    statistic: str = ""
    path: tuple[str, ...] = ()
    is_zero_without: bool = False

    @property
    def is_latency(self) -> bool:
        """Whether it is a time that finished requests have, and others do not."""
        return self.sample in LATENCIES or self.name.startswith("itl_")

    def value(self, summary: Summary, samples: RequestSamples) -> float | None:
        """The figure; None where the run has none."""
        if not self.sample:
            return _figure(summary, self.path)
        values = samples.values.get(self.sample)
        if values is None:  # counted over the whole run, if at all
            return _figure(summary, self.path)
        return self.of_samples(values)

    def of_samples(self, values: FloatArray) -> float | None:
        """The statistic; NaN stands for "has none" and is left out."""
        if self.statistic == "sum":
            return float(np.nansum(values))
        return statistic_of(self.statistic, values)

    def num_beyond(self, num_values: int) -> float:
        """How many of the values lie beyond the percentile; all for other statistics."""
        if self.statistic in ("", "mean", "sum"):
            return num_values
        share = 1.0 if self.statistic == "max" else float(self.statistic[1:]) / 100
        return num_values * min(share, 1 - share) if share < 1 else 1.0


def _figure(summary: Summary, path: Sequence[str]) -> float | None:
    found: Any = summary if path else None
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else None


def _latency(name: str, statistic: str) -> Metric:
    """A statistic of TTFT, TPOT, E2E or queue time; of gaps, those in a summary only."""
    word = name if name == "queue" else name.upper()
    place: dict[str, Any] = {"sample": name, "statistic": statistic}
    if name == "itl":
        place = {"path": ("latency_s", name, statistic)}
    return Metric(
        name=f"{name}_{statistic}",
        label=f"{word} {statistic}",
        unit="s",
        outcome="" if name == "queue" else word,
        **place,
    )


def _latencies(name: str) -> list[Metric]:
    return [_latency(name, statistic) for statistic in STATISTICS]


def _rate(name: str, label: str) -> Metric:
    return Metric(
        name=name,
        label=label,
        unit="per_s",
        is_more_better=True,
        outcome="throughput",
        path=("throughput", name),
    )


def _sum(section: str, name: str, label: str, unit: str = "tokens") -> Metric:
    place: dict[str, Any] = {"sample": name, "statistic": "sum", "path": (section, name)}
    return Metric(name=name, label=label, unit=unit, **place)


def _part(section: str, name: str, label: str, unit: str, **more: Any) -> Metric:
    return Metric(name=name, label=label, unit=unit, path=(section, name), **more)


_MORE = {"is_more_better": True}
_HITS = {"is_more_better": True, "is_zero_without": True}
_COPIES = {"is_zero_without": True}

METRICS: tuple[Metric, ...] = (
    _part("counts", "finished", "finished", "requests", outcome="finished", **_MORE),
    Metric(
        name="goodput_fraction",
        label="inside the SLO",
        unit="share",
        is_more_better=True,
        outcome="goodput",
        sample="good",
        statistic="mean",
    ),
    *_latencies("ttft"),
    *_latencies("tpot"),
    *_latencies("itl"),
    *_latencies("e2e"),
    _rate("request_per_s", "requests/s"),
    _rate("output_token_per_s", "output tokens/s"),
    _rate("total_token_per_s", "all tokens/s"),
    *_latencies("queue"),
    _part("prefix_cache", "hit_tokens", "hit tokens", "tokens", **_HITS),
    _part("prefix_cache", "hit_rate", "hit rate", "share", **_HITS),
    _part("prefix_cache", "offload_hit_tokens", "hits from host", "tokens", **_HITS),
    _part("counts", "prefill_tokens", "prefill tokens", "tokens"),
    _part("kv_cache", "peak_usage", "KV cache peak", "share"),
    _part("kv_cache", "mean_usage", "KV cache mean", "share"),
    _part("kv_cache", "fragmentation", "fragmentation", "share"),
    _sum("counts", "preemptions", "preemptions", "preemptions"),
    _sum("waste", "recomputed_tokens", "recomputed tokens"),
    _part("counts", "swap_out_blocks", "swapped out", "blocks", **_COPIES),
    _part("counts", "swap_in_blocks", "swapped in", "blocks", **_COPIES),
    _part("counts", "copy_on_write", "copied on write", "blocks", **_COPIES),
    _part("counts", "evictions", "evictions", "blocks"),
    _part("waste", "regretted_evictions", "regretted", "blocks"),
    _part("waste", "forced_stores", "forced stores", "blocks"),
    _part("waste", "head_of_line_s", "behind the head", "s"),
)
"""Outcomes first, then causes, each in the order in which people ask for them."""

_BY_NAME = {metric.name: metric for metric in METRICS}


def metric_named(name: str) -> Metric | None:
    """The metric of a name, as ``hit_rate`` or ``ttft_p99.9``; None if there is none.

    Gaps between tokens have no values by request, so ``itl`` has the statistics of a
    summary only.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    latency, _, statistic = name.partition("_")
    if latency == "itl" and statistic in ("p95", "max"):
        return _latency(latency, statistic)
    if latency in LATENCIES and (statistic == "max" or _PERCENTILE.fullmatch(statistic)):
        return _latency(latency, statistic)
    return None
