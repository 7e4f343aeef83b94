"""Memory pressure: what preemptions cost, and who waited for blocks.

A preemption is paid for in time, by swapping blocks or by computing them again. Where it
took much of the time, that finding also names who was preempted again and again, and
``preemption_thrash`` is left out.
"""

import math

import numpy as np

from results.columns import FloatArray
from results.findings.finding import Finding
from results.findings.fit import (
    MOST_OF_LIFE,
    fewer_or_more,
    fewer_seqs,
    higher_watermark,
    more_blocks,
)
from results.findings.rule import findings_of
from results.findings.run_view import RunView, percent
from results.naming import number_of
from results.queueing import waits_ns
from results.statistics import NS_PER_S
from results.waste import head_of_line_s

MIN_STORM_SHARE = 0.1
"""Of the time of steps. Less is the ordinary price of a pool that is well filled."""

MANY_PREEMPTIONS = 3
"""Of one request. Once or twice can happen to the last one admitted on a busy day."""

MIN_THRASHED_SHARE = 0.01
"""Of the admitted requests. Fewer are bad luck of a few."""

SWAP_MARGIN = 1.2
"""Swap space over the peak that was seen: where it runs out, vLLM's engine ends."""

MIN_SAVED_GIB = 2
"""Of swap space. Less is not worth a restart, nor the risk."""

MIN_OVERTAKEN_SHARE = 0.05
"""Of all admissions. Fewer keep nobody out for long."""

MIN_RESERVED_SHARE = 0.05
"""Of the time of steps. Less cannot be told from a pool of another size."""

V0_WATERMARK = 0.01
"""What vLLM's v0 keeps free; v1 keeps nothing unless told. Source: docs/v0.md, v1.md."""

MAX_PREEMPTION_RATE = 0.01
"""Preemptions per admission up to which more may be admitted."""

MIN_BLOCKED_SHARE = 0.25
"""Of all waiting. Less, and the queue itself is what they wait for."""

MIN_BLOCKED_S = 1.0
"""Mean of those that waited so. A shorter wait harms nobody."""

MAX_SENT_AWAY = 0.2
"""Of all requests. More are the traffic itself, and cannot be sent elsewhere."""


def find_pressure(run: RunView) -> list[Finding]:
    """What too few blocks cost, and what would have been enough."""
    if not run.is_admitted.any():
        return []
    return findings_of(
        run,
        _preemptions,
        _swapped_overtaken,
        _head_of_line,
        _watermark_waiting,
        _swap_stayed_empty,
        _swap_space_size,
    )


# -- preemptions -------------------------------------------------------------------------


def _preemptions(run: RunView) -> list[Finding]:
    """What they cost; where nobody knows that, whom they hit."""
    return findings_of(run, _storms) or _preemption_thrash(run)


def _storms(run: RunView) -> list[Finding]:
    """Where much of the time of steps was lost to preemptions."""
    swaps = 0.0 if run.is_v1 else run.swap_share
    causes = (
        ("swap_storm", swaps, _swapped),
        ("recompute_storm", run.recompute_share, _recomputed),
    )
    return [
        Finding(
            code=code,
            severity="warning",
            message="; ".join([went_into(run, share), *_thrashed(run)]),
            advice=f"{fewer_or_more(run, MOST_OF_LIFE)}{higher_watermark(run)}",
        )
        for code, share, went_into in causes
        if share >= MIN_STORM_SHARE
    ]


def _swapped(run: RunView, share: float) -> str:
    num_out = run.steps.total("num_swap_out_blocks")
    num_in = run.steps.total("num_swap_in_blocks")
    return (
        f"{percent(share)} of the time of steps went into waiting for swaps: {num_out:,}"
        f" blocks out and {num_in:,} in, {run.gib(num_out + num_in):.1f} GiB"
    )


def _recomputed(run: RunView, share: float) -> str:
    again = run.steps.total("num_recomputed_tokens")
    of_prefills = again / run.steps.total("num_prefill_tokens")
    return (
        f"{percent(share)} of the time of steps went into computing again what"
        f" preemptions had thrown away: {again:,} tokens, {percent(of_prefills)} of all"
        " that were prefilled"
    )


