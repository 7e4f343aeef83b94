"""Blocks found by their content: prefix caching."""

from itertools import count

from allocators.block import Device, PhysicalTokenBlock
from allocators.block_hash import BlockHash
from allocators.errors import OutOfBlocksError
from allocators.evictor import LRUEvictor
from allocators.given_up import GivenUp


class CachedBlockAllocator:
    """All blocks of one device; equal content stands in one block and is shared.

    Blocks are made when first needed, numbered 0, 1, 2…; once ``num_blocks`` exist, a new
    one comes from evicting.

    Invariant: ``cached_blocks`` holds the blocks with ``ref_count`` > 0 and the evictor
    those with 0, each under its ``block_hash``; no content is in both.

    Attributes:
        cached_blocks: Blocks in use, by content.
        num_evictions: Blocks whose content was given up.
        num_regretted_evictions: Of these, how many were allocated again for the same
            content.
    """

    def __init__(self, device: Device, block_size: int, num_blocks: int) -> None:
        self.device = device
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.cached_blocks: dict[BlockHash, PhysicalTokenBlock] = {}
        self.num_evictions = self.num_regretted_evictions = 0
        self._evictor = LRUEvictor()
        self._given_up = GivenUp()
        self._num_made = 0
        self._unnamed = count()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation may take now, never made or evictable."""
        return self.num_blocks - self._num_made + self._evictor.num_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks whose content could still be reused."""
        return self._evictor.num_blocks

    def allocate(
        self, block_hash: BlockHash | None = None, num_hashed_tokens: int = 0
    ) -> PhysicalTokenBlock:
        """Hold the block with this content once more, or a new one if there is none.

        A block found in use is shared whether it is computed or not. Without a hash the
        content is unlike any other (a running number names it until it is known).

        Raises:
            OutOfBlocksError: A new block is needed and none is free; no block changed.
        """
        if block_hash is None:
            block_hash = next(self._unnamed)
        block = self.cached_blocks.get(block_hash)
        if block is None:
            if block_hash in self._evictor:
                block = self._evictor.remove(block_hash)
            else:
                block = self._new_block(block_hash, num_hashed_tokens)
            self.cached_blocks[block_hash] = block
        block.ref_count += 1
        return block

    def free(self, block: PhysicalTokenBlock) -> None:
        """Hold the block once less; held by nobody, it waits for reuse or eviction.

        Raises:
            DoubleFreeError: Nobody held it; nothing changed.
        """
        if block.drop_hold():
            del self.cached_blocks[block.block_hash]
            self._evictor.add(block)

    def contains_block(self, block_hash: BlockHash) -> bool:
        """Whether the content is cached, in use or not."""
        return block_hash in self.cached_blocks or block_hash in self._evictor

    def rename(self, block_hash: BlockHash, block: PhysicalTokenBlock) -> None:
        """Name a block in use by content that is not cached yet."""
        assert not self.contains_block(block_hash), "that content has a block already"
        del self.cached_blocks[block.block_hash]
        block.block_hash = block_hash
        self.cached_blocks[block_hash] = block

    def check_invariants(self) -> None:
        """Raise AssertionError if counts, names and the evictor disagree."""
        used, idle = list(self.cached_blocks.items()), self._evictor.blocks()
        assert all(block.ref_count > 0 for _, block in used)
        assert all(block.block_hash == block_hash for block_hash, block in used)
        assert all(block.ref_count == 0 for block in idle)
        numbers = {block.block_number for _, block in used}
        numbers |= {block.block_number for block in idle}
        assert len(numbers) == len(used) + len(idle) == self._num_made
        assert numbers <= set(range(self.num_blocks))
        self._evictor.check_invariants()

    def _new_block(
        self, block_hash: BlockHash, num_hashed_tokens: int
    ) -> PhysicalTokenBlock:
        if self._num_made < self.num_blocks:  # nothing was given up so far
            self._num_made += 1
            return PhysicalTokenBlock(
                self.device,
                self._num_made - 1,
                self.block_size,
                block_hash,
                num_hashed_tokens,
            )
        if not self._evictor.num_blocks:
            raise OutOfBlocksError(self.device, self.num_blocks)
        self.num_evictions += 1
        self.num_regretted_evictions += self._given_up.take(block_hash)
        block = self._evictor.evict()
        self._given_up.add(block.block_hash)
        block.block_hash = block_hash
        block.num_hashed_tokens = num_hashed_tokens
        return block
