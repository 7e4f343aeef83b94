"""Blocks of CPU memory under the GPU's pool, and what is kept in them.

Source: behaviour of vLLM 0.32 (``vllm/v1/kv_offload``) with the least recently used
content evicted first, recorded in tests/data/golden; docs/v1.md states the rules.
"""

import numpy as np
from numpy.typing import NDArray

from allocators.free_block_queue import BlockIds, FreeBlockQueue

Contents = NDArray[np.int64]

_ABSENT = -1


class OffloadTier:
    """Which contents lie in CPU blocks, and which of them may go.

    Content is *storing* until its copy has ended, then *ready*. Ready content that is
    being loaded stays where it is.

    Invariant: each block is free or has one content; a block can be evicted exactly if
    its content is ready and not being loaded.

    Args:
        num_blocks: CPU blocks.

    Attributes:
        num_evictions: Contents given up for others.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._block_of = np.full(1024, _ABSENT, dtype=np.int64)  # the last stays so
        self._content_of = np.full(num_blocks, _ABSENT, dtype=np.int64)
        self._is_storing = np.zeros(num_blocks, dtype=np.bool_)
        self._num_loads = np.zeros(num_blocks, dtype=np.int64)
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)  # a stack
        self._num_free = num_blocks
        self._by_recency = FreeBlockQueue(num_blocks, np.zeros(0, dtype=np.int64))
        self._may_go = np.zeros(num_blocks, dtype=np.bool_)
        self._num_evictable = 0

    @property
    def num_used_blocks(self) -> int:
        """Blocks that have content, or are about to."""
        return self.num_blocks - self._num_free

    def leading_run(self, contents: Contents) -> int:
        """How many of these contents are here, ready or not, up to the first absent."""
        is_absent = self._blocks(contents) == _ABSENT
        return int(is_absent.argmax()) if is_absent.any() else len(contents)

    def are_at_rest(self, contents: Contents) -> bool:
        """Whether these contents, all present, are ready and none is being loaded."""
        blocks = self._blocks(contents)
        return not (self._is_storing[blocks].any() or self._num_loads[blocks].any())

    def begin_load(self, contents: Contents) -> None:
        """Keep these contents, all ready, where they are until the load ends."""
        blocks = self._blocks(contents)
        self._num_evictable -= int(np.count_nonzero(self._may_go[blocks]))
        self._may_go[blocks] = False
        self._num_loads[blocks] += 1

    def end_load(self, contents: Contents) -> None:
        """Let them go again."""
        blocks = self._blocks(contents)
        self._num_loads[blocks] -= 1
        self._let_go(blocks[self._num_loads[blocks] == 0])

    def begin_store(
        self, contents: Contents
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Make room for what is absent of these contents; all or nothing.

        What has not been used for longest makes room, but none of ``contents``.

        Returns:
            Which of them are here and not ready yet, and which are to be copied; ``None``
            if there is no room for these.
        """
        self._make_names(int(contents.max(initial=0)))
        blocks = self._blocks(contents)
        is_absent: NDArray[np.bool_] = blocks == _ABSENT
        is_here = ~is_absent
        is_storing: NDArray[np.bool_] = self._is_storing[blocks] & is_here
        absent = contents[is_absent]
        num_missing = len(absent) - self._num_free
        if num_missing > 0 and not self._evict(num_missing, blocks[is_here]):
            return is_storing, None
        self._num_free -= len(absent)
        taken = self._free[self._num_free : self._num_free + len(absent)][::-1].copy()
        self._block_of[absent] = taken
        self._content_of[taken] = absent
        self._is_storing[taken] = True
        self._by_recency.extend(taken)
        return is_storing, is_absent

    def end_store(self, contents: Contents) -> None:
        """They are ready now."""
        blocks = self._blocks(contents)
        self._is_storing[blocks] = False
        self._let_go(blocks)

    def touch(self, contents: Contents) -> None:
        """Make those that are here the most recently used, the last of them last."""
        blocks = self._blocks(contents)
        here = blocks[blocks != _ABSENT]
        self._by_recency.remove(here)
        self._by_recency.extend(here)

    def _let_go(self, blocks: BlockIds) -> None:
        self._may_go[blocks] = True
        self._num_evictable += len(blocks)

    def _blocks(self, contents: Contents) -> BlockIds:
        """The block of each content, or ``_ABSENT``."""
        blocks: BlockIds = self._block_of.take(contents, mode="clip")
        return blocks

    def _make_names(self, last: int) -> None:
        """Let contents up to this one be here."""
        size = len(self._block_of) - 1
        if last >= size:
            more = np.full(max(last + 1, 2 * size) - size, _ABSENT, dtype=np.int64)
            self._block_of = np.concatenate((self._block_of, more))

    def _evict(self, count: int, protected: BlockIds) -> bool:
        """Give up what has not been used for longest; all or nothing."""
        if count > self._num_evictable:
            return False
        kept = protected[self._may_go[protected]] if len(protected) else protected
        self._may_go[kept] = False
        victims = self._by_recency.first_where(self._may_go, count)
        self._may_go[kept] = True
        if len(victims) < count:
            return False
        self._by_recency.remove(victims)
        self._may_go[victims] = False
        self._block_of[self._content_of[victims]] = _ABSENT
        self._content_of[victims] = _ABSENT
        self._free[self._num_free : self._num_free + count] = victims[::-1]
        self._num_free += count
        self._num_evictable -= count
        self.num_evictions += count
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError unless blocks, contents and order agree."""
        used = np.flatnonzero(self._content_of != _ABSENT)
        free = self._free[: self._num_free].tolist()
        assert len(used) + len(free) == self.num_blocks
        assert set(self._by_recency.blocks().tolist()) == set(used.tolist())
        assert (self._block_of[self._content_of[used]] == used).all()
        assert np.count_nonzero(self._block_of != _ABSENT) == len(used)
        assert set(free).isdisjoint(used.tolist())
        assert len(set(free)) == len(free)
        self._by_recency.check_invariants()
        may_go = (self._num_loads[used] == 0) & ~self._is_storing[used]
        assert (may_go == self._may_go[used]).all()
        assert np.count_nonzero(self._may_go) == self._num_evictable
        assert (self._num_loads >= 0).all()
