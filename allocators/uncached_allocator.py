"""Blocks without content: a stack of free ones."""

from allocators.block import Device, PhysicalTokenBlock
from allocators.block_hash import BlockHash
from allocators.errors import OutOfBlocksError


class UncachedBlockAllocator:
    """All blocks of one device, made up front; the one freed last is used first.

    Invariant: ``free_blocks`` holds exactly the blocks whose ``ref_count`` is 0.
    """

    num_evictions = 0
    num_cached_blocks = 0
    num_regretted_evictions = 0

    def __init__(self, device: Device, block_size: int, num_blocks: int) -> None:
        self.device = device
        self.num_blocks = num_blocks
        self.free_blocks = [
            PhysicalTokenBlock(device, number, block_size) for number in range(num_blocks)
        ]

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation may take now."""
        return len(self.free_blocks)

    def allocate(
        self, block_hash: BlockHash | None = None, num_hashed_tokens: int = 0
    ) -> PhysicalTokenBlock:
        """Take the block freed last and hold it once; the content is of no interest.

        Raises:
            OutOfBlocksError: No block is free; nothing changed.
        """
        if not self.free_blocks:
            raise OutOfBlocksError(self.device, self.num_blocks)
        block = self.free_blocks.pop()
        block.ref_count = 1
        return block

    def free(self, block: PhysicalTokenBlock) -> None:
        """Hold the block once less; held by nobody, it goes on top of the stack.

        Raises:
            DoubleFreeError: Nobody held it; nothing changed.
        """
        if block.drop_hold():
            self.free_blocks.append(block)

    def check_invariants(self) -> None:
        """Raise AssertionError if a free block is held or stands there twice."""
        numbers = {block.block_number for block in self.free_blocks}
        assert len(numbers) == len(self.free_blocks) <= self.num_blocks
        assert all(block.ref_count == 0 for block in self.free_blocks)
