"""What requests waited for: blocks, or one of the places of ``max_num_seqs``."""

import numpy as np

from results.columns import BoolArray, durations_ns
from results.findings.fit import MOST_OF_LIFE, as_many_as_fit, fitting_seqs, more_blocks
from results.findings.run_view import RunView
from results.statistics import NS_PER_S


def waited_for(run: RunView, queue_s: float) -> tuple[str, str] | None:
    """What requests waited for most and its remedy, if it was a place; else None.

    Args:
        run: Its rows.
        queue_s: Seconds that requests waited, summed over them.
    """
    waiting = run.steps["num_waiting"] * durations_ns(run.steps) / NS_PER_S
    half = max(float(waiting.sum()), queue_s) / 2
    if waiting[waits_for_blocks(run)].sum() >= half:
        return "blocks", more_blocks(run)
    if waiting[waits_for_seqs(run)].sum() < half:
        return None
    limit, fitting = run.known("max_num_seqs"), fitting_seqs(run, MOST_OF_LIFE)
    place = f"one of the {limit:,} places of max_num_seqs"
    if fitting <= limit:
        return place, "a larger pool, and then a higher --max-num-seqs"
    wanted = seqs_wanted(run, np.ones(len(run.steps), dtype=np.bool_))
    if wanted <= fitting:
        return place, f"{max_num_seqs(run, wanted)}, as many as were there at once"
    return place, f"{max_num_seqs(run, fitting)}, {as_many_as_fit(MOST_OF_LIFE)}"


def max_num_seqs(run: RunView, num_seqs: int) -> str:
    """The flag, with the tokens that vLLM wants in a step of so many sequences."""
    flag = f"--max-num-seqs {num_seqs}"
    if num_seqs > run.known("max_num_batched_tokens"):
        flag += f" --max-num-batched-tokens {num_seqs}"
    return flag


def seqs_wanted(run: RunView, chosen: BoolArray) -> int:
    """Sequences that were there at once in the chosen stretches, waiting ones included.

    v1 queues each sample, v0 whole groups.
    """
    present = (run.steps["num_running"] + run.steps["num_waiting"])[chosen].max()
    return int(present * (1 if run.is_v1 else run.requests["n"].max()))


def waits_for_blocks(run: RunView) -> BoolArray:
    """Stretches whose first candidate was refused for want of blocks."""
    refused: BoolArray = run.steps["num_head_blocks"] > 0
    return refused


def waits_for_seqs(run: RunView) -> BoolArray:
    """``max_num_seqs`` sequences run, or too many for the largest group to join them.

    In v1 each sample joins on its own.
    """
    steps = run.steps
    batch = steps["num_prefill_seqs"] + steps["num_decode_seqs"]
    joining = 1 if run.is_v1 else run.requests["n"].max()
    num_seqs = np.maximum(steps["num_running"], batch) + joining
    full: BoolArray = num_seqs > run.most_seqs
    return full & ~waits_for_blocks(run)
