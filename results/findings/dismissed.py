"""Requests that were refused or given up, and what would have let them through."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from results.columns import BoolArray, FloatArray
from results.findings.failure import find_failed
from results.findings.finding import Finding, Severity
from results.findings.fit import larger_pool, num_blocks_present
from results.findings.rule import findings_of
from results.findings.run_view import RunView
from results.record import RequestStatus

FindingsOfReason = Callable[[RunView, BoolArray], list[Finding]]


def find_dismissed(run: RunView) -> list[Finding]:
    """One finding for each reason for which requests left without finishing."""
    rules = [partial(_of_reason, reason=reason) for reason in _FINDINGS]
    return findings_of(run, *rules, find_failed)


def _of_reason(run: RunView, reason: str) -> list[Finding]:
    chosen = _dismissed_for(run, reason)
    return _FINDINGS[reason](run, chosen) if chosen.any() else []


def _dismissed_for(run: RunView, reason: str) -> BoolArray:
    requests = run.requests
    left = requests.is_equal("status", RequestStatus.REJECTED)
    left |= requests.is_equal("status", RequestStatus.ABORTED)
    return left & requests.is_equal("reason", reason)


def _lengths(run: RunView) -> FloatArray:
    """Tokens that the longest sequence of each request came to."""
    return run.requests["num_prompt_tokens"] + run.requests["max_sample_tokens"]


def _needed_blocks(run: RunView) -> FloatArray:
    """Blocks of each request at its full length, or at the one that it came to."""
    came_to = np.ceil(_lengths(run) / run.block_size)
    if run.is_v1:
        came_to = np.minimum(came_to, run.num_blocks_of_longest)
    return np.maximum(came_to, run.demand_blocks)


def _exceeds_capacity(run: RunView, chosen: BoolArray) -> list[Finding]:
    """Requests larger than the pool, apart from those that only the watermark stops."""
    blocks = _needed_blocks(run)
    # v1 lets its watermark rest while nothing runs, so that it keeps nobody out for good.
    in_band = chosen & (blocks <= run.num_gpu_blocks) & (not run.is_v1)
    found = []
    if (chosen & ~in_band).any():
        found.append(_larger_than_pool(run, chosen & ~in_band))
    if in_band.any():
        found.append(_watermark_band(run, in_band, int(blocks[in_band].max())))
    return found


def _larger_than_pool(run: RunView, chosen: BoolArray) -> Finding:
    longest = int(_lengths(run)[chosen].max())
    held = int(_needed_blocks(run)[chosen].max())
    kept = run.num_set_aside if run.is_v1 else run.num_watermark_blocks
    beside = "block 0" if run.is_v1 else "the watermark"
    needed = held + kept
    return Finding(
        code="exceeds_kv_capacity",
        severity="warning",
        message=f"{run.named(chosen)} did not fit into the pool, or outgrew it: the"
        f" longest came to {longest:,} tokens, and the largest needs {needed:,} blocks at"
        f" its full length, {beside} included, {run.gib(needed):.1f} GiB; the pool"
        f" has {run.num_gpu_blocks:,}",
        advice=f"{larger_pool(run, needed)}; or send such requests elsewhere",
    )


def _watermark_band(run: RunView, chosen: BoolArray, needed: int) -> Finding:
    spare = run.num_gpu_blocks - needed
    lower = math.floor(spare / run.num_gpu_blocks * 10_000) / 10_000
    return Finding(
        code="watermark_band",
        severity="warning",
        message=f"{run.named(chosen)} would fit into the {run.num_gpu_blocks:,} blocks"
        f" of the pool but for the {run.num_watermark_blocks:,} that the watermark keeps"
        f" free: the largest needs {needed:,} at its full length",
        advice=f"--watermark {lower:g} would admit them; where vLLM has no such"
        f" option, {needed + run.num_watermark_blocks:,} blocks would",
    )


def _prompt_too_long(run: RunView, chosen: BoolArray) -> list[Finding]:
    longest, limit = int(_lengths(run)[chosen].max()), run.knob("longest_model_len")
    advice = f"--max-model-len {longest + 1} takes the longest, and one token of output"
    if limit is not None and longest >= limit:
        advice = f"shorten them: the model takes {limit:,} tokens at most"
    return [
        Finding(
            code="prompt_too_long",
            severity="warning",
            message=f"{run.named(chosen)} had prompts longer than max_model_len"
            f" ({run.known('max_model_len'):,} tokens), up to {longest:,}, and never ran",
            advice=advice,
        )
    ]


def _swap_space_short(run: RunView, chosen: BoolArray) -> list[Finding]:
    """Name the swap space that holds the largest group, and all that were there."""
    demand = int(run.requests["num_demand_blocks"][chosen].max())
    return [
        Finding(
            code="swap_space_short",
            severity="error",
            message=f"{run.named(chosen)} had to make room and the"
            f" {run.num_cpu_blocks:,} CPU blocks had none for them; vLLM's engine ends"
            f" there. The largest alone needs {demand:,} blocks, {run.gib(demand):.1f}"
            " GiB",
            advice=_enough_swap_space(run, demand),
        )
    ]


def _swap_in_never(run: RunView, chosen: BoolArray) -> list[Finding]:
    """Coming back takes a block more for each sample, whatever is shared."""
    rows = run.requests
    needed = int((rows["num_demand_blocks"] + rows["n"])[chosen].max())
    return [
        Finding(
            code="swap_in_never",
            severity="error",
            message=f"{run.named(chosen)} swapped out and too large ever to come back;"
            " vLLM ends them without a result",
            advice=f"{larger_pool(run, needed)}, or a smaller n",
        )
    ]


def _enough_swap_space(run: RunView, demand: int) -> str:
    """For the largest group, where that is more than there is, and for all at once."""
    one = math.ceil(run.gib(demand))
    everyone = math.ceil(run.gib(num_blocks_present(run, run.requests["n"] > 1)))
    for_all = f"{everyone} for all groups of n > 1 that were there at once"
    if run.gib(run.num_cpu_blocks) >= one:
        return f"--swap-space {for_all}"
    return f"--swap-space {one} for that one{f', {for_all}' if everyone > one else ''}"


def _sentence(
    code: str, severity: Severity, message: str, advice: str
) -> FindingsOfReason:
    """What makes a finding of a reason that one sentence explains."""

    def finding(run: RunView, chosen: BoolArray) -> list[Finding]:
        longest = int(_lengths(run)[chosen].max())
        return [
            Finding(
                code=code,
                severity=severity,
                message=f"{run.named(chosen)} {message}",
                advice=advice.format(longest=longest),
            )
        ]

    return finding


_FINDINGS: dict[str, FindingsOfReason] = {
    "prompt_too_long": _prompt_too_long,
    "too_long_for_a_step": _sentence(
        "too_long_for_a_step",
        "error",
        "came to more tokens than a step may have, and were ended when they were to be"
        " recomputed",
        "the longest came to {longest:,} tokens; raise --max-num-batched-tokens or use"
        " --enable-chunked-prefill",
    ),
    "exceeds_kv_capacity": _exceeds_capacity,
    "swap_in_never": _swap_in_never,
    "no_cpu_blocks": _swap_space_short,
    "recompute_several": _sentence(
        "recompute_several",
        "error",
        "had several samples running when they were to be recomputed; vLLM's engine ends"
        " there",
        "leave --preemption-mode out, so that groups with n > 1 are swapped",
    ),
    "recompute_first": _sentence(
        "recompute_first_sample",
        "error",
        "had to recompute their first sample after others had finished; vLLM's engine"
        " ends there",
        "--preemption-mode swap",
    ),
}
"""Findings by the reason in a request's row."""
