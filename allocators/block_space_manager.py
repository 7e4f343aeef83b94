"""The block manager that vLLM had up to 0.6.3 ("v0"): tables, watermark, swap, sharing.

Source: behaviour of vLLM 0.5.5, ``vllm/core/block_manager_v1.py``; SPEC in docs/v0.md.
"""

from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto

from allocators.block import BlockTable, Device, PhysicalTokenBlock
from allocators.cached_allocator import CachedBlockAllocator
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus
from allocators.uncached_allocator import UncachedBlockAllocator

BlockPair = tuple[int, int]
Allocator = UncachedBlockAllocator | CachedBlockAllocator


class AllocStatus(Enum):
    """Whether blocks can be had: now, after others are freed, or never."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class BlockSpaceManager:
    """Maps sequences to physical blocks of a GPU pool and a CPU pool.

    The watermark keeps a few GPU blocks back from admission (prefill and swap-in), never
    from growth.

    Invariant: a block's ``ref_count`` is the number of tables that hold it, plus
    references that nothing will ever drop (see :meth:`allocate`).

    Args:
        block_size: Tokens a block.
        num_gpu_blocks: Blocks on the GPU.
        num_cpu_blocks: Blocks in CPU memory, for swapping.
        watermark: Share of the GPU blocks that admission leaves free.
        enable_caching: Share blocks of equal content (prefix caching).
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        watermark: float = 0.01,
        enable_caching: bool = False,
    ) -> None:
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.enable_caching = enable_caching
        allocator = CachedBlockAllocator if enable_caching else UncachedBlockAllocator
        self.gpu_allocator = allocator(Device.GPU, block_size, num_gpu_blocks)
        self.cpu_allocator = allocator(Device.CPU, block_size, num_cpu_blocks)
        self.block_tables: dict[int, BlockTable] = {}
        self._num_swapped_blocks: dict[int, int] = {}
        self._undroppable: Counter[PhysicalTokenBlock] = Counter()

    # -- admission -------------------------------------------------------------------

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Whether the waiting sequence gets its blocks; cached ones count in full."""
        num_required = self.num_admission_blocks(group)
        return self._status(num_required, num_kept_free=self.watermark_blocks)

    def num_admission_blocks(self, group: SequenceGroup) -> int:
        """Blocks for all tokens of the group's waiting sequence."""
        waiting = group.seqs_with(SequenceStatus.WAITING)[0]
        return waiting.num_blocks(self.block_size)

    def allocate(self, group: SequenceGroup) -> None:
        """Give the group's waiting sequence a table for all tokens it has.

        Without caching each block is held once for every sequence of the group, as vLLM
        does it. If others of them have finished (one survivor is being recomputed), those
        holds are never dropped and the blocks are lost to the pool until :meth:`reclaim`.
        """
        seq = group.seqs_with(SequenceStatus.WAITING)[0]
        if self.enable_caching:
            self.block_tables[seq.seq_id] = self._allocate_cached(seq)
            return
        allocate = self.gpu_allocator.allocate
        blocks = [allocate() for _ in range(seq.num_blocks(self.block_size))]
        self.block_tables[seq.seq_id] = BlockTable(blocks)
        for _ in range(len(group.seqs) - 1):
            for block in blocks:
                block.ref_count += 1
            self._undroppable.update(blocks)

    def _allocate_cached(self, seq: Sequence) -> BlockTable:
        allocate, block_size = self.gpu_allocator.allocate, self.block_size
        hashes = seq.block_hashes(block_size)
        ends = range(block_size, block_size * len(hashes) + 1, block_size)
        return BlockTable([allocate(h, end) for h, end in zip(hashes, ends, strict=True)])

    def _status(self, num_required: int, num_kept_free: int) -> AllocStatus:
        """``NEVER`` if even the empty pool could not keep so many free beside them."""
        gpu = self.gpu_allocator
        if gpu.num_blocks - num_required < num_kept_free:
            return AllocStatus.NEVER
        if gpu.num_free_blocks - num_required >= self.watermark_blocks:
            return AllocStatus.OK
        return AllocStatus.LATER

    # -- growth ----------------------------------------------------------------------

    def can_append_slots(self, group: SequenceGroup) -> bool:
        """Whether a free block is there for each running sequence, needed or not."""
        num_running = len(group.seqs_with(SequenceStatus.RUNNING))
        return num_running <= self.gpu_allocator.num_free_blocks

    def append_slots(self, seq: Sequence) -> list[BlockPair]:
        """Make room for the sequence's newest token.

        Returns:
            The copy to make first, ``[(from, to)]``, if the token's block was shared
            (copy-on-write); else nothing.
        """
        table = self.block_tables[seq.seq_id]
        if len(table) < seq.num_blocks(self.block_size):
            table.append(self._block_for_newest_token(seq))
            return []
        last = table.last
        if last.ref_count > 1:
            copy = self._block_for_newest_token(seq)
            table.stamp(last)
            table.replace_last(copy)
            self.gpu_allocator.free(last)
            return [(last.block_number, copy.block_number)]
        if self.enable_caching and seq.num_tokens % self.block_size == 0:
            self._name_full_block(seq, table)
        return []

    def _block_for_newest_token(self, seq: Sequence) -> PhysicalTokenBlock:
        """A block for the newest token, named by its content if it is full already."""
        if not self.enable_caching:
            return self.gpu_allocator.allocate()
        is_full = seq.num_tokens % self.block_size == 0
        num_hashed_tokens = seq.num_blocks(self.block_size) * self.block_size
        return self.gpu_allocator.allocate(
            seq.prefix_hash() if is_full else None, num_hashed_tokens
        )

    def _name_full_block(self, seq: Sequence, table: BlockTable) -> None:
        """Name the block that just became full; if its content is cached, use that."""
        assert isinstance(self.gpu_allocator, CachedBlockAllocator)
        block_hash = seq.prefix_hash()
        if not self.gpu_allocator.contains_block(block_hash):
            self.gpu_allocator.rename(block_hash, table.last)
            return
        table.stamp(table.last)
        self.gpu_allocator.free(table.last)
        table.replace_last(self.gpu_allocator.allocate(block_hash))

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let the child share all the parent's blocks; nothing is allocated."""
        table = self.block_tables[parent.seq_id]
        for block in table:
            block.ref_count += 1
        self.block_tables[child.seq_id] = table.copy()

    # -- swapping --------------------------------------------------------------------

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the CPU pool has room for every block of the group."""
        return self.num_blocks(group) <= self.cpu_allocator.num_free_blocks

    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the running sequences to CPU blocks; ``(gpu, cpu)`` pairs to copy."""
        running = group.seqs_with(SequenceStatus.RUNNING)
        pairs = self._swap(running, self.gpu_allocator, self.cpu_allocator)
        self._num_swapped_blocks[group.request_id] = len(pairs)
        return pairs

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Whether the GPU pool has the group's blocks and one more a sequence."""
        return self._status(self.num_swap_in_blocks(group), num_kept_free=0)

    def num_swap_in_blocks(self, group: SequenceGroup) -> int:
        """GPU blocks that must be free, above the watermark, to bring the group back."""
        num_swapped = len(group.seqs_with(SequenceStatus.SWAPPED))
        return self._num_swapped_blocks[group.request_id] + num_swapped

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the swapped sequences to GPU blocks; ``(cpu, gpu)`` pairs to copy."""
        swapped = group.seqs_with(SequenceStatus.SWAPPED)
        del self._num_swapped_blocks[group.request_id]
        return self._swap(swapped, self.cpu_allocator, self.gpu_allocator)

    def num_blocks(self, group: SequenceGroup) -> int:
        """Distinct blocks that the group's unfinished sequences hold."""
        tables = [self.block_tables[seq.seq_id] for seq in group.unfinished_seqs]
        if len(tables) == 1:
            return len(tables[0])
        return len({block for table in tables for block in table})

    def _swap(
        self, seqs: list[Sequence], source: Allocator, target: Allocator
    ) -> list[BlockPair]:
        moved: dict[PhysicalTokenBlock, PhysicalTokenBlock] = {}
        for seq in seqs:
            old = self.block_tables[seq.seq_id]
            self.block_tables[seq.seq_id] = new = BlockTable()
            for block in old:
                if block in moved:
                    moved[block].ref_count += 1
                else:
                    moved[block] = target.allocate(
                        block.block_hash, block.num_hashed_tokens
                    )
                new.append(moved[block])
                old.stamp(block)
                source.free(block)
        return [(a.block_number, b.block_number) for a, b in moved.items()]

    # -- the end of a sequence -------------------------------------------------------

    def free(self, seq: Sequence) -> None:
        """Drop the sequence's table; without one nothing happens."""
        table = self.block_tables.pop(seq.seq_id, None)
        if table is not None:
            self._release(table)

    def reclaim(self) -> int:
        """Drop every table and reference still there; how many blocks that set free.

        For the end of a run: what is left then was lost to the pool, as in vLLM.
        """
        free_before = self.num_free_gpu_blocks + self.num_free_cpu_blocks
        for table in self.block_tables.values():
            self._release(table)
        self.block_tables.clear()
        for block, num_refs in self._undroppable.items():
            for _ in range(num_refs):
                self._allocator_of(block).free(block)
        self._undroppable.clear()
        return self.num_free_gpu_blocks + self.num_free_cpu_blocks - free_before

    def _release(self, table: BlockTable) -> None:
        free = self._allocator_of(table.last).free  # a table lies on one device
        for block in table:
            table.stamp(block)
            free(block)

    def _allocator_of(self, block: PhysicalTokenBlock) -> Allocator:
        return self.gpu_allocator if block.device is Device.GPU else self.cpu_allocator

    # -- prefix caching: what a prefill may skip -------------------------------------

    def access(self, seq: Sequence, now: int) -> None:
        """Note that the sequence, and so each of its blocks, is scheduled at ``now``."""
        self.block_tables[seq.seq_id].last_accessed = now

    def mark_blocks_as_computed(self, seqs: Iterable[Sequence]) -> None:
        """Call every full block but the last full one of each table computed.

        By length alone, even where a chunked prefill has not got there. Walks back until
        a block is computed already; one before that which is not stays so.
        """
        if not self.enable_caching:
            return
        for seq in seqs:
            table = self.block_tables.get(seq.seq_id)
            if table is None:
                continue
            index = seq.num_tokens // self.block_size - 2
            while index >= 0 and not table[index].computed:
                table[index].computed = True
                index -= 1

    def num_computed_blocks(self, seq: Sequence) -> int:
        """Leading blocks that a prefill of the sequence may skip, never the last one."""
        if not self.enable_caching:
            return 0
        return self.block_tables[seq.seq_id].num_leading_computed()

    # -- counts ----------------------------------------------------------------------

    @property
    def num_free_gpu_blocks(self) -> int:
        """GPU blocks that an allocation may take now."""
        return self.gpu_allocator.num_free_blocks

    @property
    def num_room_blocks(self) -> int:
        """GPU blocks that an admission may take now: free ones above the watermark."""
        return max(0, self.num_free_gpu_blocks - self.watermark_blocks)

    @property
    def num_free_cpu_blocks(self) -> int:
        """CPU blocks that an allocation may take now."""
        return self.cpu_allocator.num_free_blocks

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is free or owned, and counted right."""
        held = Counter(b for table in self.block_tables.values() for b in table)
        held.update(self._undroppable)
        assert all(block.ref_count == n for block, n in held.items())
        for allocator in (self.gpu_allocator, self.cpu_allocator):
            allocator.check_invariants()
            num_held = sum(self._allocator_of(block) is allocator for block in held)
            assert num_held + allocator.num_free_blocks == allocator.num_blocks
