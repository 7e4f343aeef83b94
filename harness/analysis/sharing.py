"""How much of each prompt an earlier request of the workload began with."""

from collections.abc import Sequence

import numpy as np

from harness.request import Run
from harness.run_columns import IntArray
from harness.workload import ExtraKeys, Workload


def shared_tokens(workload: Workload, *, with_outputs: bool) -> IntArray | None:
    """Leading tokens of each prompt that were seen before, ``(num_requests,)``.

    Requests count in workload order, each one whole before the next; what they have in
    common is what a cache without limit could have held. None where the trace does not
    say which prompts begin alike.

    Args:
        workload: The requests.
        with_outputs: Prompts may also continue the output of an earlier request. The last
            token of an output is never in a cache.
    """
    if not workload.has_sharing:
        return None
    seen = _SeenContent()
    shared = np.zeros(len(workload), dtype=np.int64)
    for row in range(len(workload)):
        prompt = workload.prompts.runs(row)
        outputs = workload.outputs.runs(row) if with_outputs else ()
        shared[row] = seen.add(prompt, outputs, workload.extra_keys.get(row, ()))
    return shared


def findable_tokens(
    workload: Workload, *, with_outputs: bool
) -> tuple[IntArray, IntArray] | None:
    """What a cache without limit could find, ``(num_requests,)`` each.

    First where outputs may be in it as well, if they may, then of prompts alone; None
    where the trace does not say which prompts begin alike.
    """
    of_prompts = shared_tokens(workload, with_outputs=False)
    if of_prompts is None or not with_outputs or not _has_followers(workload):
        return None if of_prompts is None else (of_prompts, of_prompts)
    of_all = shared_tokens(workload, with_outputs=True)
    assert of_all is not None, "the trace says it of prompts"
    return of_all, of_prompts


def _has_followers(workload: Workload) -> bool:
    """Whether a prompt may go on with an output."""
    return bool(np.isin(workload.outputs.segments, workload.prompts.segments).any())


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
