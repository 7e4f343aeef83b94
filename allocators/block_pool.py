"""The pool of GPU blocks that vLLM has had since V1: reference counts, one queue, cache.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/block_pool.py``), recorded in
tests/data/golden; docs/v1.md states the rules.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from allocators.content import ContentRange
from allocators.free_block_queue import BlockIds, FreeBlockQueue

NULL_BLOCK = 0

NO_BLOCKS: BlockIds = np.zeros(0, dtype=np.int64)

_NO_CONTENT = -1
_NEVER_CACHED = -1
_GIVEN_UP = -2

_FEW = 12
"""Blocks up to which it is faster to look at them one by one."""


class BlockPool:
    """All blocks, how often each is held, and which content is cached in which.

    Block 0 is the null block: it stands for content that is not kept, and is never
    handed out. Many blocks at once cost a few array operations, a few blocks are looked
    at one by one, and the size of the pool does not matter.

    Invariant: a block is in the free queue exactly if its ``ref_cnt`` is 0 (the null
    block never is), and those without content come first there. Content may be cached in
    several blocks; its holder is the one of them that was named earliest.

    Args:
        num_gpu_blocks: Blocks, the null block among them.

    Attributes:
        num_cached_free_blocks: Free blocks whose content could still be reused.
        num_evictions: Blocks that were handed out while they had content cached.
        num_regretted_evictions: Contents that were cached again after the last block
            that had them was handed out.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.free_block_queue = FreeBlockQueue(
            num_gpu_blocks, np.arange(1, num_gpu_blocks, dtype=np.int64)
        )
        self.ref_cnt = np.zeros(num_gpu_blocks, dtype=np.int64)
        self.num_cached_free_blocks = 0
        self.num_evictions = 0
        self.num_regretted_evictions = 0
        self._content_of = np.full(num_gpu_blocks, _NO_CONTENT, dtype=np.int64)
        self._holder_of = np.full(1024, _NEVER_CACHED, dtype=np.int64)
        # The same memory again: single numbers are faster through a view.
        self._ref_cnt_at = self.ref_cnt.data
        self._content_at = self._content_of.data
        self._holder_at = self._holder_of.data
        self._may_have_twin = np.zeros(num_gpu_blocks, dtype=np.bool_)
        self._twins: dict[int, deque[int]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return self.free_block_queue.num_free_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_gpu_blocks - 1 - self.num_free_blocks

    # -- handing out and taking back ---------------------------------------------------

    def get_new_blocks(self, count: int) -> BlockIds:
        """Hand out the first blocks of the queue; what they had cached is given up."""
        num_uncached = self.num_free_blocks - self.num_cached_free_blocks
        taken = self.free_block_queue.pop(count)
        self.ref_cnt[taken] = 1
        if count > num_uncached:
            self._evict(taken[num_uncached:])
        return taken

    def get_single_blocks(self, count: int) -> list[int]:
        """The same, without the cost of array operations where blocks are few."""
        if count > _FEW:
            many: list[int] = self.get_new_blocks(count).tolist()
            return many
        num_uncached = self.num_free_blocks - self.num_cached_free_blocks
        taken = self.free_block_queue.pop_singly(count)
        for block_id in taken:
            self._ref_cnt_at[block_id] = 1
        for block_id in taken[num_uncached:]:
            self._evict_one(block_id)
        return taken

    def idle(self, block_ids: BlockIds) -> BlockIds:
        """Those of these blocks that nobody holds."""
        idle: BlockIds = block_ids[self.ref_cnt[block_ids] == 0]
        return idle

    def touch(self, block_ids: BlockIds, idle: BlockIds) -> None:
        """Hold cached blocks once more; those that are ``idle`` leave the queue."""
        if len(idle):
            self.free_block_queue.remove(idle)
            self.num_cached_free_blocks -= len(idle)
        self.ref_cnt[block_ids] += 1

    def free_blocks(self, block_ids: BlockIds, num_unnamed: int = 0) -> None:
        """Hold blocks once less, in the order given.

        Of those that nobody holds any more, blocks without content go to the front of
        the queue as one piece, the others to its end.

        Args:
            block_ids: The blocks.
            num_unnamed: How many of them, the first ones, have no content; such a block
                has one holder.
        """
        if num_unnamed == 1:
            block_id = int(block_ids[0])
            self._ref_cnt_at[block_id] = 0
            self.free_block_queue.push_front(block_id)
        elif num_unnamed:
            self.ref_cnt[block_ids[:num_unnamed]] = 0
            self.free_block_queue.extend_front(block_ids[:num_unnamed])
        block_ids = block_ids[num_unnamed:]
        if len(block_ids):
            ref_cnt = self.ref_cnt[block_ids] - 1
            self.ref_cnt[block_ids] = ref_cnt
            if ref_cnt[ref_cnt.argmax()]:
                block_ids = block_ids[ref_cnt == 0]
            self.free_block_queue.extend(block_ids)
            self.num_cached_free_blocks += len(block_ids)

    # -- content -----------------------------------------------------------------------

    def find(self, parts: Iterable[ContentRange]) -> BlockIds:
        """The cached blocks of the longest leading run of contents, now."""
        found = []
        for part in parts:
            holders = self._holders(part)
            missing = holders < 0
            first = missing.argmax()
            if missing[first]:
                if first:
                    found.append(holders[:first])
                break
            found.append(holders)
        return _joined(found)

    def find_last(self, parts: Iterable[ContentRange], num_needed: int) -> BlockIds:
        """The last run of ``num_needed`` cached blocks, null blocks before it.

        The leading run where no run is that long.
        """
        holders = _joined([self._holders(part) for part in parts])
        gaps = np.flatnonzero(holders < 0)
        bounds = np.concatenate(([-1], gaps, [len(holders)]))
        lengths = np.diff(bounds) - 1
        long_enough = np.flatnonzero(lengths >= num_needed)
        if not len(long_enough):
            return holders[: lengths[0]]
        end = int(bounds[long_enough[-1] + 1])
        found = holders[:end].copy()
        found[: end - num_needed] = NULL_BLOCK
        return found

    def cache_blocks(self, first_content: int, block_ids: BlockIds) -> None:
        """Name blocks that are held by contents that follow one another.

        Args:
            first_content: What the first block contains.
            block_ids: The blocks.
        """
        end = first_content + len(block_ids)
        self._make_room(end)
        self._content_of[block_ids] = np.arange(first_content, end)
        holders = self._holder_of[first_content:end]
        if holders[holders.argmin()] == _GIVEN_UP:
            num_given_up = int(np.count_nonzero(holders == _GIVEN_UP))
            self.num_regretted_evictions += num_given_up
        if holders[holders.argmax()] < 0:
            holders[:] = block_ids
            return
        for place in np.flatnonzero(holders >= 0).tolist():
            self._add_twin(first_content + place, int(block_ids[place]))
        holders[holders < 0] = block_ids[holders < 0]

    def cache_new_blocks(self, first_content: int, block_ids: BlockIds) -> None:
        """The same for contents that no block has had before."""
        end = first_content + len(block_ids)
        self._make_room(end)
        self._content_of[block_ids] = np.arange(first_content, end)
        self._holder_of[first_content:end] = block_ids

    def cache_single_blocks(self, contents: Sequence[int], block_ids: list[int]) -> None:
        """Name a few blocks that are held, one by one."""
        self._make_room(max(contents))
        for content, block_id in zip(contents, block_ids, strict=True):
            self._content_at[block_id] = content
            holder = self._holder_at[content]
            if holder >= 0:
                self._add_twin(content, block_id)
                continue
            if holder == _GIVEN_UP:
                self.num_regretted_evictions += 1
            self._holder_at[content] = block_id

    def forget(self, part: ContentRange) -> bool:
        """Make contents as if they had never been, unless one is cached still."""
        end = part.first + part.end - part.begin
        self._make_room(end)
        holders = self._holder_of[part.first : end]
        if holders[holders.argmax()] >= 0:
            return False
        holders[:] = _NEVER_CACHED
        return True

    def _holders(self, part: ContentRange) -> BlockIds:
        """Who holds each content, a number below 0 where nobody does."""
        end = part.first + part.end - part.begin
        self._make_room(end)
        return self._holder_of[part.first : end]

    def _make_room(self, content: int) -> None:
        size = len(self._holder_of)
        if content >= size:
            more = np.full(max(content + 1, 2 * size) - size, _NEVER_CACHED, np.int64)
            self._holder_of = np.concatenate((self._holder_of, more))
            self._holder_at = self._holder_of.data

    def _add_twin(self, content: int, block_id: int) -> None:
        """Name a block by content that another one holds already."""
        self._may_have_twin[block_id] = True
        self._may_have_twin[self._holder_at[content]] = True
        self._twins.setdefault(content, deque()).append(block_id)

    def _evict(self, block_ids: BlockIds) -> None:
        """Forget what blocks had cached; a twin takes the place of a holder."""
        self.num_evictions += len(block_ids)
        self.num_cached_free_blocks -= len(block_ids)
        contents = self._content_of[block_ids]
        self._content_of[block_ids] = _NO_CONTENT
        if self._twins:
            has_twin = self._may_have_twin[block_ids]
            for position in np.flatnonzero(has_twin).tolist():
                self._evict_twin(int(block_ids[position]), int(contents[position]))
            contents = contents[~has_twin]
        self._holder_of[contents] = _GIVEN_UP

    def _evict_one(self, block_id: int) -> None:
        """The same for one block."""
        self.num_evictions += 1
        self.num_cached_free_blocks -= 1
        content = self._content_at[block_id]
        self._content_at[block_id] = _NO_CONTENT
        if self._twins:
            self._evict_twin(block_id, content)
        else:
            self._holder_at[content] = _GIVEN_UP

    def _evict_twin(self, block_id: int, content: int) -> None:
        self._may_have_twin[block_id] = False
        twins = self._twins.get(content)
        if self._holder_of[content] != block_id:
            assert twins is not None, "who is not the holder is among its twins"
            twins.remove(block_id)
        elif twins is not None:
            self._holder_of[content] = twins.popleft()
        else:
            self._holder_of[content] = _GIVEN_UP
        if twins is not None and not twins:
            del self._twins[content]

    # -- the books ---------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise AssertionError unless counts, queue and contents agree."""
        self.free_block_queue.check_invariants()
        free = self.free_block_queue.blocks()
        is_free = np.zeros(self.num_gpu_blocks, dtype=np.bool_)
        is_free[free] = True
        assert len(free) == np.count_nonzero(is_free) == self.num_free_blocks
        assert not is_free[NULL_BLOCK], "the null block is never handed out"
        assert (self.ref_cnt >= 0).all(), "a block was freed more often than held"
        assert (is_free[1:] == (self.ref_cnt[1:] == 0)).all()
        num_uncached = len(free) - self.num_cached_free_blocks
        is_cached = self._content_of[free] != _NO_CONTENT
        assert not is_cached[:num_uncached].any(), "a cached block comes too early"
        assert is_cached[num_uncached:].all(), "an empty block comes too late"
        self._check_holders()

    def _check_holders(self) -> None:
        cached = np.flatnonzero(self._content_of != _NO_CONTENT)
        contents = self._content_of[cached]
        is_holder = self._holder_of[contents] == cached
        num_held = np.count_nonzero(self._holder_of >= 0)
        assert np.count_nonzero(is_holder) == num_held, "a holder has other content"
        twins = {c: set(blocks) for c, blocks in self._twins.items()}
        for block_id in cached[~is_holder].tolist():
            content = int(self._content_of[block_id])
            assert block_id in twins[content], "neither holder nor twin"
        assert sum(map(len, twins.values())) == np.count_nonzero(~is_holder)


def _joined(pieces: list[BlockIds]) -> BlockIds:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else NO_BLOCKS
