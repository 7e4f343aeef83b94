"""Whether long prompts take whole steps while others wait for theirs."""

from results.columns import BoolArray, durations_ns
from results.findings.finding import Finding
from results.findings.run_view import RunView, percent
from results.latency import request_latency
from results.statistics import NS_PER_S

MIN_BLAME = 0.5
"""Of all waiting. Less, and something else is what they wait for."""

MIN_WAIT_S = 0.1
"""Mean of all that ran. A shorter wait is not felt."""

AT_ONCE = 4
"""Prefills that a step is to have room for."""

THRESHOLD_STEP = 64
"""Tokens to which a threshold is rounded down."""


def find_long_prefills(run: RunView) -> list[Finding]:
    """v1 gives a step's tokens to who was admitted first, and the others wait.

    Not where the queue grows: then all tokens are wanted, whoever gets them first.
    """
    threshold = run.knob("long_prefill_token_threshold")
    is_chunked = run.knob("enable_chunked_prefill")
    if not run.is_v1 or threshold or not is_chunked or run.is_growing:
        return []
    if not run.is_admitted.any() or not len(run.steps):
        return []
    alone = _is_alone(run)
    waiting_s = run.steps["num_waiting"] * durations_ns(run.steps) / NS_PER_S
    held_s = float(waiting_s[alone].sum())
    queue_s = float(request_latency(run.requests).queue_s.sum())
    num_ran = int(run.is_admitted.sum())
    if held_s < MIN_WAIT_S * num_ran or held_s < MIN_BLAME * queue_s:
        return []
    limit = int(run.known("max_num_batched_tokens"))
    chunk = max(limit // AT_ONCE // THRESHOLD_STEP * THRESHOLD_STEP, 1)
    return [
        Finding(
            code="long_prefills_block",
            severity="warning",
            message=f"requests waited {percent(held_s / queue_s)} of their time in the"
            f" queue beside a single long prompt that took all {limit:,} tokens of a step"
            f" for itself, {held_s / num_ran:.2f} s on average",
            advice=f"--long-prefill-token-threshold {chunk}: a long prompt leaves room"
            " for shorter ones then, and takes longer itself",
        )
    ]


def _is_alone(run: RunView) -> BoolArray:
    """Stretches in which one prefill, and what decodes, took the whole step."""
    steps = run.steps
    num_tokens = steps["num_prefill_tokens"] + steps["num_decode_seqs"]
    is_full = num_tokens >= run.known("max_num_batched_tokens")
    is_waiting = (steps["num_waiting"] > 0) & (steps["num_head_blocks"] == 0)
    alone: BoolArray = is_full & is_waiting & (steps["num_prefill_seqs"] == 1)
    return alone