def _preemption_thrash(run: RunView) -> list[Finding]:
    times, num_admitted = run.requests["num_preemptions"], int(run.is_admitted.sum())
    num_again = int((times >= MANY_PREEMPTIONS).sum())
    if num_again < max(1, MIN_THRASHED_SHARE * num_admitted):
        return []
    return [
        Finding(
            code="preemption_thrash",
            severity="warning",
            message=f"{_thrashed(run)[0]}; in all there were"
            f" {times.sum() / num_admitted:.3g} preemptions for each request admitted",
            advice=f"{fewer_or_more(run, 1)}{higher_watermark(run)}",
        )
    ]


def _thrashed(run: RunView) -> list[str]:
    """Who was preempted again and again; nothing for nobody."""
    times = run.requests["num_preemptions"]
    again, worst = times >= MANY_PREEMPTIONS, int(times.argmax())
    if not again.any():
        return []
    return [
        f"{run.named(again)} {'was' if again.sum() == 1 else 'were'} preempted"
        f" {MANY_PREEMPTIONS} times or more, #{int(run.requests['request_id'][worst])}"
        f" {int(times[worst])} times"
    ]


# -- swap space --------------------------------------------------------------------------


def _swap_stayed_empty(run: RunView) -> list[Finding]:
    """Single sequences are recomputed, whatever swap space there is.

    Source: vLLM issues 588 and 2853; docs/v0.md.
    """
    num_preempted = run.requests.total("num_preemptions")
    may_swap = run.knob("preemption_mode") == "swap" or (run.requests["n"] > 1).any()
    if run.is_v1 or may_swap or not num_preempted or not run.num_cpu_blocks:
        return []
    gib = run.gib(run.num_cpu_blocks)
    return [
        Finding(
            code="swap_stayed_empty",
            severity="info",
            message=f"{number_of(num_preempted, 'preemption')} left {gib:.1f} GiB of swap"
            " space empty: vLLM's v0 swaps only groups of n > 1 and recomputes the"
            " others, and there were only others",
            advice=f"--swap-space 0 frees {gib:.1f} GiB of host memory for each GPU, as"
            " long as no request has n > 1",
        )
    ]


def _swap_space_size(run: RunView) -> list[Finding]:
    peak = run.steps["num_used_cpu_blocks"].max(initial=0)
    was_refused = run.requests.is_equal("reason", "no_cpu_blocks").any()
    given = run.gib(run.num_cpu_blocks)
    enough = math.ceil(run.gib(peak * SWAP_MARGIN))
    if run.is_v1 or not peak or was_refused or given - enough < MIN_SAVED_GIB:
        return []
    return [
        Finding(
            code="swap_space_size",
            severity="info",
            message=f"at most {int(peak):,} of {run.num_cpu_blocks:,} CPU blocks were in"
            f" use, {run.gib(peak):.1f} of {given:.1f} GiB of swap space",
            advice=f"--swap-space {enough} would do for this load; it is per GPU, and"
            " vLLM's engine ends where it is too small",
        )
    ]


def _swapped_overtaken(run: RunView) -> list[Finding]:
    """Chunked prefill admits while others are swapped out. Source: vLLM issue 5578."""
    steps = run.steps
    num_past = int(steps["num_admitted"][steps["num_swapped"] > 0].sum())
    num_admitted = steps.total("num_admitted")
    is_chunked = run.knob("enable_chunked_prefill")
    if not is_chunked or num_past < max(1, MIN_OVERTAKEN_SHARE * num_admitted):
        return []
    budget = max(run.known("max_model_len"), run.known("max_num_batched_tokens"))
    return [
        Finding(
            code="swapped_overtaken",
            severity="warning",
            message=f"{num_past:,} of {num_admitted:,} admissions went past requests that"
            f" were swapped out, up to {int(steps['num_swapped'].max()):,} at once:"
            " chunked prefill admits new ones all the same (vLLM issue 5578)",
            advice="without chunked prefill, which needs --max-num-batched-tokens"
            f" {budget}, those swapped out come first; or"
            f" {fewer_seqs(run, 1) or more_blocks(run)}",
        )
    ]


