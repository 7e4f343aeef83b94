"""Tests for :mod:`allocators.given_up`, and of what the allocators count with it."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocators.block import Device
from allocators.block_hash import PrefixHashes, PrefixIndex
from allocators.block_space_manager import BlockSpaceManager
from allocators.cached_allocator import CachedBlockAllocator
from allocators.given_up import GivenUp
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus

SEGMENT = 1 << 32
"""Numbers of contents that end in one segment; smaller ones have no content."""

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "take"]), st.integers(0, 3), st.integers(0, 300)),
    max_size=200,
)


# -- the set -------------------------------------------------------------------------


@given(OPERATIONS)
def test_contents_are_those_of_a_set(operations: list[tuple[str, int, int]]) -> None:
    """Whatever is added and taken, a set of Python's own gives the same answers."""
    given_up, model = GivenUp(), set[int]()
    for operation, segment, offset in operations:
        block_hash = segment * SEGMENT + offset
        if operation == "add":
            given_up.add(block_hash)
            if segment:
                model.add(block_hash)
        else:
            assert given_up.take(block_hash) is (block_hash in model)
            model.discard(block_hash)

    left = {
        segment * SEGMENT + offset
        for segment in range(4)
        for offset in range(301)
        if given_up.take(segment * SEGMENT + offset)
    }
    assert left == model


def test_contents_are_taken_once() -> None:
    """What was taken is there no longer, however often it was added."""
    given_up = GivenUp()
    given_up.add(SEGMENT + 16)
    given_up.add(SEGMENT + 16)

    assert given_up.take(SEGMENT + 16)
    assert not given_up.take(SEGMENT + 16)


def test_neighbours_are_kept_apart() -> None:
    """A content is no other that ends a token earlier or later, or in another segment."""
    given_up = GivenUp()
    given_up.add(2 * SEGMENT + 16)

    near = (2 * SEGMENT + 15, 2 * SEGMENT + 17, SEGMENT + 16, 3 * SEGMENT + 16, 16)
    assert not any(given_up.take(block_hash) for block_hash in near)
    assert given_up.take(2 * SEGMENT + 16)


def test_blocks_without_content_are_left_out() -> None:
    """A number that names no content is never there."""
    given_up = GivenUp()
    for block_hash in (0, 7, SEGMENT - 1):
        given_up.add(block_hash)

        assert not given_up.take(block_hash)


def test_a_segment_takes_a_bit_for_each_token() -> None:
    """160,000 tokens are 20,000 bytes, however many blocks end in them."""
    given_up = GivenUp()
    for num_tokens in range(16, 160_001, 16):
        given_up.add(SEGMENT + num_tokens)

    assert 20_000 < len(pickle.dumps(given_up)) < 20_300


# -- what an allocator counts --------------------------------------------------------


def held_and_freed(allocator: CachedBlockAllocator, *block_hashes: int) -> None:
    """Hold a block for each content, then let all of them go."""
    blocks = [allocator.allocate(block_hash, 16) for block_hash in block_hashes]
    for block in blocks:
        allocator.free(block)


def counts(allocator: CachedBlockAllocator) -> tuple[int, int]:
    """Return how many blocks were evicted, and how many of these were missed."""
    return allocator.num_evictions, allocator.num_regretted_evictions


def test_what_comes_back_was_regretted() -> None:
    """In 4 blocks, A's make room for B's; A again misses all four, then B all of its."""
    allocator = CachedBlockAllocator(Device.GPU, 16, 4)
    a = [1 * SEGMENT + 16 * k for k in range(1, 5)]
    b = [2 * SEGMENT + 16 * k for k in range(1, 5)]

    seen = []
    for contents in (a, b, a, a, b):
        held_and_freed(allocator, *contents)
        seen.append(counts(allocator))

    assert seen == [(0, 0), (4, 0), (8, 4), (8, 4), (12, 8)]


def test_what_never_comes_back_is_not_regretted() -> None:
    """Contents that are new each time evict others and miss none."""
    allocator = CachedBlockAllocator(Device.GPU, 16, 4)

    for segment in range(1, 11):
        held_and_freed(allocator, segment * SEGMENT + 16)

    assert counts(allocator) == (6, 0)


def test_only_the_part_that_was_given_up_is_missed() -> None:
    """B takes 2 of A's 4 blocks, the tail; A again finds 2 and computes 2."""
    allocator = CachedBlockAllocator(Device.GPU, 16, 4)
    a = [SEGMENT + 16 * k for k in range(1, 5)]
    for block in [allocator.allocate(h, h - SEGMENT) for h in a]:
        allocator.free(block)

    held_and_freed(allocator, 2 * SEGMENT + 16, 2 * SEGMENT + 32)
    held_and_freed(allocator, *a)

    assert counts(allocator) == (4, 2)


def test_blocks_without_content_are_never_regretted() -> None:
    """What was given up without a content cannot be needed again."""
    allocator = CachedBlockAllocator(Device.GPU, 16, 1)

    for _ in range(5):
        allocator.free(allocator.allocate())

    assert counts(allocator) == (4, 0)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 200))
def test_regrets_are_those_of_a_list_of_evictions(
    seed: int, num_blocks: int, num_calls: int
) -> None:
    """Each eviction is regretted at most once: when its content is next computed."""
    draw = random.Random(seed)
    allocator = CachedBlockAllocator(Device.GPU, 16, num_blocks)
    contents = [SEGMENT * draw.randint(1, 3) + 16 * draw.randint(1, 4) for _ in range(9)]
    missing: set[int] = set()
    regretted = 0
    for _ in range(num_calls):
        block_hash = draw.choice(contents)
        before = {h for h in contents if allocator.contains_block(h)}
        if block_hash in missing:
            regretted += 1
            missing.remove(block_hash)

        held_and_freed(allocator, block_hash)

        missing |= {h for h in before if not allocator.contains_block(h)}
        assert allocator.num_regretted_evictions == regretted
    assert regretted <= allocator.num_evictions


# -- through the block manager -------------------------------------------------------


@pytest.mark.parametrize(("enable_caching", "seen"), [(True, (8, 4)), (False, (0, 0))])
def test_prompts_that_evict_each_other_are_regretted(
    enable_caching: bool, seen: tuple[int, int]
) -> None:
    """Prompts A, B, A of 64 tokens in 4 blocks: A's second time misses all 4 blocks."""
    manager = BlockSpaceManager(16, 4, 0, watermark=0, enable_caching=enable_caching)
    index = PrefixIndex()
    for seq_id, segment in enumerate((1, 2, 1)):
        hashes = PrefixHashes(index, index.root(), [(segment, 64)])
        seq = Sequence(seq_id, 64, hashes)
        manager.allocate(SequenceGroup(seq_id, [seq]))
        seq.status = SequenceStatus.RUNNING
        manager.access(seq, seq_id)
        manager.free(seq)

    gpu = manager.gpu_allocator
    assert (gpu.num_evictions, gpu.num_regretted_evictions) == seen
    assert manager.cpu_allocator.num_regretted_evictions == 0
    manager.check_invariants()
