"""Tests for :mod:`allocators.free_block_queue`: an array that behaves like a list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocators.free_block_queue import BlockIds, FreeBlockQueue

NUM_BLOCKS = 9
ACTIONS = ["extend", "extend_front", "push_front", "remove", "pop", "pop_singly"]


def ids(*block_ids: int) -> BlockIds:
    """Block ids as the queue takes them."""
    return np.array(block_ids, dtype=np.int64)


def queue_of(*block_ids: int) -> FreeBlockQueue:
    """A queue of blocks below ``NUM_BLOCKS``."""
    return FreeBlockQueue(NUM_BLOCKS, ids(*block_ids))


def test_blocks_are_taken_in_the_order_given() -> None:
    """The first block of the queue is handed out first."""
    queue = queue_of(3, 1, 2)

    assert queue.pop(2).tolist() == [3, 1]
    assert queue.blocks().tolist() == [2]


def test_front_and_end_keep_the_order_of_a_piece() -> None:
    """A piece put in front is taken first, the first of it before the others."""
    queue = queue_of(5)

    queue.extend(ids(6, 7))
    queue.extend_front(ids(2, 1))

    assert queue.blocks().tolist() == [2, 1, 5, 6, 7]


def test_block_that_comes_back_has_its_new_place_only() -> None:
    """The entry that it left behind does not count, before or behind the new one."""
    queue = queue_of(1, 2, 3)

    queue.remove(ids(1))
    queue.extend(ids(1))
    queue.remove(ids(3))
    queue.extend_front(ids(3))

    assert queue.blocks().tolist() == [3, 2, 1]
    assert queue.pop(3).tolist() == [3, 2, 1]


def test_more_than_there_is_cannot_be_taken() -> None:
    """Who takes blocks looks at the length first; the queue does not give fewer."""
    with pytest.raises(AssertionError, match="callers look at the length first"):
        queue_of(1, 2).pop(3)


@given(st.data())
def test_the_queue_is_a_list(data: st.DataObject) -> None:
    """Whatever is put in, taken out and passed over, it holds what a list would hold."""
    expected = data.draw(st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True))
    queue = queue_of(*expected)

    # So many that both ends of the array are reached, again and again.
    for _ in range(data.draw(st.integers(1, 120))):
        action = data.draw(st.sampled_from(ACTIONS))
        if action in ("pop", "pop_singly"):
            count = data.draw(st.integers(0, len(expected)))
            taken = queue.pop_singly(count) if action != "pop" else queue.pop(count)
            assert list(taken) == expected[:count]
            del expected[:count]
            continue
        outside = [b for b in range(NUM_BLOCKS) if b not in expected]
        candidates = expected if action == "remove" else outside
        piece = data.draw(st.permutations(candidates))
        piece = piece[: data.draw(st.integers(0, len(piece)))]
        if action == "push_front":
            for block in reversed(piece):
                queue.push_front(block)
            action = "extend_front"
        else:
            getattr(queue, action)(ids(*piece))
        if action == "remove":
            expected = [block for block in expected if block not in piece]
        else:
            expected = piece + expected if action == "extend_front" else expected + piece
        assert queue.num_free_blocks == len(expected)
        assert queue.blocks().tolist() == expected
        is_wanted = np.arange(NUM_BLOCKS) % 2 == 0
        wanted = [block for block in expected if block % 2 == 0]
        assert queue.first_where(is_wanted, 2).tolist() == wanted[:2]


@pytest.mark.parametrize("side", ["extend", "extend_front"])
def test_one_end_may_be_used_for_ever(side: str) -> None:
    """A queue that is only filled at one end moves back to the middle in time."""
    queue = queue_of(1, 2, 3, 4)
    expected = [1, 2, 3, 4]

    for _ in range(200):
        taken = queue.pop(3)
        assert taken.tolist() == expected[:3]
        getattr(queue, side)(taken[::-1])
        back = expected[:3][::-1]
        expected = back + expected[3:] if side == "extend_front" else expected[3:] + back

    assert queue.blocks().tolist() == expected


def test_the_last_may_come_first_for_ever() -> None:
    """A queue that grows at the front and shrinks at its end has room there in time."""
    queue = queue_of(1, 2, 3, 4)
    expected = [1, 2, 3, 4]

    for _ in range(200):
        last = expected.pop()
        queue.remove(ids(last))
        queue.extend_front(ids(last))
        expected.insert(0, last)
        assert queue.blocks().tolist() == expected


@pytest.mark.parametrize("count", [1, 3, 70, 200])
def test_first_wanted_blocks_are_found_far_behind(count: int) -> None:
    """Every third of 400 blocks, in order, however far one has to look."""
    queue = FreeBlockQueue(400, np.arange(400, dtype=np.int64)[::-1].copy())
    queue.remove(np.arange(250, 300, dtype=np.int64))
    is_wanted = np.arange(400) % 3 == 0

    found = queue.first_where(is_wanted, count).tolist()

    wanted = [b for b in range(399, -1, -1) if b % 3 == 0 and not 250 <= b < 300]
    assert found == wanted[:count]
    assert queue.num_free_blocks == 350
