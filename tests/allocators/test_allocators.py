"""Tests for the two block allocators."""

import pytest

from allocators.block import Device
from allocators.cached_allocator import CachedBlockAllocator
from allocators.errors import DoubleFreeError, OutOfBlocksError
from allocators.uncached_allocator import UncachedBlockAllocator

BOTH = pytest.mark.parametrize("kind", [UncachedBlockAllocator, CachedBlockAllocator])
Allocator = UncachedBlockAllocator | CachedBlockAllocator


def cached(num_blocks: int = 4) -> CachedBlockAllocator:
    """Make a small allocator that shares by content."""
    return CachedBlockAllocator(Device.GPU, 16, num_blocks)


@BOTH
def test_every_block_can_be_had_once(kind: type[Allocator]) -> None:
    """All blocks are handed out, each with its own number, then there are none."""
    allocator = kind(Device.GPU, 16, 3)

    assert sorted(allocator.allocate().block_number for _ in range(3)) == [0, 1, 2]
    with pytest.raises(OutOfBlocksError, match="all 3 gpu blocks are in use"):
        allocator.allocate()
    assert allocator.num_free_blocks == 0


@BOTH
def test_double_free_is_refused(kind: type[Allocator]) -> None:
    """A block that nobody holds cannot be freed, and nothing changes by trying."""
    allocator = kind(Device.CPU, 16, 2)
    block = allocator.allocate()
    allocator.free(block)

    with pytest.raises(DoubleFreeError, match="cpu block . is already free"):
        allocator.free(block)

    assert allocator.num_free_blocks == 2
    allocator.check_invariants()


@BOTH
def test_pool_of_no_blocks_gives_none(kind: type[Allocator]) -> None:
    """An empty pool is possible and has nothing to give."""
    allocator = kind(Device.CPU, 16, 0)

    assert allocator.num_free_blocks == 0
    with pytest.raises(OutOfBlocksError):
        allocator.allocate()


def test_uncached_blocks_are_a_stack() -> None:
    """The last block freed is the first used again; at first the highest number."""
    allocator = UncachedBlockAllocator(Device.GPU, 16, 3)
    first, second = allocator.allocate(), allocator.allocate()
    allocator.free(first)
    allocator.free(second)

    assert (first.block_number, second.block_number) == (2, 1)
    assert allocator.allocate() is second


def test_cached_blocks_are_numbered_as_needed() -> None:
    """Blocks without content are made in order 0, 1, 2."""
    allocator = cached()

    assert [allocator.allocate().block_number for _ in range(3)] == [0, 1, 2]


def test_equal_content_is_shared_while_in_use() -> None:
    """The same hash gives the same block, held twice, computed or not."""
    allocator = cached()
    first, second = allocator.allocate(1 << 40, 16), allocator.allocate(1 << 40, 16)

    assert first is second
    assert first.ref_count == 2


def test_freed_content_is_found_again() -> None:
    """A block freed by all is revived by its hash, and is free meanwhile."""
    allocator = cached()
    block = allocator.allocate(1 << 40, 16)
    allocator.free(block)

    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (4, 1)
    assert allocator.allocate(1 << 40, 16) is block
    assert allocator.num_cached_blocks == 0


def test_content_is_given_up_only_when_no_block_was_left_unmade() -> None:
    """Unmade blocks are used before anything is evicted."""
    allocator = cached(2)
    allocator.free(allocator.allocate(1 << 40, 16))
    allocator.allocate(2 << 40, 16)
    assert allocator.num_evictions == 0

    allocator.allocate(3 << 40, 16)

    assert allocator.num_evictions == 1
    assert not allocator.contains_block(1 << 40)


def test_new_name_keeps_the_block() -> None:
    """Naming a block by content makes it found under that and no longer before."""
    allocator = cached()
    block = allocator.allocate()

    allocator.rename(9 << 40, block)

    assert allocator.allocate(9 << 40, 16) is block
    assert not allocator.contains_block(0)
    allocator.check_invariants()


def test_name_that_has_a_block_is_refused() -> None:
    """Two blocks never carry one content."""
    allocator = cached()
    allocator.allocate(9 << 40, 16)

    with pytest.raises(AssertionError, match="has a block already"):
        allocator.rename(9 << 40, allocator.allocate())


def test_invariants_notice_a_lost_block() -> None:
    """A block that is neither in use nor idle is noticed."""
    allocator = cached()
    block = allocator.allocate(9 << 40, 16)
    del allocator.cached_blocks[block.block_hash]

    with pytest.raises(AssertionError):
        allocator.check_invariants()
