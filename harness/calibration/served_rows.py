"""Loads that somebody measured end to end: rows of a CSV, or files of ``bench serve``."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.calibration.observation import Served
from harness.calibration.table import MeasuredRow
from harness.config import resolve_config
from harness.errors import ConfigError, TraceError, UsageError
from harness.request import Request
from harness.traces.generation import GenerateOptions, trace_rows
from harness.workload import Workload

LATENCIES = {
    "ttft_ms": ("ttft_ms", "ttft_ms_mean", "mean_ttft_ms"),
    "tpot_ms": ("tpot_ms", "tpot_ms_mean", "mean_tpot_ms"),
}

COLUMNS = {
    "input_len": ("input_len", "random_input_len"),
    "prompt_len": ("isl_mean", "isl"),
    "output_len": ("output_len", "random_output_len", "osl_mean", "osl"),
    "max_concurrency": ("max_concurrency", "concurrency"),
    "request_rate": ("request_rate",),
    "burstiness": ("burstiness",),
    "num_requests": ("num_requests", "num_prompts", "completed"),
    "range_ratio": ("range_ratio", "random_range_ratio"),
    "prefix_len": ("prefix_len", "random_prefix_len"),
    "num_prefixes": ("num_prefixes",),
    "max_num_seqs": ("max_num_seqs",),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "enable_prefix_caching": ("enable_prefix_caching", "prefix_caching"),
    **LATENCIES,
}
"""``input_len`` are tokens after a shared prefix, as in ``bench serve``; ``isl`` all."""

REQUESTS_PER_PLACE = 10
"""Requests for each that is outstanding, where nobody says how many there were.

Source: the habit of InferenceX; vLLM's documentation of ``bench serve``.
"""

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was sent to a server, and the means of what came back.

    Attributes:
        options: Lengths and arrivals.
        max_concurrency: Of a closed loop.
        measured_s: Seconds by figure.
        knobs: Of the engine, in place of those given for all.
    """

    options: GenerateOptions
    max_concurrency: int | None
    measured_s: Mapping[str, float]
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def served(self, name: str, engine: Mapping[str, Any]) -> Served:
        """The load on an engine, as an observation.

        Args:
            name: Where it stands, for people.
            engine: What ``resolve_config`` takes.
        """
        return Served(
            name=name,
            figures=tuple(self.measured_s),
            measured_s=tuple(self.measured_s.values()),
            config=resolve_config(**{**engine, **self.knobs}),
            workload=generated(self.options),
            max_concurrency=self.max_concurrency,
        )


def generated(options: GenerateOptions) -> Workload:
    """The workload of a generated trace, without a file."""
    _, *rows = trace_rows(options)
    return Workload.from_requests(
        [
            Request(
                request_id=number,
                arrival_ns=round(row["arrival_s"] * NS_PER_S),
                prompt=tuple(row["prompt"]),
                num_prompt_tokens=sum(length for _, length in row["prompt"]),
                outputs=tuple(row["output"]),
            )
            for number, row in enumerate(rows)
        ]
    )


def load_of(row: MeasuredRow) -> Load:
    """The load of a row.

    Raises:
        TraceError: It lacks a figure, or one cannot be used.
    """
    knobs: dict[str, Any] = {
        name: row.whole(name) for name in ("max_num_seqs", "max_num_batched_tokens")
    }
    knobs["enable_prefix_caching"] = row.is_on("enable_prefix_caching")
    return Load(
        options=_options(row),
        max_concurrency=row.whole("max_concurrency"),
        measured_s=_measured_s(row),
        knobs={name: value for name, value in knobs.items() if value is not None},
    )


def served_of(row: MeasuredRow, engine: Mapping[str, Any], name: str) -> Served:
    """The load of a row on an engine that can be.

    Raises:
        TraceError: It lacks a figure, or no such load or such an engine can be.
    """
    load = load_of(row)
    try:
        return load.served(name, engine)
    except (UsageError, ConfigError) as error:
        raise row.error(str(error), "correct the row") from error


def _measured_s(row: MeasuredRow) -> dict[str, float]:
    found = {name: row.seconds(name) for name in LATENCIES}
    measured = {
        name.removesuffix("_ms"): value
        for name, value in found.items()
        if value is not None
    }
    if not measured:
        raise row.error(
            "neither ttft_ms nor tpot_ms", "fill in one of the means, or both"
        )
    if "tpot" in measured and _length(row, "output_len") == 1:
        raise row.error(
            "tpot_ms of outputs of one token", "leave it empty: there is no second token"
        )
    return measured


