"""Which cached block nobody holds is given up first."""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from allocators.block import PhysicalTokenBlock
from allocators.block_hash import BlockHash

_Entry = tuple[int, int, BlockHash]
_COMPACT_ABOVE = 64


@dataclass(slots=True)
class _Cohort:
    """Blocks freed one after another with the same ``last_accessed``.

    ``entries`` is a heap of ``(-num_hashed_tokens, ticket, block_hash)``; entries whose
    block has left the evictor since are skipped when they come up.
    """

    number: int
    last_accessed: int
    num_blocks: int = 0
    entries: list[_Entry] = field(default_factory=list)


class LRUEvictor:
    """Blocks with ``ref_count`` 0 whose content may still be reused, by content.

    The next to go is found as vLLM 0.5.5 finds it: blocks stand in the order in which
    they were freed; from the first on, a block with more hashed tokens takes the place of
    the candidate, until a block turns up that was accessed later than the candidate. So,
    as long as blocks are freed in the order of their last access, the least recently
    accessed goes, and among equals the tail of a prefix before its head. A block that is
    freed late (its sequence was preempted after waiting through some steps) is found only
    if it is longer than an earlier candidate; vLLM does not sort.

    Invariant: each block stands in one cohort, with one entry that is not stale; no
    cohort is empty.
    """

    def __init__(self) -> None:
        self._free_table: dict[BlockHash, tuple[PhysicalTokenBlock, int, _Cohort]] = {}
        self._cohorts: OrderedDict[int, _Cohort] = OrderedDict()
        self._num_entries = 0
        self._next_ticket = 0

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._free_table

    @property
    def num_blocks(self) -> int:
        """Blocks that could be evicted or reused."""
        return len(self._free_table)

    def blocks(self) -> list[PhysicalTokenBlock]:
        """The blocks, in the order in which they were freed."""
        return [block for block, _, _ in self._free_table.values()]

    def add(self, block: PhysicalTokenBlock) -> None:
        """Keep a block that nobody holds any more, under its hash."""
        assert block.block_hash not in self._free_table, "two free blocks, one content"
        cohort = self._last_cohort(block.last_accessed)
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        heappush(cohort.entries, (-block.num_hashed_tokens, ticket, block.block_hash))
        cohort.num_blocks += 1
        self._num_entries += 1
        self._free_table[block.block_hash] = (block, ticket, cohort)
        if self._num_entries > 2 * len(self._free_table) + _COMPACT_ABOVE:
            self._compact()

    def remove(self, block_hash: BlockHash) -> PhysicalTokenBlock:
        """Take the block with this content back into use."""
        block, _, cohort = self._free_table.pop(block_hash)
        cohort.num_blocks -= 1
        if not cohort.num_blocks:
            del self._cohorts[cohort.number]
            self._num_entries -= len(cohort.entries)
        return block

    def evict(self) -> PhysicalTokenBlock:
        """Give up a block; its content can no longer be reused.

        There must be one: callers look at the free count first.
        """
        assert self._free_table, "nothing to evict"
        cohorts = iter(self._cohorts.values())
        best = next(cohorts)
        best_entry = self._first_entry(best)
        for cohort in cohorts:
            if cohort.last_accessed > best.last_accessed:
                break
            entry = self._first_entry(cohort)
            if entry[0] < best_entry[0]:
                best, best_entry = cohort, entry
        block = self.remove(best_entry[2])
        block.computed = False
        return block

    def check_invariants(self) -> None:
        """Raise AssertionError if the cohorts and the table of blocks disagree."""
        live = [
            (entry, cohort)
            for cohort in self._cohorts.values()
            for entry in cohort.entries
            if self._is_live(entry)
        ]
        assert len(live) == len(self._free_table)
        assert all(self._free_table[entry[2]][2] is cohort for entry, cohort in live)
        sizes = [cohort.num_blocks for cohort in self._cohorts.values()]
        assert min(sizes, default=1) > 0
        assert sum(sizes) == len(self._free_table)

    def _last_cohort(self, last_accessed: int) -> _Cohort:
        cohorts = self._cohorts
        newest = cohorts[next(reversed(cohorts))] if cohorts else None
        if newest is None or newest.last_accessed != last_accessed:
            newest = _Cohort(self._next_ticket, last_accessed)
            cohorts[newest.number] = newest
        return newest

    def _first_entry(self, cohort: _Cohort) -> _Entry:
        """The cohort's longest block; entries of blocks that left are dropped."""
        while not self._is_live(cohort.entries[0]):
            heappop(cohort.entries)
            self._num_entries -= 1
        return cohort.entries[0]

    def _is_live(self, entry: _Entry) -> bool:
        _, ticket, block_hash = entry
        held = self._free_table.get(block_hash)
        return held is not None and held[1] == ticket

    def _compact(self) -> None:
        """Drop all stale entries; costs less than the additions that made them."""
        for cohort in self._cohorts.values():
            cohort.entries = [entry for entry in cohort.entries if self._is_live(entry)]
            heapify(cohort.entries)
        self._num_entries = len(self._free_table)
