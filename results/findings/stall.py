"""Whether streams stop while the prompts of others are computed."""

import numpy as np

from results.columns import FloatArray, durations_ns
from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.latency import inter_token_gaps
from results.statistics import NS_PER_S, statistic_of

STALLED = 5.0
"""Times the median between tokens from which a stream is seen to stop."""

MIN_STALL_S = 0.1
"""Shorter ones nobody sees, however short the median is."""

MIN_GAPS = 1000
"""Times between tokens; the p99 of fewer is a handful of them."""

CHUNK_STEP = 64
"""Tokens to which a chunk is rounded down."""


def find_stalls(run: RunView) -> list[Finding]:
    """Streams stop while others' prompts are computed."""
    gaps_s, counts = inter_token_gaps(run.steps)
    median_s = statistic_of("p50", gaps_s, counts)
    p99_s = statistic_of("p99", gaps_s, counts)
    if counts.sum() < MIN_GAPS or median_s is None or p99_s is None:
        return []
    stalled_s = max(MIN_STALL_S, STALLED * median_s)
    if p99_s < stalled_s or not _are_prefills(run, gaps_s, counts, stalled_s):
        return []
    advice = _smaller_chunks(run, median_s)
    if not advice:
        return []
    return [
        Finding(
            code="prefills_stall_decodes",
            severity="info",
            message=f"1 of 100 tokens came {1000 * p99_s:.0f} ms or more after the one"
            f" before, {p99_s / median_s:.0f} times the median of"
            f" {1000 * median_s:.1f} ms: decodes stood still while prompts were computed",
            advice=advice,
        )
    ]


def _are_prefills(
    run: RunView, gaps_s: FloatArray, counts: FloatArray, stalled_s: float
) -> bool:
    """Whether prefills made at least half of the gaps that are so long."""
    made_s, num_stalled = _stalls_s(run)
    num_long = counts[gaps_s >= stalled_s].sum()
    return bool(num_stalled[made_s >= stalled_s].sum() >= num_long / 2)


def _stalls_s(run: RunView) -> tuple[FloatArray, FloatArray]:
    """Gaps between tokens that prefills made, and how many requests each concerns.

    A prefill beside decodes makes them wait for its step. Prefills alone make those wait
    that ran before, from the last step with decodes to the end of the next.
    """
    steps = run.steps
    num_decodes, first_ns = steps["num_decode_seqs"], steps["first_step_ns"]
    prefills = steps["num_prefill_tokens"] > 0
    beside = prefills & (num_decodes > 0)
    others = np.flatnonzero(~(prefills & ~beside))
    before, after = others[:-1], others[1:]
    apart = (after - before > 1) & (num_decodes[after] > 0)
    before, after = before[apart], after[apart]
    ran = (steps["num_running"] - steps["num_admitted"])[before + 1]
    gap_ns = steps["start_ns"][after] + first_ns[after] - steps["end_ns"][before]
    return (
        np.concatenate((first_ns[beside], gap_ns)) / NS_PER_S,
        np.concatenate((num_decodes[beside], ran)),
    )


def _smaller_chunks(run: RunView, median_s: float) -> str:
    """Chunks of prefills with which a step takes about three medians; "" if they are."""
    steps, limit = run.steps, run.known("max_num_batched_tokens")
    is_chunked = run.knob("enable_chunked_prefill")
    if not is_chunked and not run.is_v1 and (run.requests["n"] > 1).any():
        return "fewer or shorter prompts; with n > 1 chunked prefill can end vLLM's v0"
    tokens = steps["num_prefill_tokens"]
    decoding_s = np.where(steps["num_decode_seqs"] > 0, median_s, 0.0)
    took_s = np.maximum(0, durations_ns(steps) / NS_PER_S - decoding_s)[tokens > 0].sum()
    per_token_s = took_s / tokens.sum()
    chunk = int(2 * median_s / per_token_s) // CHUNK_STEP * CHUNK_STEP
    chunk, seqs = _with_seqs(run, max(chunk, CHUNK_STEP))
    if is_chunked and chunk >= limit:
        return ""
    flag = "" if is_chunked else "--enable-chunked-prefill with "
    return (
        f"{flag}--max-num-batched-tokens {chunk}{seqs}, at the price of later first"
        " tokens"
    )


def _with_seqs(run: RunView, chunk: int) -> tuple[int, str]:
    """A chunk with which vLLM starts, and a lower limit of sequences that allows it.

    v1 starts with places for more sequences than a small chunk has tokens, and hardly
    ever needs them.
    """
    places = int(run.known("max_num_seqs"))
    if chunk >= places:
        return chunk, ""
    chunk = max(chunk, int(run.steps["num_running"].max())) if run.is_v1 else places
    return chunk, f" --max-num-seqs {chunk}" if chunk < places else ""
