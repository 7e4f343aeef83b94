"""Tests for :mod:`allocators.block_pool`, against a pool of lists and dicts."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.block_pool import NULL_BLOCK, BlockPool
from allocators.content import ContentRange
from allocators.free_block_queue import BlockIds

NUM_BLOCKS = 12
CONTENTS = [0, 1, 2, 3, 4, 5, 6, 7, 1022, 1023, 1024, 1025, 9000]


class NaivePool:
    """What the pool does, one block at a time."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.queue = list(range(1, num_gpu_blocks))
        self.ref_cnt: Counter[int] = Counter()
        self.content: dict[int, int] = {}
        self.cached: dict[int, list[int]] = {}
        self.given_up: set[int] = set()
        self.num_evictions = self.num_regretted_evictions = 0

    def get_new_blocks(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.ref_cnt[block] = 1
            if block in self.content:
                self.evict(block)
        return taken

    def evict(self, block: int) -> None:
        self.num_evictions += 1
        content = self.content.pop(block)
        self.cached[content].remove(block)
        if not self.cached[content]:
            del self.cached[content]
            self.given_up.add(content)

    def touch(self, blocks: list[int]) -> None:
        self.queue = [block for block in self.queue if block not in blocks]
        self.ref_cnt.update(blocks)

    def free_blocks(self, blocks: list[int]) -> None:
        self.ref_cnt.subtract(blocks)
        idle = [block for block in blocks if not self.ref_cnt[block]]
        garbage = [block for block in idle if block not in self.content]
        self.queue = garbage + self.queue + [b for b in idle if b in self.content]

    def cache_block(self, content: int, block: int) -> None:
        self.num_regretted_evictions += content in self.given_up
        self.given_up.discard(content)
        self.content[block] = content
        self.cached.setdefault(content, []).append(block)

    def forget(self, contents: set[int]) -> bool:
        if contents & set(self.cached):
            return False
        self.given_up -= contents
        return True

    def find(self, contents: list[int]) -> list[int]:
        holders = [self.cached.get(content, [None])[0] for content in contents]
        first = holders.index(None) if None in holders else len(holders)
        return [holder for holder in holders[:first] if holder is not None]

    def find_last(self, contents: list[int], num_needed: int) -> list[int]:
        for end in range(len(contents), num_needed - 1, -1):
            found = self.find(contents[end - num_needed : end])
            if len(found) == num_needed:
                return [NULL_BLOCK] * (end - num_needed) + found
        return self.find(contents)


def ids(blocks: list[int]) -> BlockIds:
    """Block ids as the pool takes them."""
    return np.array(blocks, dtype=np.int64)


def parts(contents: list[int]) -> list[ContentRange]:
    """A range for each content: they need not follow one another."""
    return [ContentRange(i, i + 1, content) for i, content in enumerate(contents)]


def name(pool: BlockPool, blocks: BlockIds, *contents: int) -> None:
    """Cache blocks under these contents."""
    pool.cache_single_blocks(contents, blocks.tolist())


class Twice:
    """The pool and the naive one, doing the same under the same checks."""

    def __init__(self) -> None:
        self.pool, self.naive = BlockPool(NUM_BLOCKS), NaivePool(NUM_BLOCKS)
        self.held: list[list[int]] = []

    def take(self, data: st.DataObject) -> None:
        if not self.naive.queue:
            return
        count = data.draw(st.integers(1, len(self.naive.queue)))
        taken = self.naive.get_new_blocks(count)
        if data.draw(st.booleans()):
            assert self.pool.get_new_blocks(count).tolist() == taken
        else:
            assert self.pool.get_single_blocks(count) == taken
        self.held.append(taken)

    def cache(self, data: st.DataObject) -> None:
        piece = data.draw(st.sampled_from(self.held))
        nameless = [block for block in piece if block not in self.naive.content]
        first = data.draw(st.sampled_from(CONTENTS))
        blocks = nameless[: data.draw(st.integers(1, 4))]
        if not blocks:
            return
        for place, block in enumerate(blocks):
            self.naive.cache_block(first + place, block)
        if len(blocks) > 1 or data.draw(st.booleans()):
            self.pool.cache_blocks(first, ids(blocks))
        else:
            self.pool.cache_single_blocks([first], blocks)

    def cache_singly(self, data: st.DataObject) -> None:
        nameless = [
            next((block for block in piece if block not in self.naive.content), None)
            for piece in self.held
        ]
        blocks = list(dict.fromkeys(b for b in nameless if b is not None))
        if not blocks:
            return
        contents = [data.draw(st.sampled_from(CONTENTS)) for _ in blocks]
        for content, block in zip(contents, blocks, strict=True):
            self.naive.cache_block(content, block)
        self.pool.cache_single_blocks(contents, blocks)

    def forget(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(CONTENTS))
        length = data.draw(st.integers(1, 2))
        forgotten = self.naive.forget(set(range(first, first + length)))
        assert self.pool.forget(ContentRange(5, 5 + length, first)) == forgotten

    def hit(self, data: st.DataObject) -> None:
        asked = data.draw(st.permutations(CONTENTS))
        asked = asked[: data.draw(st.integers(1, len(asked)))]
        found = self.naive.find(asked)
        assert self.pool.find(parts(asked)).tolist() == found
        for num_needed in (1, 2, 3):
            last = self.naive.find_last(asked, num_needed)
            assert self.pool.find_last(parts(asked), num_needed).tolist() == last
        idle = self.pool.idle(ids(found))
        assert idle.tolist() == [b for b in found if not self.naive.ref_cnt[b]]
        self.naive.touch(found)
        self.pool.touch(ids(found), idle)
        self.held.append(found)

    def free(self, data: st.DataObject) -> None:
        piece = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        num_unnamed = sum(block not in self.naive.content for block in piece)
        self.naive.free_blocks(piece[::-1])
        self.pool.free_blocks(ids(piece[::-1]), num_unnamed)

    def compare(self) -> None:
        pool, naive = self.pool, self.naive
        pool.check_invariants()
        assert pool.free_block_queue.blocks().tolist() == naive.queue
        assert pool.num_free_blocks == len(naive.queue)
        assert pool.num_used_blocks == NUM_BLOCKS - 1 - len(naive.queue)
        counts = [naive.ref_cnt[block] for block in range(NUM_BLOCKS)]
        assert pool.ref_cnt.tolist() == counts
        cached = sum(block in naive.content for block in naive.queue)
        assert pool.num_cached_free_blocks == cached
        assert pool.num_evictions == naive.num_evictions
        assert pool.num_regretted_evictions == naive.num_regretted_evictions


@settings(max_examples=300)
@given(st.data())
def test_the_pool_is_the_naive_one(data: st.DataObject) -> None:
    """Blocks, order, counts and hits agree, twins of one content included."""
    both = Twice()
    for _ in range(data.draw(st.integers(1, 50))):
        actions = [both.take, both.hit, both.forget]
        if both.held:
            actions += [both.cache, both.cache_singly, both.cache, both.free]
        data.draw(st.sampled_from(actions))(data)
        both.compare()


def test_null_block_is_never_handed_out() -> None:
    """Of four blocks three can be taken, 1 to 3."""
    pool = BlockPool(4)

    assert pool.num_free_blocks == 3
    assert pool.get_new_blocks(3).tolist() == [1, 2, 3]
    assert (pool.num_free_blocks, pool.num_used_blocks) == (0, 3)


def test_garbage_is_taken_before_blocks_that_were_never_used_and_cache_last() -> None:
    """Freed blocks without content go to the front, as one piece, others to the end."""
    pool = BlockPool(7)
    taken = pool.get_new_blocks(4)
    name(pool, taken[:2], 50, 51)

    pool.free_blocks(taken[::-1], num_unnamed=2)

    assert pool.free_block_queue.blocks().tolist() == [4, 3, 5, 6, 2, 1]


def test_hit_takes_the_block_named_earliest_among_those_still_cached() -> None:
    """Evicting who holds a content leaves its twins to be hit, in the order of names."""
    pool = BlockPool(4)
    taken = pool.get_new_blocks(3)
    for block in (2, 1, 3):
        name(pool, ids([block]), 7)
    assert pool.find(parts([7])).tolist() == [2]

    pool.free_blocks(taken[[1, 0, 2]])
    pool.get_new_blocks(1)

    assert pool.find(parts([7])).tolist() == [1]
    assert (pool.num_evictions, pool.num_regretted_evictions) == (1, 0)


def test_regret_is_for_content_whose_last_block_was_taken() -> None:
    """Cached again after that it counts once; again while it is cached, not."""
    pool = BlockPool(4)
    taken = pool.get_new_blocks(2)
    name(pool, taken[:1], 7)
    name(pool, taken[1:], 7)
    pool.free_blocks(taken)
    pool.get_new_blocks(2)  # blocks 3 and 1: the twin is still there
    name(pool, ids([3]), 7)
    assert (pool.num_evictions, pool.num_regretted_evictions) == (1, 0)

    pool.get_new_blocks(1)
    pool.free_blocks(ids([3]))
    pool.get_new_blocks(1)
    name(pool, ids([1]), 7)
    name(pool, ids([2]), 7)

    assert (pool.num_evictions, pool.num_regretted_evictions) == (3, 1)


@pytest.mark.parametrize(
    ("num_needed", "found"), [(1, [0, 0, 0, 4]), (2, [1, 2]), (3, [1, 2])]
)
def test_last_run_that_is_long_enough_is_found(num_needed: int, found: list[int]) -> None:
    """Null blocks stand before it; where no run is that long, the leading one counts."""
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(4)
    name(pool, blocks, 10, 11, 12, 13)

    assert pool.find_last(parts([10, 11, 99, 13]), num_needed).tolist() == found


def test_content_that_is_forgotten_was_never_given_up() -> None:
    """Numbers used again bring no regret; those still cached are not forgotten."""
    pool = BlockPool(4)
    taken = pool.get_new_blocks(2)
    name(pool, taken, 7, 8)
    pool.free_blocks(taken)
    assert not pool.forget(ContentRange(0, 2, 7))
    pool.get_new_blocks(3)

    assert pool.forget(ContentRange(0, 1, 7))

    name(pool, ids([3]), 7)
    name(pool, ids([1]), 8)
    assert (pool.num_evictions, pool.num_regretted_evictions) == (2, 1)


@pytest.mark.parametrize("fault", ["ref_cnt", "queue", "null", "cached", "holder"])
def test_books_that_disagree_are_told(fault: str) -> None:
    """Counts, queue and contents are compared with one another."""
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(3)
    name(pool, blocks, 10, 11, 12)
    pool.check_invariants()
    if fault == "ref_cnt":
        pool.ref_cnt[1] = 0
    elif fault == "queue":
        pool.free_block_queue.remove(ids([4]))
    elif fault == "null":
        pool.free_block_queue.extend(ids([NULL_BLOCK]))
    elif fault == "cached":
        pool.num_cached_free_blocks += 1
    else:
        pool._holder_of[10] = 2

    with pytest.raises(AssertionError):
        pool.check_invariants()
