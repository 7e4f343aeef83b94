"""What a trace holds, in a few figures."""

from typing import Any

import numpy as np

from harness.analysis.sharing import shared_tokens
from harness.errors import UsageError
from harness.run_columns import IntArray
from harness.traces.bad_row import MAX_LENGTH
from harness.workload import Workload


def inspect_workload(workload: Workload, *, block_size: int = 16) -> dict[str, Any]:
    """Counts, lengths and sharing of a workload, ready for JSON.

    Args:
        workload: What to look at.
        block_size: Tokens in a block, for ``ideal_hit_rate``.

    Raises:
        UsageError: The block size is below 1, or longer than any prompt.
    """
    if not 1 <= block_size <= MAX_LENGTH:
        raise UsageError(
            f"block size is {block_size:,}, must be from 1 to {MAX_LENGTH:,} tokens"
        )
    return {
        "name": workload.name,
        "format": workload.format,
        "is_generated": workload.is_generated,
        "content_hash": workload.content_hash,
        "num_requests": len(workload),
        "num_skipped": workload.num_skipped,
        "skipped_by_reason": dict(workload.skipped_by_reason),
        "duration_s": workload.duration_s,
        "has_sharing": workload.has_sharing,
        "input_tokens": _spread(workload.input_tokens),
        "output_tokens": _spread(workload.output_tokens),
        "block_size": block_size,
        "ideal_hit_rate": ideal_hit_rate(workload, block_size),
        "notes": list(workload.notes),
    }


def ideal_hit_rate(workload: Workload, block_size: int) -> float | None:
    """Share of full prompt blocks that a cache without limit would have held.

    Requests count in workload order, each one whole before the next. A block is held
    when it and all blocks before it begin an earlier request's prompt and output; the
    last output token of a request is never in the cache. None where the trace does not
    say which prompts begin alike, or no prompt fills a block.
    """
    shared = shared_tokens(workload, with_outputs=True)
    num_blocks = int((workload.input_tokens // block_size).sum())
    if shared is None or not num_blocks:
        return None
    return int((shared // block_size).sum()) / num_blocks


def _spread(values: IntArray) -> dict[str, float | int]:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(values.max()),
    }
