"""What a prefix cache of any size would find of a workload's prompts, in one pass.

How deep a block lies in the order of last use does not depend on the size of the cache
(Mattson's stack distance), so one pass over a trace tells the hits of every size. Blocks
are nodes of a tree of prefixes, and a request uses a path of it from the root.

Two rules of vLLM make it short. A request frees its last block first, so that a block is
never evicted after one that comes before it in a prompt: what a prompt finds is always
its beginning. And what it finds is looked up before it takes a block: its own blocks push
nothing out of its own way.

Source: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems
Journal 9 (1970); the rules of vLLM as in :mod:`allocators.kv_cache_manager`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.analysis.chains import with_long_runs
from harness.errors import UsageError
from harness.request import Run
from harness.run_columns import IntArray
from harness.workload import ExtraKeys, Workload
from results.statistics import sums_at_or_above

_NO_END = 2**62  # further than any prompt reaches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HitCurve:
    """Prompt tokens that an LRU cache of whole blocks finds, by the size of the cache.

    Each stretch of blocks that a prompt has in common with earlier requests is found
    block by block as the cache grows: from the first to the last size that finds more.

    Attributes:
        block_size: Tokens in a block.
        total_prompt_tokens: Tokens of all prompts.
    """

    block_size: int
    total_prompt_tokens: int
    _begins: "_Ramps"
    _ends: "_Ramps"

    @property
    def max_hit_tokens(self) -> int:
        """What an endless cache finds."""
        return self.block_size * (self._ends.total - self._begins.total)

    @property
    def max_used_tokens(self) -> int:
        """Capacity beyond which nothing more is found."""
        return self.block_size * self._ends.last

    @overload
    def hit_tokens(self, capacity_tokens: float) -> int: ...
    @overload
    def hit_tokens(self, capacity_tokens: NDArray[np.generic]) -> IntArray: ...

    def hit_tokens(self, capacity_tokens: ArrayLike) -> IntArray | int:
        """Tokens found by a cache of so many tokens; part of a block is no use.

        A pool of vLLM's has ``num_gpu_blocks - 1`` blocks for content: one is the null
        block.
        """
        capacity = np.clip(capacity_tokens, 0, self.max_used_tokens)
        num_blocks = (capacity // self.block_size).astype(np.int64)
        found = self._begins.risen(num_blocks) - self._ends.risen(num_blocks)
        tokens: IntArray = found * self.block_size
        return tokens if np.ndim(capacity_tokens) else int(tokens)

    def capacity_for(self, share: float) -> int:
        """The least capacity in tokens that finds this share of ``max_hit_tokens``.

        Raises:
            UsageError: The share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"share is {share:g}, must be between 0 and 1")
        if not self.max_hit_tokens:
            return 0
        return self.block_size * bisect_left(
            range(self._ends.last),
            share,
            key=lambda n: self.hit_tokens(n * self.block_size) / self.max_hit_tokens,
        )


class _Ramps:
    """Lines of slope 1 that rise from 0, each from where it starts."""

    __slots__ = ("_before", "_starts")

    def __init__(self, starts: IntArray) -> None:
        self._starts = np.sort(starts)
        self._before = np.concatenate(([0], np.cumsum(self._starts)))

    @property
    def total(self) -> int:
        """Sum of all starts."""
        return int(self._before[-1])

    @property
    def last(self) -> int:
        """The last start, 0 where there are none."""
        return int(self._starts[-1]) if len(self._starts) else 0

    def risen(self, place: IntArray) -> IntArray:
        """How far the lines have risen at a place, all together."""
        count = np.searchsorted(self._starts, place)
        risen: IntArray = count * place - self._before[count]
        return risen


def hit_curve(
    workload: Workload, *, block_size: int, with_outputs: bool = False
) -> HitCurve | None:
    """The hits of a workload's prompts for every size of the cache.

    Requests count in workload order, each one over before the next begins; only whole
    blocks are found, and never the last token of a prompt. None where the trace does not
    say which prompts begin alike.

    Measured against replays in V1 (1,500 requests of Mooncake's conversations, 15 pools
    of 8,000 to 700,000 blocks of 16 tokens): one request at a time they find the same or
    up to 2 blocks less, 4 tokens in 100,000. Then they find what the curve says of a pool
    one block smaller: a block that is not full takes room too.
    Where requests overlap, those that run hold blocks and are released in another order:
    at the recorded times the replays found 2 % less (small pools) to 4 % more.

    A curve is of one order. Turns that wait for earlier ones, and queues, change it: then
    give ``workload.take(order)``. examples/chat_1000.jsonl, one request at a time, is met
    to 0.05 % in the order of its replay's ends; in the order of the file its curve says
    up to 3.2 times what the replay finds.

    Args:
        workload: The requests, contents named as the trace names them.
        block_size: Tokens in a block.
        with_outputs: Outputs are in the cache as well, as in V1: they take room, and
            prompts may continue them. The last token of an output is never in it.

    Raises:
        UsageError: The block size is below 1.
    """
    if block_size < 1:
        raise UsageError(f"block size is {block_size}, must be at least 1")
    if not workload.has_sharing:
        return None
    brief = with_long_runs(workload)
    uses = _Uses(block_size)
    for row in range(len(brief)):
        outputs = brief.outputs.runs(row) if with_outputs else ()
        uses.add(brief.prompts.runs(row), outputs, brief.extra_keys.get(row, ()))
    uses.close()
    depths, counts = _found(uses)
    return HitCurve(
        block_size=block_size,
        total_prompt_tokens=int(workload.input_tokens.sum()),
        _begins=_Ramps(depths),
        _ends=_Ramps(depths + counts),
    )


