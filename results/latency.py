"""TTFT, TPOT, ITL, E2E and queue time, as ``vllm bench serve`` defines them.

Source: vLLM ``benchmarks/serve.py`` (``calculate_metrics``), v0.6 to v0.11: only
finished requests count, TPOT is (E2E - TTFT) / (output tokens - 1) and is left out for
one-token outputs, percentiles are ``numpy.percentile``. vLLM's client sends n = 1 only;
for n > 1 the first token of any sample ends TTFT, the last one of all samples ends E2E,
and TPOT is that of the longest sample.
"""

from dataclasses import dataclass

import numpy as np

from results.columns import BoolArray, Columns, FloatArray
from results.record import RequestStatus
from results.statistics import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """Seconds for each finished request, in the order of the records.

    Attributes:
        ttft_s: Arrival to first token.
        tpot_s: Time per output token after the first; NaN for one-token outputs.
        e2e_s: Arrival to the end of the last sample.
        queue_s: From when the scheduler had the request to the first batch with it.
        unmeasured: Those of them that nobody measured; they hold NaN alone.
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    queue_s: FloatArray
    unmeasured: frozenset[str] = frozenset()

    @property
    def itl_s(self) -> FloatArray:
        """Mean time between tokens of each request, which is its TPOT."""
        return self.tpot_s


def is_finished(requests: Columns) -> BoolArray:
    """Which requests produced all their tokens, ``(num_requests,)``."""
    return requests.is_equal("status", RequestStatus.FINISHED)


def is_admitted(requests: Columns) -> BoolArray:
    """Which requests ever ran, ``(num_requests,)``.

    Where only a client looked, those that it had a token of.
    """
    has_times = requests.has("first_scheduled_ns")
    begun = requests["first_scheduled_ns" if has_times else "first_token_ns"]
    admitted: BoolArray = ~np.isnan(begun)
    return admitted


def request_latency(requests: Columns) -> RequestLatency:
    """The latencies of those requests that finished."""
    done = is_finished(requests)
    ttft = _between(requests, "arrival_ns", "first_token_ns")[done]
    e2e = _between(requests, "arrival_ns", "finished_ns")[done]
    tpot = np.full(len(ttft), np.nan)
    if requests.has("max_sample_tokens"):
        later_tokens = requests["max_sample_tokens"][done] - 1
        has_tpot = later_tokens > 0
        tpot[has_tpot] = (e2e - ttft)[has_tpot] / later_tokens[has_tpot]
    return RequestLatency(
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        queue_s=_between(requests, "queued_ns", "first_scheduled_ns")[done],
        unmeasured=frozenset(n for n, c in _NEEDED.items() if not requests.has(*c)),
    )


_NEEDED = {
    "ttft_s": ("arrival_ns", "first_token_ns"),
    "tpot_s": ("first_token_ns", "finished_ns", "max_sample_tokens"),
    "itl_s": ("first_token_ns", "finished_ns", "max_sample_tokens"),
    "e2e_s": ("arrival_ns", "finished_ns"),
    "queue_s": ("queued_ns", "first_scheduled_ns"),
}
"""Columns of requests that each latency needs."""


def _between(requests: Columns, start: str, end: str) -> FloatArray:
    """Seconds from one time of each request to another; NaN where one is not known."""
    if not requests.has(start, end):
        return np.full(len(requests), np.nan)
    span: FloatArray = (requests[end] - requests[start]) / NS_PER_S
    return span


def inter_token_gaps(steps: Columns) -> tuple[FloatArray, FloatArray]:
    """Seconds between consecutive tokens of a sequence, and how often each occurred.

    Tokens of requests that did not finish are among them: the records of steps do not
    tell them apart.

    Raises:
        NotMeasuredError: Nobody recorded any.
    """
    if not steps.has(*_STRETCH):  # then each gap is in the lists
        return steps.flat("gap_ns") / NS_PER_S, steps.flat("gap_count")
    later_gaps, later_counts = _later_gaps(steps)
    gaps = np.concatenate((steps.flat("gap_ns"), later_gaps)) / NS_PER_S
    return gaps, np.concatenate((steps.flat("gap_count"), later_counts))


_STRETCH = ("num_steps", "num_decode_seqs", "first_step_ns", "last_step_ns")


def _later_gaps(steps: Columns) -> tuple[FloatArray, FloatArray]:
    # Durations within a stretch rise evenly, so step k lasts first + k * increment.
    chosen = (steps["num_steps"] > 1) & (steps["num_decode_seqs"] > 0)
    later = steps["num_steps"][chosen] - 1
    first = steps["first_step_ns"][chosen]
    increment = (steps["last_step_ns"][chosen] - first) / later
    repeats = later.astype(np.int64)
    ends = np.cumsum(repeats)
    k = np.arange(repeats.sum()) - np.repeat(ends - repeats, repeats) + 1
    gaps = np.repeat(first, repeats) + k * np.repeat(increment, repeats)
    return gaps, np.repeat(steps["num_decode_seqs"][chosen], repeats)
