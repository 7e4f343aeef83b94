"""A workload made from rates and lengths that a server's metrics told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from harness.errors import ConfigError
from harness.run_columns import IntArray
from harness.traces.blockbench import FORMAT_VERSION
from harness.traces.trace_file import check_target, write_whole
from harness.vllm_engine.server.histogram import Histogram
from harness.vllm_engine.server.observation import Observation

FEWEST_FINISHED = 30
"""With fewer requests finished while watching, lengths since the server's start tell
more, where those are more."""

MOST_REQUESTS = 1_000_000
"""Each is a row in memory."""

NO_SHARING = "no sharing information"
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Where lengths come from.

    Attributes:
        prompt: Tokens of prompts.
        output: Tokens generated.
        is_lifetime: Since the server's start, not only while watching.
    """

    prompt: Histogram
    output: Histogram
    is_lifetime: bool


def write_workload(
    path: Path, seen: Observation, *, seed: int = 0, force: bool = False
) -> int:
    """Write a trace in our own format; the number of its requests.

    The same observation with the same seed gives the same bytes.

    Raises:
        ConfigError: Too little was seen to make any request, or too much.
        UsageError: The file cannot be written.
    """
    check_target(path, force=force)
    rows = workload_rows(seen, seed=seed)
    write_whole(path, b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return len(rows) - 1


def workload_rows(seen: Observation, *, seed: int = 0) -> list[dict[str, Any]]:
    """The header, then one row a request, by arrival time.

    Prompt and output lengths are drawn each on its own: how they hang together is not in
    the metrics, nor is what prompts share, so that each has content of its own.

    Raises:
        ConfigError: No request came, or none finished that would tell a length; or far
            too many came.
    """
    lengths, number = known_lengths(seen), int(seen.arrivals().sum())
    if number > MOST_REQUESTS:
        raise ConfigError(
            f"{number:,} requests came in {seen.duration_s:.0f} s, and a workload holds"
            f" {MOST_REQUESTS:,}; watch for a shorter time (--for)"
        )
    arrival_us = _arrivals_us(seen, np.random.default_rng([seed, 0]))
    if lengths is None or not len(arrival_us):
        raise ConfigError(
            f"no workload can be made of this: {number:,} requests came"
            f" in {seen.duration_s:.0f} s, and lengths are known of"
            f" {0 if lengths is None else lengths.prompt.num_values:,.0f}; watch longer,"
            " or while there is traffic"
        )
    prompts = _drawn(lengths.prompt, len(arrival_us), np.random.default_rng([seed, 1]))
    outputs = _drawn(lengths.output, len(arrival_us), np.random.default_rng([seed, 2]))
    rows: list[dict[str, Any]] = [_header(seen, lengths, seed)]
    for number, (at_us, prompt, output) in enumerate(
        zip(arrival_us.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    ):
        rows.append(
            {
                "arrival_s": at_us / _US_PER_S,
                "prompt": [[2 * number, prompt]],
                "output": [[2 * number + 1, output]],
            }
        )
    return rows


def known_lengths(seen: Observation) -> Lengths | None:
    """Lengths of those that finished while watching, or of all if those are few."""
    names = ("prompt_tokens", "generation_tokens")
    prompt, output = (seen.histogram(name) for name in names)
    all_prompt, all_output = (seen.lifetime_histogram(name) for name in names)
    if prompt is None or output is None or all_prompt is None or all_output is None:
        return None
    is_few = min(prompt.num_values, output.num_values) < FEWEST_FINISHED
    if is_few and all_prompt.num_values > prompt.num_values:
        prompt, output, is_lifetime = all_prompt, all_output, True
    else:
        is_lifetime = False
    if min(prompt.num_values, output.num_values) < 1:
        return None
    return Lengths(prompt, output, is_lifetime)


def _header(seen: Observation, lengths: Lengths, seed: int) -> dict[str, Any]:
    since = "since the server was started" if lengths.is_lifetime else "then"
    return {
        "blockbench": FORMAT_VERSION,
        "generated": {"by": "observe", "duration_s": seen.duration_s, "seed": seed},
        "note": f"{NO_SHARING}: made from {seen.duration_s:.0f} s of metrics; arrivals"
        f" as counted then, lengths drawn from the {lengths.prompt.num_values:,.0f}"
        f" requests that finished {since}, prompts and outputs each on their own",
        "has_sharing": False,
    }


def _arrivals_us(seen: Observation, rng: np.random.Generator) -> IntArray:
    """When requests came: anywhere between the two looks that tell of them."""
    counts = seen.arrivals()
    times_us = np.array(seen.times_ns, dtype=np.int64) // 1000
    begins = np.repeat(times_us[:-1], counts)
    spans = np.repeat(np.diff(times_us), counts)
    drawn: IntArray = np.sort(begins + (rng.random(len(begins)) * spans).astype(np.int64))
    return drawn


def _drawn(histogram: Histogram, count: int, rng: np.random.Generator) -> IntArray:
    """Lengths that fill the buckets as the histogram's do and have about its mean."""
    ranks = (np.arange(count) + 0.5) / count * histogram.num_values
    counts = np.array(histogram.counts)
    ends = np.cumsum(counts)
    buckets = np.minimum(np.searchsorted(ends, ranks, side="right"), len(ends) - 1)
    edges = np.array([histogram.edges(bucket) for bucket in range(len(ends))])
    low, high = edges[buckets].T
    within = 1 - (ends[buckets] - ranks) / counts[buckets]
    places = np.maximum(within, 0) ** histogram.skew(is_whole=True)
    lengths: IntArray = np.ceil(low + (high - low) * places).astype(np.int64)
    rng.shuffle(lengths)
    return np.maximum(lengths, 1)