# -- waiting for blocks ------------------------------------------------------------------


def _watermark_waiting(run: RunView) -> list[Finding]:
    """The first in the queue would have fitted into what the watermark keeps free.

    Where the queue grows, the little that vLLM itself keeps free makes no difference.
    """
    kept, refused = run.num_watermark_blocks, run.steps["num_head_blocks"] > 0
    share = run.share_of_time(refused & (_missing_blocks(run) <= kept))
    preemption_rate = run.requests.total("num_preemptions") / run.is_admitted.sum()
    built_in = 0.0 if run.is_v1 else V0_WATERMARK
    is_raised = run.watermark > built_in
    is_harmful = preemption_rate > MAX_PREEMPTION_RATE
    if share < MIN_RESERVED_SHARE or is_harmful or (run.is_growing and not is_raised):
        return []
    return [
        Finding(
            code="watermark_waiting",
            severity="info",
            message=f"{percent(share)} of the time the first in the queue waited only"
            f" for what the watermark keeps free, {kept:,} of {run.num_gpu_blocks:,}"
            " blocks",
            advice=_lower_watermark(run, is_raised),
        )
    ]


def _lower_watermark(run: RunView, is_raised: bool) -> str:
    """To vLLM's own, but not below: there is no option for it, and it has its use."""
    if run.is_v1:
        return "--watermark 0, which is vLLM's default"
    if is_raised:
        return f"--watermark {V0_WATERMARK}, which vLLM's v0 has built in"
    return (
        "vLLM's v0 has no option for it, and what is kept free spares others a"
        f" preemption; {more_blocks(run)}"
    )


def _missing_blocks(run: RunView) -> FloatArray:
    """Blocks that the refused candidate was short of, to the end of each stretch."""
    steps, room = run.steps, run.steps["num_room_blocks"]
    grown = steps["num_used_blocks_end"] - steps["num_used_blocks"]
    free = run.num_usable_blocks - steps["num_used_blocks"]
    # Below the watermark there is no room at all, however many are free.
    room = np.where(room > 0, room, np.minimum(0, free - run.num_watermark_blocks))
    return steps["num_head_blocks"] + grown - room


def _head_of_line(run: RunView) -> list[Finding]:
    """Who waits behind whom matters less where the queue grows without end."""
    blocked_s = head_of_line_s(run.requests, run.steps, run.block_size)
    total_s, num_affected = float(blocked_s.sum()), int((blocked_s > 0).sum())
    waited_s = float(waits_ns(run.requests, run.steps)[1].sum()) / NS_PER_S
    is_short = total_s < MIN_BLOCKED_S * num_affected
    if not num_affected or is_short or total_s < MIN_BLOCKED_SHARE * waited_s:
        return []
    largest = int(run.steps["num_head_blocks"].max())
    return [
        Finding(
            code="head_of_line",
            severity="info" if run.is_growing else "warning",
            message=f"{number_of(num_affected, 'request')} waited"
            f" {total_s / num_affected:.1f} s on average behind one for which there were"
            " too few blocks, while there were enough for them:"
            f" {percent(total_s / waited_s)} of all waiting; the largest need was"
            f" {largest:,} blocks",
            advice=f"{_large_elsewhere(run, blocked_s)}{more_blocks(run)}",
        )
    ]


def _large_elsewhere(run: RunView, blocked_s: FloatArray) -> str:
    """From what prompt length on requests are in the way, if these are not many."""
    prompts = run.requests["num_prompt_tokens"]
    order = np.argsort(prompts)
    waited = np.cumsum(blocked_s[order])
    small = prompts[order][np.searchsorted(waited, 0.9 * waited[-1])]
    large = prompts > small
    if not 0 < large.mean() <= MAX_SENT_AWAY:
        return ""
    return (
        f"prompts of {int(prompts[large].min()):,} tokens or more,"
        f" {percent(large.mean())} of all, sent elsewhere; or "
    )