class _Uses:
    """The tree of all prefixes, and which use had each of its blocks last.

    A node is a segment after one prefix; the blocks that end in it are its own. Uses are
    numbered in the order of release: the outputs of a request, then its prompt.

    Invariant: the steps ``(end, use)`` of a node cover its used blocks from the deepest
    to the first; a step nearer the root has a later use.

    Attributes:
        num_uses: Uses so far.
        parts: Stretches of blocks from one use to the next that has them: the use, the
            number of blocks, the first use of the request that has them next, and how
            many of them its prompt may find. Of those of one use, what is nearer the root
            comes first.
    """

    def __init__(self, block_size: int) -> None:
        self.num_uses = 0
        self.parts: list[tuple[int, int, int, int]] = []
        self._block_size = block_size
        self._roots: dict[ExtraKeys, int] = {}
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._begins: list[int] = []
        self._steps: list[list[tuple[int, int]]] = []

    def add(
        self, prompt: Sequence[Run], outputs: Iterable[Run], extra_keys: ExtraKeys
    ) -> None:
        """Let a request use its prompt and outputs; the shortest output ends first."""
        known = sorted((length - 1, segment) for segment, length in outputs)
        first, last = self.num_uses, self.num_uses + len(known)
        limit = (sum(length for _, length in prompt) - 1) // self._block_size
        node, reach = self._roots.setdefault(extra_keys, -1 - len(self._roots)), 0
        position = 0
        for segment, length in prompt:
            node = self._node(node, reach, segment, position)
            reach = length
            position += length
            self._use(node, position, last, first, limit)
        for use, (length, segment) in enumerate(known, start=first):
            output = self._node(node, reach, segment, position)
            self._use(output, position + length, use, first, 0)
        self.num_uses = last + 1

    def close(self) -> None:
        """Make parts of what nobody uses again, too."""
        for node, begin in enumerate(self._begins):
            self._take(node, begin, _NO_END, self.num_uses, 0)

    def _node(self, before: int, reach: int, segment: int, position: int) -> int:
        """The node of a segment after so many tokens of another node."""
        node = self._nodes.setdefault((before, reach, segment), len(self._nodes))
        if node == len(self._begins):
            self._begins.append(position // self._block_size)
            self._steps.append([])
        return node

    def _use(self, node: int, position: int, use: int, first: int, limit: int) -> None:
        """Let a use of the request that begins with ``first`` have a node's blocks."""
        begin, end = self._begins[node], position // self._block_size
        if begin < end:
            self._take(node, begin, end, first, limit)
            self._steps[node].append((end, use))

    def _take(self, node: int, begin: int, end: int, first: int, limit: int) -> None:
        """Make parts of a node's blocks up to one, by who had them last."""
        steps = self._steps[node]
        while steps and begin < end:
            cut, use = steps[-1]
            if cut <= end:
                steps.pop()
            cut = min(cut, end)
            found = max(0, min(cut, limit) - begin)
            self.parts.append((use, cut - begin, first, found))
            begin = cut


def _found(uses: _Uses) -> tuple[IntArray, IntArray]:
    """What prompts find: blocks that must fit before it, and the blocks that it has.

    A block lies as deep as there are others whose last use before the request came later.
    """
    parts = np.array(uses.parts, dtype=np.int64).reshape(-1, 4)[::-1]
    use, num_blocks, taken, found = parts[np.argsort(parts[:, 0], kind="stable")].T
    found_at = np.flatnonzero(found)
    asker = taken[found_at]
    depths = sums_at_or_above(
        values=taken.astype(np.float64),
        weights=num_blocks.astype(np.float64),
        starts=found_at,
        ends=np.searchsorted(use, asker),
        thresholds=asker.astype(np.float64),
    )
    return depths.astype(np.int64) - num_blocks[found_at], found[found_at]
