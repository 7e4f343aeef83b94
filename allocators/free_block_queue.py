"""Free blocks in the order in which they will be taken, as one array."""

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.int64]

_NOT_FREE = -1


class FreeBlockQueue:
    """A double-ended queue of block ids from which any may be taken out.

    The queue is a stretch of an array. A block that is taken out of the middle leaves its
    entry behind; an entry counts only where the block's own note points back at it. So
    many blocks are put in, taken out or passed over in a few array operations, and the
    work never grows with the length of the queue.

    Invariant: walking the stretch and keeping the entries that count gives every free
    block once.

    Args:
        num_blocks: Ids are below this number.
        block_ids: The free ones, the next to be taken first.
    """

    def __init__(self, num_blocks: int, block_ids: BlockIds) -> None:
        self._entry_of = np.full(num_blocks, _NOT_FREE, dtype=np.int64)
        self._entries = np.zeros(4 * num_blocks + 16, dtype=np.int64)
        self._begin = self._end = len(self._entries) // 2
        self._num_free = 0
        self.extend(block_ids)

    def __len__(self) -> int:
        return self._num_free

    def extend(self, block_ids: BlockIds) -> None:
        """Put blocks at the end, the last of them last."""
        self._make_room(len(block_ids))
        self._put(self._end, block_ids)
        self._end += len(block_ids)

    def extend_front(self, block_ids: BlockIds) -> None:
        """Put blocks at the front, the first of them first."""
        self._make_room(len(block_ids))
        self._begin -= len(block_ids)
        self._put(self._begin, block_ids)

    def remove(self, block_ids: BlockIds) -> None:
        """Take these blocks out, wherever they stand; all must be free."""
        self._entry_of[block_ids] = _NOT_FREE
        self._num_free -= len(block_ids)

    def pop(self, count: int) -> BlockIds:
        """Take the first ``count`` blocks; so many must be there."""
        assert count <= self._num_free, "callers look at the length first"
        taken = self._first(count)
        self._entry_of[taken] = _NOT_FREE
        self._num_free -= count
        return taken

    def first_where(self, is_wanted: NDArray[np.bool_], count: int) -> BlockIds:
        """The first ``count`` blocks that are wanted, or fewer; nothing changes.

        Args:
            is_wanted: By block id.
            count: At most so many.
        """
        found: list[BlockIds] = []
        begin = self._begin
        while count and begin < self._end:
            stop = min(begin + max(count, 64), self._end)
            entries = self._entries[begin:stop]
            counts = self._entry_of[entries] == np.arange(begin, stop)
            wanted = entries[counts & is_wanted[entries]][:count]
            found.append(wanted)
            count -= len(wanted)
            begin = stop
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def blocks(self) -> BlockIds:
        """All free blocks in their order."""
        entries = self._entries[self._begin : self._end]
        counts = self._entry_of[entries] == np.arange(self._begin, self._end)
        blocks: BlockIds = entries[counts]
        return blocks

    def _put(self, begin: int, block_ids: BlockIds) -> None:
        end = begin + len(block_ids)
        self._entries[begin:end] = block_ids
        self._entry_of[block_ids] = np.arange(begin, end)
        self._num_free += len(block_ids)

    def _first(self, count: int) -> BlockIds:
        """The first blocks that count; what lies before them is passed over for good."""
        found = []
        while count:
            stop = min(self._begin + max(count, 8), self._end)
            entries = self._entries[self._begin : stop]
            counts = self._entry_of[entries] == np.arange(self._begin, stop)
            where = np.flatnonzero(counts)[:count]
            found.append(entries[where])
            count -= len(where)
            self._begin = stop if count else self._begin + int(where[-1]) + 1
        return np.concatenate(found) if len(found) != 1 else found[0]

    def _make_room(self, count: int) -> None:
        """Move the entries that count to the middle where an end comes too near."""
        if self._begin >= count and self._end + count <= len(self._entries):
            return
        blocks = self.blocks()
        self._begin = (len(self._entries) - len(blocks)) // 2
        self._end = self._begin + len(blocks)
        self._num_free = 0
        self._put(self._begin, blocks)
