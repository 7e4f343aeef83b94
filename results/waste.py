"""Time and work that a run lost: recomputation, swaps, waiting behind others, regret."""

from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray, computing_ns, durations_ns
from results.statistics import NS_PER_S, sums_at_or_above


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Parts of the time in which steps ran, between 0 and 1; 0 when none ran.

    A step's time is split by tokens: a prefill of 300 tokens beside 100 decodes takes
    three quarters of it.

    Attributes:
        prefill: Computing prompts, recomputation included.
        recompute: Computing again what a preemption had thrown away.
        swap: Waiting for blocks to be copied between GPU and CPU: swaps in v0, stores to
            the offload tier that had to end first in v1.
        decode: The rest.
    """

    prefill: float = 0.0
    recompute: float = 0.0
    swap: float = 0.0
    decode: float = 0.0


def time_shares(steps: Columns) -> TimeShares:
    """Where the time of the steps went."""
    if durations_ns(steps).sum() <= 0:
        return TimeShares()
    prefill, swap = prefill_share(steps), swap_share(steps)
    return TimeShares(
        prefill=prefill,
        recompute=recompute_share(steps),
        swap=swap,
        decode=1 - prefill - swap,
    )


def prefill_share(steps: Columns) -> float:
    """``TimeShares.prefill`` alone, where not all is measured."""
    return _share_of_time(steps, _of_tokens(steps, "num_prefill_tokens"))


def recompute_share(steps: Columns) -> float:
    """``TimeShares.recompute`` alone."""
    return _share_of_time(steps, _of_tokens(steps, "num_recomputed_tokens"))


def swap_share(steps: Columns) -> float:
    """``TimeShares.swap`` alone."""
    return _share_of_time(steps, steps["swap_ns"])


def _share_of_time(steps: Columns, part_ns: FloatArray) -> float:
    busy = float(durations_ns(steps).sum())
    return float(part_ns.sum()) / busy if busy > 0 else 0.0


def _of_tokens(steps: Columns, name: str) -> FloatArray:
    """The part of each stretch that falls on such tokens, nanoseconds."""
    part: FloatArray = computing_ns(steps) * _share_of_tokens(steps, name)
    return part


def _share_of_tokens(steps: Columns, name: str) -> FloatArray:
    computed = steps["num_prefill_tokens"] + steps["num_decode_seqs"]
    share: FloatArray = steps[name] / np.maximum(computed, 1)
    return share


def head_of_line_s(requests: Columns, steps: Columns, block_size: int) -> FloatArray:
    """Seconds that each request waited behind one that did not fit, while it would have.

    A step counts for a request that is in the queue and was never admitted, if the step's
    first candidate was refused for want of blocks, and the request's whole prompt fits
    into the room there was, to the end of the stretch. The scheduler serves its queue in
    order, so it has to wait all the same. This is a lower bound: parts of a prompt that
    the cache holds are not subtracted, and the room is that at a stretch's end. Counted
    step by step it comes out larger, by a tenth to a third under pressure.

    Returns:
        ``(num_requests,)``, 0 for those that never waited so.
    """
    blocked = steps["num_head_blocks"] > 0
    start = steps["start_ns"][blocked]
    grown = (steps["num_used_blocks_end"] - steps["num_used_blocks"])[blocked]
    admitted = np.where(
        np.isnan(requests["first_scheduled_ns"]),
        requests["finished_ns"],
        requests["first_scheduled_ns"],
    )
    first = np.searchsorted(start, requests["queued_ns"], side="left")
    last = np.searchsorted(start, np.where(np.isnan(admitted), np.inf, admitted))
    waited_ns = sums_at_or_above(
        values=steps["num_room_blocks"][blocked] - grown,
        weights=durations_ns(steps)[blocked],
        starts=first,
        ends=np.maximum(first, last),
        thresholds=np.ceil(requests["num_prompt_tokens"] / block_size),
    )
    return waited_ns / NS_PER_S