def _options(row: MeasuredRow) -> GenerateOptions:
    max_concurrency, request_rate = row.whole("max_concurrency"), _rate(row)
    num_requests = row.whole("num_requests")
    if max_concurrency is None and request_rate is None:
        raise row.missing(
            "neither max_concurrency nor request_rate",
            "fill in how much load there was",
            "max_concurrency",
            "request_rate",
        )
    if num_requests is None and max_concurrency is None:
        raise row.missing(
            "num_requests is missing",
            "at a rate it says for how long requests came",
            "num_requests",
        )
    prefix_len = row.whole("prefix_len", least=0) or 0
    options: dict[str, Any] = {
        "num_requests": num_requests or REQUESTS_PER_PLACE * (max_concurrency or 1),
        "input_len": _input_len(row, prefix_len),
        "output_len": _length(row, "output_len"),
        "range_ratio": _number(row, "range_ratio", least=-1e-9) or 0.0,
        "request_rate": math.inf if request_rate is None else request_rate,
        "burstiness": row.number("burstiness") or 1.0,
        "prefix_len": prefix_len,
        "num_prefixes": row.whole("num_prefixes") or 1,
    }
    try:
        return GenerateOptions(**options)
    except UsageError as error:
        raise row.error(str(error), "correct the row") from error


def _input_len(row: MeasuredRow, prefix_len: int) -> int:
    """Tokens of a prompt after its shared prefix; means need not be whole."""
    prompt_len = row.number("prompt_len")
    if prompt_len is None:
        return _length(row, "input_len")
    if "input_len" in row.cells:
        raise row.error(
            "both input_len and the length of whole prompts", "keep one of the columns"
        )
    if round(prompt_len) <= prefix_len:
        raise row.error(
            f"prompts of {prompt_len:g} tokens begin with {prefix_len}",
            "isl_mean is of whole prompts; correct it, or prefix_len",
        )
    return round(prompt_len) - prefix_len


def _length(row: MeasuredRow, name: str) -> int:
    """A mean length in tokens, which need not be whole."""
    value = row.number(name)
    if value is None:
        names = (name, "prompt_len") if name == "input_len" else (name,)
        raise row.missing(f"{name} is missing", "fill it in", *names)
    return max(1, round(value))


def _rate(row: MeasuredRow) -> float | None:
    if row.cells.get("request_rate", "").lower() in ("inf", "infinity"):
        return math.inf
    return row.number("request_rate")


def _number(row: MeasuredRow, name: str, *, least: float) -> float | None:
    value = row.number(name, least=least)
    return None if value is None else max(0.0, value)


def bench_serve_row(path: Path, result: Mapping[str, Any]) -> MeasuredRow:
    """The result that ``vllm bench serve --save-result`` wrote, as a row.

    Lengths are means over the requests that finished. Source: vLLM 0.32.0
    ``benchmarks/serve.py``; ``burstiness`` came with 0.7, ``max_concurrency`` with 0.6.5.

    Raises:
        TraceError: It has no such figures.
    """
    needed = ("mean_ttft_ms", "total_input_tokens", "total_output_tokens", "completed")
    missing = [name for name in needed if not _is_number(result.get(name))]
    if missing or not result["completed"]:
        raise TraceError(
            path,
            f"no {missing[0]}" if missing else "no request was completed",
            "give a file that vllm bench serve --save-result wrote, or a CSV",
        )
    completed = result["completed"]
    figures = {
        "prompt_len": result["total_input_tokens"] / completed,
        "output_len": max(1, round(result["total_output_tokens"] / completed)),
        "max_concurrency": result.get("max_concurrency"),
        "request_rate": result.get("request_rate"),
        "burstiness": result.get("burstiness"),
        "num_requests": completed,
        "ttft_ms": result["mean_ttft_ms"],
        "tpot_ms": result.get("mean_tpot_ms") or None,
    }
    cells = {name: str(value) for name, value in figures.items() if value is not None}
    return MeasuredRow(path, 1, cells)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_json(path: Path, text: str) -> Mapping[str, Any]:
    """The object in a file.

    Raises:
        TraceError: It holds none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TraceError(path, f"no JSON: {error}", "give the file as it was") from error
    if not isinstance(found, dict):
        raise TraceError(
            path, "no JSON object", "give what vllm bench serve --save-result wrote"
        )
    return found
