"""TTFT, TPOT, ITL, E2E and queue time, as ``vllm bench serve`` defines them.

Source: vLLM ``benchmarks/serve.py`` (``calculate_metrics``), v0.6 to v0.11: only
finished requests count, TPOT is (E2E - TTFT) / (output tokens - 1) and is left out for
one-token outputs, percentiles are ``numpy.percentile``. vLLM's client sends n = 1 only;
for n > 1 the first token of any sample ends TTFT, the last one of all samples ends E2E,
and TPOT is that of the longest sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.record import RequestRecord, RequestStatus, StepRecord
from results.statistics import NS_PER_S, FloatArray, column


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """Seconds for each finished request, in the order of the records.

    Attributes:
        ttft_s: Arrival to first token.
        tpot_s: Time per output token after the first; NaN for one-token outputs.
        e2e_s: Arrival to the end of the last sample.
        queue_s: Arrival to the first batch that contained the request.
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    queue_s: FloatArray

    @property
    def itl_s(self) -> FloatArray:
        """Mean time between tokens of each request, which is its TPOT."""
        return self.tpot_s


def finished(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests that produced all their tokens."""
    return [r for r in requests if r.status == RequestStatus.FINISHED]


def request_latency(requests: Sequence[RequestRecord]) -> RequestLatency:
    """The latencies of those requests that finished."""
    done = finished(requests)
    arrival = column(done, "arrival_ns")
    ttft = (column(done, "first_token_ns") - arrival) / NS_PER_S
    e2e = (column(done, "finished_ns") - arrival) / NS_PER_S
    later_tokens = column(done, "max_sample_tokens") - 1
    has_tpot = later_tokens > 0
    tpot = np.full(len(done), np.nan)
    tpot[has_tpot] = (e2e - ttft)[has_tpot] / later_tokens[has_tpot]
    queue = (column(done, "first_scheduled_ns") - arrival) / NS_PER_S
    return RequestLatency(ttft_s=ttft, tpot_s=tpot, e2e_s=e2e, queue_s=queue)


def inter_token_gaps(steps: Sequence[StepRecord]) -> tuple[FloatArray, FloatArray]:
    """Seconds between consecutive tokens of a sequence, and how often each occurred.

    Tokens of requests that did not finish are among them: the records of steps do not
    tell them apart.
    """
    first_gaps = np.array([ns for s in steps for ns in s.gap_ns], dtype=np.float64)
    first_counts = np.array([n for s in steps for n in s.gap_count], dtype=np.float64)
    later_gaps, later_counts = _later_gaps(steps)
    gaps = np.concatenate((first_gaps, later_gaps)) / NS_PER_S
    return gaps, np.concatenate((first_counts, later_counts))


def _later_gaps(steps: Sequence[StepRecord]) -> tuple[FloatArray, FloatArray]:
    # Durations within a stretch rise evenly, so step k lasts first + k * increment.
    stretches = [s for s in steps if s.num_steps > 1 and s.num_decode_seqs > 0]
    later = column(stretches, "num_steps") - 1
    first = column(stretches, "first_step_ns")
    increment = (column(stretches, "last_step_ns") - first) / later
    repeats = later.astype(np.int64)
    ends = np.cumsum(repeats)
    k = np.arange(repeats.sum()) - np.repeat(ends - repeats, repeats) + 1
    gaps = np.repeat(first, repeats) + k * np.repeat(increment, repeats)
    return gaps, np.repeat(column(stretches, "num_decode_seqs"), repeats)
