"""Tests for :mod:`allocators.evictor`."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocators.block import Device, PhysicalTokenBlock
from allocators.evictor import LRUEvictor


class NaiveEvictor:
    """The rule as a loop over all free blocks, in the order in which they were freed."""

    def __init__(self) -> None:
        self.free: dict[int, PhysicalTokenBlock] = {}

    def evict(self) -> PhysicalTokenBlock:
        candidates = iter(self.free.values())
        best = next(candidates)
        for block in candidates:
            if block.last_accessed > best.last_accessed:
                break
            if block.num_hashed_tokens > best.num_hashed_tokens:
                best = block
        return self.free.pop(best.block_hash)


def block(number: int, last_accessed: int = 0, tokens: int = 16) -> PhysicalTokenBlock:
    """Make a block whose hash is its number."""
    return PhysicalTokenBlock(
        Device.GPU, number, 16, number, tokens, last_accessed=last_accessed
    )


OPERATION = st.tuples(
    st.sampled_from(["add", "add", "remove", "evict"]),
    st.integers(0, 4),
    st.integers(1, 4),
)


@given(st.lists(OPERATION, max_size=120))
def test_evicts_what_the_naive_rule_evicts(
    operations: list[tuple[str, int, int]],
) -> None:
    """Whatever is added and removed, in whatever order of access, the victims agree."""
    evictor, naive = LRUEvictor(), NaiveEvictor()
    for number, (operation, last_accessed, tokens) in enumerate(operations):
        if operation == "add":
            added = block(number, last_accessed, tokens)
            evictor.add(added)
            naive.free[number] = added
        elif naive.free and operation == "remove":
            victim = list(naive.free)[last_accessed % len(naive.free)]
            assert evictor.remove(victim) is naive.free.pop(victim)
        elif naive.free:
            assert evictor.evict() is naive.evict()

        evictor.check_invariants()
        assert evictor.num_blocks == len(naive.free)
        assert evictor.blocks() == list(naive.free.values())


@given(st.integers(0, 2**32))
def test_compacting_changes_no_victim(seed: int) -> None:
    """With many blocks revived and freed again, the victims are still the naive ones."""
    rng = random.Random(seed)
    evictor, naive = LRUEvictor(), NaiveEvictor()
    blocks = [block(number, tokens=rng.randint(1, 50)) for number in range(60)]
    for held in blocks:
        evictor.add(held)
        naive.free[held.block_hash] = held
    for _ in range(400):
        held = rng.choice(list(naive.free.values()))
        evictor.remove(held.block_hash)
        del naive.free[held.block_hash]
        evictor.add(held)
        naive.free[held.block_hash] = held

    while naive.free:
        assert evictor.evict() is naive.evict()


def test_least_recently_accessed_goes_first() -> None:
    """Of blocks freed in order of access, the oldest is evicted."""
    evictor = LRUEvictor()
    for number in range(3):
        evictor.add(block(number, last_accessed=number))

    assert [evictor.evict().block_number for _ in range(3)] == [0, 1, 2]


def test_tail_of_a_prefix_goes_before_its_head() -> None:
    """Among blocks accessed together, the one with most hashed tokens is evicted."""
    evictor = LRUEvictor()
    for number, tokens in enumerate((16, 32, 48)):
        evictor.add(block(number, tokens=tokens))

    assert [evictor.evict().block_number for _ in range(3)] == [2, 1, 0]


def test_block_freed_late_is_not_sorted_in() -> None:
    """A block freed after younger ones is passed over, as in vLLM 0.5.5."""
    evictor = LRUEvictor()
    evictor.add(block(8, last_accessed=301, tokens=4))
    evictor.add(block(0, last_accessed=300, tokens=4))

    assert evictor.evict().block_number == 8


def test_evicting_forgets_that_a_block_was_computed() -> None:
    """An evicted block is not computed any more; a removed one still is."""
    evictor = LRUEvictor()
    evicted, removed = block(0), block(1, last_accessed=1)
    for held in (evicted, removed):
        held.computed = True
        evictor.add(held)

    evictor.remove(1)
    evictor.evict()

    assert not evicted.computed
    assert removed.computed


def test_block_added_again_under_another_hash_is_found_once() -> None:
    """A stale entry is never evicted: the block counts under its newest hash only."""
    evictor = LRUEvictor()
    held = block(862)
    evictor.add(held)
    evictor.remove(862)
    held.block_hash = 7
    evictor.add(held)

    assert evictor.evict() is held
    assert evictor.num_blocks == 0
    with pytest.raises(AssertionError, match="nothing to evict"):
        evictor.evict()


def test_reuse_without_eviction_does_not_grow_the_evictor() -> None:
    """Adding and removing one block for ever keeps a bounded number of entries."""
    evictor = LRUEvictor()
    held = block(1)
    for time in range(10_000):
        held.last_accessed = time
        evictor.add(held)
        evictor.remove(1)

    assert evictor._num_entries < 200
    assert len(evictor._cohorts) < 200


def test_hot_block_leaves_nothing_behind() -> None:
    """A block reused for ever beside many idle ones does not lengthen the search."""
    evictor = LRUEvictor()
    for number in range(1000):
        evictor.add(block(number))
    hot = block(5000)
    for time in range(1, 3000):
        hot.last_accessed = time
        evictor.add(hot)
        evictor.remove(5000)

    assert len(evictor._cohorts) == 1
    evictor.check_invariants()


def test_equal_times_count_as_one_run_once_they_meet() -> None:
    """Once nothing stands between them, the longer of two equal blocks goes first."""
    evictor = LRUEvictor()
    evictor.add(block(1, last_accessed=5, tokens=4))
    evictor.add(block(2, last_accessed=3, tokens=4))
    evictor.add(block(3, last_accessed=5, tokens=8))
    evictor.remove(2)

    assert evictor.evict().block_number == 3
