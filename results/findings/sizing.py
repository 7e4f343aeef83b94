"""Too much memory, and limits other than memory.

What kept requests waiting is told from the rows: blocks where the first candidate was
refused for want of them; else sequences where ``max_num_seqs`` of them ran; else tokens,
because little but the tokens of a step keeps vLLM from admitting the next one then.

A pool is not called too large while another limit keeps requests out of it, and waiting
is only spoken of where neither a growing queue nor such a limit has said it already.
"""

import math

from results.columns import BoolArray, FloatArray
from results.findings.finding import Finding
from results.findings.long_prefill import find_long_prefills
from results.findings.place import (
    max_num_seqs,
    seqs_wanted,
    waited_for,
    waits_for_blocks,
    waits_for_seqs,
)
from results.findings.rule import findings_of
from results.findings.run_view import RunView, percent
from results.kv_usage import used_at_end
from results.latency import request_latency
from results.queueing import MIN_REQUESTS

OVERSIZED = 0.5
"""Most of the pool ever in use. Above, a busier hour could need the rest."""

SPARE = 1.2
"""Blocks to keep over the peak: the watermark, and what the next hour brings."""

MIN_UNBOUND_SHARE = 0.2
"""Of the time of steps. Less is a burst."""

FILLED = 0.75
"""Part of the blocks that more sequences may come to; the rest is for busier hours."""

THROUGHPUT_TOKENS = 2048
"""Of a step with chunked prefill. Source: vLLM 0.6 documentation, which names it where
throughput matters more than the time between tokens."""

V1_THROUGHPUT_TOKENS = 8192
"""The same for v1: its documentation wants more than that for small models on large GPUs,
and it is the default of ``vllm serve`` there. Source: vLLM 0.32 documentation."""

MIN_QUEUE_S = 0.1
"""Mean. A shorter wait is not felt."""


def find_sizing(run: RunView) -> list[Finding]:
    """Memory that did nothing, and what else requests waited for."""
    if not run.is_admitted.any() or not len(run.steps):
        return []
    return findings_of(run, _waiting, _kv_cache_oversized)


def _waiting(run: RunView) -> list[Finding]:
    return findings_of(run, _not_kv_bound) or _queue_dominates_ttft(run)


# -- the pool ----------------------------------------------------------------------------


def _kv_cache_oversized(run: RunView) -> list[Finding]:
    """Only of a whole run: one that broke off or refused requests may need the rest."""
    peak, num_blocks = _peak_blocks(run), run.num_usable_blocks
    refused = run.requests.is_equal("reason", "exceeds_kv_capacity").any()
    is_whole = run.info.complete and not refused and len(run.requests) >= MIN_REQUESTS
    if not is_whole or peak >= OVERSIZED * num_blocks or _is_kept_out(run):
        return []
    longest = run.num_blocks_of_longest
    needed = max(math.ceil(peak * SPARE), longest) + run.num_set_aside
    remedy = _smaller_pool(run, needed)
    if not remedy:
        return []
    what = "in use or cached" if _is_cache_used(run) else "in use"
    return [
        Finding(
            code="kv_cache_oversized",
            severity="info",
            message=f"at most {peak:,} of {num_blocks:,} blocks were ever {what},"
            f" {percent(peak / num_blocks)}: {run.gib(num_blocks - peak):.1f} GiB of"
            " each GPU held nothing",
            advice=f"{remedy} would do, for this load"
            f"{'' if run.info.is_caching else ' without prefix caching'}"
            + (", and leave a fifth to spare" if peak * SPARE > longest else _least(run)),
        )
    ]


def _least(run: RunView) -> str:
    limit = run.known("max_model_len")
    return f"; vLLM does not start with less than --max-model-len ({limit:,}) needs"


def _is_cache_used(run: RunView) -> bool:
    if not run.info.is_caching:
        return False
    hits = run.requests.total("num_cached_tokens")
    return hits > 0 or run.steps.total("num_regretted_evictions") > 0


def _peak_blocks(run: RunView) -> int:
    """Most blocks in use at once; with those cached where these were hit."""
    steps = run.steps
    start, end = steps["num_used_blocks"], used_at_end(steps)
    if _is_cache_used(run):
        start = start + steps["num_cached_blocks"]
        end = end + steps["num_cached_blocks_end"]
    return int(max(start.max(), end.max()))


def _smaller_pool(run: RunView, needed: int) -> str:
    """The knob that set the pool, at a value that leaves so many blocks, or ""."""
    source = run.knob("source_of_num_gpu_blocks")
    if needed >= run.num_gpu_blocks:
        return ""
    if source == "override":
        return f"--num-gpu-blocks-override {needed}"
    if source == "kv_cache_gib":
        return f"--kv-cache-gib {math.ceil(10 * run.gib(needed)) / 10:g}"
    given, memory = run.knob("gpu_memory_utilization"), run.knob("gpu_memory_gib")
    if given is None or memory is None:
        return ""
    least = given - run.gib(run.num_gpu_blocks - needed) / memory
    utilization = math.ceil(100 * least) / 100
    return f"--gpu-memory-utilization {utilization:g}" if utilization < given else ""


# -- what requests waited for ------------------------------------------------------------


