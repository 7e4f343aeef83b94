"""Free blocks in the order in which they will be taken, as one array."""

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.int64]

_GONE = -1


class FreeBlockQueue:
    """A double-ended queue of block ids from which any may be taken out.

    The queue is a stretch of an array. A block that is taken out of the middle leaves a
    gap behind. So many blocks are put in, taken out or passed over in a few array
    operations, and on average the work does not grow with the length of the queue.

    Invariant: walking the stretch without its gaps gives every free block once.

    Args:
        num_blocks: Ids are below this number.
        block_ids: The free ones, the next to be taken first.
    """

    def __init__(self, num_blocks: int, block_ids: BlockIds) -> None:
        # Where a block stands; says nothing of a block that is not in the queue.
        self._entry_of = np.zeros(num_blocks, dtype=np.int64)
        self._entries = np.zeros(4 * num_blocks + 16, dtype=np.int64)
        # The same memory again: single numbers are faster through a view.
        self._entry_at = self._entry_of.data
        self._block_at = self._entries.data
        self._begin = self._end = len(self._entries) // 2
        self.num_free_blocks = 0
        self.extend(block_ids)

    def extend(self, block_ids: BlockIds) -> None:
        """Put blocks at the end, the last of them last."""
        count = len(block_ids)
        self._make_room(count)
        self._put(self._end, block_ids)
        self._end += count

    def extend_front(self, block_ids: BlockIds) -> None:
        """Put blocks at the front, the first of them first."""
        count = len(block_ids)
        self._make_room(count)
        self._begin -= count
        self._put(self._begin, block_ids)

    def push_front(self, block_id: int) -> None:
        """Put one block at the front."""
        self._make_room(1)
        self._begin -= 1
        self._block_at[self._begin] = block_id
        self._entry_at[block_id] = self._begin
        self.num_free_blocks += 1

    def remove(self, block_ids: BlockIds) -> None:
        """Take these blocks out, wherever they stand; all must be free."""
        self._entries[self._entry_of[block_ids]] = _GONE
        self.num_free_blocks -= len(block_ids)

    def pop(self, count: int) -> BlockIds:
        """Take the first ``count`` blocks; so many must be there."""
        assert count <= self.num_free_blocks, "callers look at the length first"
        self.num_free_blocks -= count
        taken = self._entries[self._begin : self._begin + count].copy()
        if not count or taken[taken.argmin()] != _GONE:
            self._begin += count
            return taken
        return self._pop_past_gaps(count)

    def pop_singly(self, count: int) -> list[int]:
        """The same for a few blocks, without the cost of array operations."""
        assert count <= self.num_free_blocks, "callers look at the length first"
        self.num_free_blocks -= count
        begin = self._begin
        taken: list[int] = self._block_at[begin : begin + count].tolist()
        self._begin = begin + count
        while _GONE in taken:
            taken.remove(_GONE)
            taken.append(self._block_at[self._begin])
            self._begin += 1
        return taken

    def first_where(self, is_wanted: NDArray[np.bool_], count: int) -> BlockIds:
        """The first ``count`` blocks that are wanted, or fewer; nothing changes.

        Args:
            is_wanted: By block id.
            count: At most so many.
        """
        self._pass_leading_gaps()
        found = []
        begin, num_seen = self._begin, max(count, 64)
        while count and begin < self._end:
            stop = min(begin + num_seen, self._end)
            blocks = _without_gaps(self._entries[begin:stop])
            found.append(blocks[is_wanted[blocks]][:count])
            count -= len(found[-1])
            begin, num_seen = stop, 2 * num_seen
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _pass_leading_gaps(self) -> None:
        """Leave behind the gaps before the first block, which is there."""
        num_seen = 64
        while self.num_free_blocks:
            stop = min(self._begin + num_seen, self._end)
            is_block = self._entries[self._begin : stop] != _GONE
            first = int(is_block.argmax())
            if is_block[first]:
                self._begin += first
                return
            self._begin, num_seen = stop, 2 * num_seen

    def check_invariants(self) -> None:
        """Raise AssertionError unless each block knows where it stands, once."""
        places = np.flatnonzero(self._entries[self._begin : self._end] != _GONE)
        places += self._begin
        blocks = self._entries[places]
        assert len(set(blocks.tolist())) == len(blocks) == self.num_free_blocks
        assert (self._entry_of[blocks] == places).all()

    def blocks(self) -> BlockIds:
        """All free blocks in their order."""
        return _without_gaps(self._entries[self._begin : self._end])

    def _put(self, begin: int, block_ids: BlockIds) -> None:
        end = begin + len(block_ids)
        self._entries[begin:end] = block_ids
        self._entry_of[block_ids] = np.arange(begin, end)
        self.num_free_blocks += len(block_ids)

    def _pop_past_gaps(self, count: int) -> BlockIds:
        """The first blocks; the gaps before and between them are left behind for good."""
        found = []
        while count:
            stop = min(self._begin + count, self._end)
            found.append(_without_gaps(self._entries[self._begin : stop]))
            count -= len(found[-1])
            self._begin = stop
        return np.concatenate(found)

    def _make_room(self, count: int) -> None:
        """Close the gaps and move to the middle where an end comes too near."""
        if self._begin >= count and self._end + count <= len(self._entries):
            return
        blocks = self.blocks()
        self._begin = (len(self._entries) - len(blocks)) // 2
        self._end = self._begin + len(blocks)
        self.num_free_blocks = 0
        self._put(self._begin, blocks)


def _without_gaps(entries: BlockIds) -> BlockIds:
    blocks: BlockIds = entries[entries != _GONE]
    return blocks
