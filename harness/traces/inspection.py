"""What a trace holds, in a few figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.request import Run
from harness.run_columns import IntArray
from harness.workload import ExtraKeys, Workload


def inspect_workload(workload: Workload, *, block_size: int = 16) -> dict[str, Any]:
    """Counts, lengths and sharing of a workload, ready for JSON.

    Args:
        workload: What to look at.
        block_size: Tokens in a block, for ``ideal_hit_rate``.

    Raises:
        UsageError: The block size is below 1.
    """
    if block_size < 1:
        raise UsageError(f"block size is {block_size}, must be at least 1")
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
    if not workload.has_sharing:
        return None
    num_blocks = int((workload.input_tokens // block_size).sum())
    if not num_blocks:
        return None
    seen = _SeenContent()
    num_hits = 0
    for row in range(len(workload)):
        prompt, outputs = workload.prompts.runs(row), workload.outputs.runs(row)
        matched = seen.add(prompt, outputs, workload.extra_keys.get(row, ()))
        num_hits += matched // block_size
    return num_hits / num_blocks


class _SeenContent:
    """Every beginning of what was seen, as a tree of runs.

    A node stands after a whole run. ``_covered`` is the longest run of a segment seen
    after a node; a longer one agrees with it just so far. ``_child`` is the node after
    a run, which a run of another length never reaches, as the next run starts anew.
    """

    def __init__(self) -> None:
        self._roots: dict[ExtraKeys, int] = {}
        self._covered: dict[tuple[int, int], int] = {}
        self._child: dict[tuple[int, int, int], int] = {}

    def add(
        self, prompt: Sequence[Run], outputs: Sequence[Run], extra_keys: ExtraKeys
    ) -> int:
        """Add a request; the number of its leading prompt tokens seen before."""
        root = self._roots.setdefault(extra_keys, -1 - len(self._roots))
        matched, end = self._walk(root, prompt)
        for segment, length in outputs:
            if length > 1:
                self._walk(end, [(segment, length - 1)])
        return matched

    def _walk(self, node: int, runs: Sequence[Run]) -> tuple[int, int]:
        matched = 0
        for segment, length in runs:
            # Nothing is covered after a node that this walk has just added.
            covered = self._covered.get((node, segment), 0)
            matched += min(covered, length)
            if covered < length:
                self._covered[node, segment] = length
            key = (node, segment, length)
            node = self._child.setdefault(key, len(self._child))
        return matched, node


def _spread(values: IntArray) -> dict[str, float | int]:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(values.max()),
    }