def _kept_out(run: RunView) -> BoolArray:
    """Stretches in which requests waited for something else, beside a pool half empty."""
    half_empty = _usage(run) < OVERSIZED
    kept_out: BoolArray = (run.steps["num_waiting"] > 0) & half_empty
    return kept_out & ~waits_for_blocks(run)


def _usage(run: RunView) -> FloatArray:
    usage: FloatArray = used_at_end(run.steps) / run.num_usable_blocks
    return usage


def _is_kept_out(run: RunView) -> bool:
    return run.share_of_time(_kept_out(run)) >= MIN_UNBOUND_SHARE


def _not_kv_bound(run: RunView) -> list[Finding]:
    """Requests waited beside a pool half empty. Source: vLLM issue 11517.

    Where a single long prompt kept them out, ``long_prefills_block`` says it.
    """
    if not _is_kept_out(run) or find_long_prefills(run):
        return []
    chosen = _kept_out(run)
    most = float(_usage(run)[chosen].max())
    found = _limit(run, chosen, most)
    if found is None:
        return []
    return [
        Finding(
            code="not_kv_bound",
            severity="warning",
            message=f"requests waited {percent(run.share_of_time(chosen))} of the time"
            f" with {percent(most)} of the blocks in use at most: {found[0]}",
            advice=found[1],
        )
    ]


def _limit(run: RunView, chosen: BoolArray, usage: float) -> tuple[str, str] | None:
    """What kept requests out for most of the chosen time, and the remedy."""
    steps = run.steps
    tokens = steps["num_prefill_tokens"] + steps["num_cached_tokens"]
    at_seqs = chosen & waits_for_seqs(run)
    at_tokens = chosen & ~at_seqs & (tokens > 0)
    half = run.share_of_time(chosen) / 2
    if run.share_of_time(at_seqs) >= half:
        return _seqs_limit(run, at_seqs, usage)
    if run.share_of_time(at_tokens) >= half:
        return _tokens_limit(run)
    others = "adapters, priorities, requests swapped out"
    if run.is_v1:
        others = "adapters, priorities, loads from the offload tier"
    return (
        "neither max_num_seqs nor the tokens of a step kept them out",
        f"look for what else does: {others}",
    )


def _seqs_limit(run: RunView, chosen: BoolArray, usage: float) -> tuple[str, str]:
    """``max_num_seqs``, and how many would fill most of the pool, if so many come."""
    limit, wanted = run.known("max_num_seqs"), seqs_wanted(run, chosen)
    filling = math.floor(limit * FILLED / max(usage, 1 / run.num_gpu_blocks))
    num_seqs = max(limit + 1, min(filling, wanted))
    advice = f"{max_num_seqs(run, num_seqs)}, which takes about"
    advice += f" {percent(usage * num_seqs / limit)} of the blocks at most"
    return f"max_num_seqs ({limit:,}) kept them out", advice


def _tokens_limit(run: RunView) -> tuple[str, str] | None:
    """The tokens of a step; without chunks these are the GPU's own limit.

    A step of prefills alone takes as long as it has tokens, so that more of them in a
    step gain nothing; chunks of v1 are as large by default. Where that makes the queue
    grow, ``overloaded`` says it.
    """
    limit = run.known("max_num_batched_tokens")
    more = V1_THROUGHPUT_TOKENS if run.is_v1 else max(THROUGHPUT_TOKENS, 2 * limit)
    if run.knob("enable_chunked_prefill") and more > limit:
        return (
            f"max_num_batched_tokens ({limit:,}) kept them out",
            f"--max-num-batched-tokens {more} shortens the queue, and lengthens the time"
            " between tokens",
        )
    if run.is_growing:
        return None
    return (
        f"the GPU was busy with the prompts before them, up to {limit:,} tokens a step",
        "--tensor-parallel-size or a larger GPU; more tokens a step only make it longer",
    )


def _queue_dominates_ttft(run: RunView) -> list[Finding]:
    """The first token is late for want of a place. Source: vLLM issue 8223.

    Those who wait while others' prompts are computed do gain from hits and faster
    prefills, so it is not said of them.
    """
    latency = request_latency(run.requests)
    if run.is_growing or not len(latency.ttft_s):
        return []
    queue_s, ttft_s = latency.queue_s.mean(), latency.ttft_s.mean()
    place = waited_for(run, float(latency.queue_s.sum()))
    if queue_s < MIN_QUEUE_S or queue_s <= ttft_s / 2 or place is None:
        return []
    return [
        Finding(
            code="queue_dominates_ttft",
            severity="info",
            message=f"of {ttft_s:.2f} s to the first token {queue_s:.2f} s went by"
            f" waiting for {place[0]}, on average;{_hits(run)} hits and faster prefills"
            " shorten only the rest",
            advice=place[1],
        )
    ]


def _hits(run: RunView) -> str:
    """The hit rate, where there are hits to speak of."""
    if not _is_cache_used(run):
        return ""
    rows, ran = run.requests, run.is_admitted
    rate = rows["num_cached_tokens"][ran].sum() / rows["num_prompt_tokens"][ran].sum()
    return f" {percent(rate)} of prompt tokens were hits, and"
