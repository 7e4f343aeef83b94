"""Tests for :mod:`allocators.kv_cache_manager`: who gets blocks, and which."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.kv_cache_manager import KVCacheManager, RequestBlocks

SIZE = 4


def manager(num_usable: int, **knobs: Any) -> KVCacheManager:
    """A pool of so many blocks of 4 tokens beside the null block."""
    defaults = {"enable_caching": True, "max_model_len": 400}
    return KVCacheManager(SIZE, num_usable + 1, **(defaults | knobs))


def sequence(
    made: KVCacheManager, segment: int, num_tokens: int = 400, output: int = 900
) -> RequestBlocks:
    """A request that begins with a segment; no blocks yet."""
    if made.index is None:
        return RequestBlocks(None)
    return RequestBlocks(
        made.index.begin([(segment, num_tokens)], (output + segment, 40))
    )


def allocated(made: KVCacheManager, segment: int, num_tokens: int) -> RequestBlocks:
    """A request that has blocks for its first tokens, all of them known."""
    blocks = sequence(made, segment)
    assert made.allocate_slots(blocks, num_tokens, num_tokens)
    return blocks


def free_ids(made: KVCacheManager) -> list[int]:
    """Free blocks in the order in which they will be taken."""
    return made.block_pool.free_block_queue.blocks().tolist()


# -- how many ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (10, 3), (99, 3)]
)
def test_blocks_of_tokens_up_to_the_models_length(
    num_tokens: int, num_blocks: int
) -> None:
    """A begun block counts whole; beyond the model's ten tokens there is none."""
    assert manager(9, max_model_len=10).num_blocks_of(num_tokens) == num_blocks


def test_only_what_is_missing_is_allocated() -> None:
    """A request of 5 tokens holds 2 blocks, which take it to 8 tokens, not to 9."""
    made = manager(9)
    blocks = allocated(made, 1, 5)
    assert blocks.block_ids.tolist() == [1, 2]

    assert made.allocate_slots(blocks, 8, 8)
    assert blocks.num_blocks == 2
    assert made.allocate_slots(blocks, 9, 9)
    assert blocks.block_ids.tolist() == [1, 2, 3]


def test_all_or_nothing() -> None:
    """Where one block is missing nothing is handed out, named or touched."""
    made = manager(3)
    first = allocated(made, 1, 9)
    made.free(first)
    other = allocated(made, 2, 4)
    blocks = sequence(made, 1)
    hits = made.get_computed_blocks(blocks, 16)
    before = free_ids(made), made.block_pool.ref_cnt.tolist()

    assert not made.allocate_slots(blocks, 16, 16, hits=hits)

    assert blocks.num_blocks == 0
    assert (free_ids(made), made.block_pool.ref_cnt.tolist()) == before
    made.check_invariants([other])


@pytest.mark.parametrize("is_idle", [True, False])
def test_hits_that_are_idle_count_against_the_free_blocks(is_idle: bool) -> None:
    """Two hits and a new block need three free ones, or one where the hits are held."""
    made = manager(8)
    first = allocated(made, 1, 8)
    if is_idle:
        made.free(first)
    taken = made.block_pool.get_new_blocks(6)
    blocks = sequence(made, 1)
    hits = made.get_computed_blocks(blocks, 12)
    assert hits.tolist() == [1, 2]

    assert not made.allocate_slots(blocks, 12, 12, hits=hits)
    made.block_pool.free_blocks(taken[:1], num_unnamed=1)
    assert made.allocate_slots(blocks, 12, 12, hits=hits)

    assert made.block_pool.num_free_blocks == 0


def test_reserved_blocks_stay_free() -> None:
    """Two of four blocks can be had where two are reserved, three cannot."""
    made = manager(4)
    blocks = sequence(made, 1)

    assert not made.allocate_slots(blocks, 9, 9, num_reserved_blocks=2)
    assert made.allocate_slots(blocks, 8, 8, num_reserved_blocks=2)


@pytest.mark.parametrize(("watermark", "blocks"), [(0.0, 0), (0.05, 0), (0.19, 1)])
def test_watermark_is_a_share_of_all_blocks_rounded_down(
    watermark: float, blocks: int
) -> None:
    """Of ten blocks, the null block among them, 5 % is none and 19 % is one."""
    assert manager(9, watermark=watermark).watermark_blocks == blocks


def test_the_full_prompt_must_fit_before_its_first_chunk() -> None:
    """A chunk of one block is refused while the prompt of four has room for three."""
    made = manager(3)
    blocks = sequence(made, 1)

    assert not made.allocate_slots(blocks, 4, 16, num_full_tokens=13)
    assert made.allocate_slots(blocks, 4, 16, num_full_tokens=12)
    assert blocks.num_blocks == 1


def test_blocks_that_are_held_already_are_not_missing() -> None:
    """A request of 20 tokens that holds two blocks lacks three, or six to 30 tokens."""
    made = manager(9)

    assert made.num_missing_blocks(2, 20) == 3
    assert made.num_missing_blocks(2, 20, 30) == 6
    assert made.num_missing_blocks(7, 20) == 0


# -- content -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(3, 0), (4, 0), (5, 4), (16, 12), (17, 16), (15, 12)]
)
def test_the_last_token_is_always_computed(num_tokens: int, num_cached: int) -> None:
    """A prompt that is cached whole is found up to the block before its last token."""
    made = manager(9)
    allocated(made, 1, 20)

    hits = made.get_computed_blocks(sequence(made, 1), num_tokens)

    assert len(hits) * SIZE == num_cached


def test_blocks_are_named_before_they_are_computed() -> None:
    """Full blocks of known tokens are found by others as soon as they are allocated."""
    made = manager(9)
    blocks = sequence(made, 1)

    assert made.allocate_slots(blocks, 16, 11)

    assert blocks.num_named == 2
    assert made.get_computed_blocks(sequence(made, 1), 20).tolist() == [1, 2]
    made.cache_blocks(blocks, 15)
    assert made.get_computed_blocks(sequence(made, 1), 20).tolist() == [1, 2, 3]


def test_known_tokens_without_blocks_are_not_named() -> None:
    """Of 20 known tokens a chunk of 9 fills two blocks."""
    made = manager(9)
    blocks = sequence(made, 1)

    assert made.allocate_slots(blocks, 9, 20)

    assert blocks.num_named == 2


def test_hits_are_not_named_again() -> None:
    """A request that begins with two cached blocks names the third one only."""
    made = manager(9)
    made.free(allocated(made, 1, 8))
    blocks = sequence(made, 1)

    made.allocate_slots(blocks, 12, 12, hits=made.get_computed_blocks(blocks, 12))

    assert blocks.block_ids.tolist() == [1, 2, 3]
    assert blocks.num_named == 3
    assert not made.block_pool._twins


def test_without_caching_nothing_is_found() -> None:
    """No request has a path, and none has a hit."""
    made = manager(9, enable_caching=False)
    blocks = allocated(made, 1, 16)
    made.cache_blocks(blocks, 16)

    assert made.get_computed_blocks(sequence(made, 1), 17).tolist() == []
    made.free(blocks)
    assert free_ids(made) == [4, 3, 2, 1, 5, 6, 7, 8, 9]


def test_blocks_are_freed_last_first() -> None:
    """So the tail of a cached sequence is evicted before its head."""
    made = manager(5)
    blocks = allocated(made, 1, 17)

    made.free(blocks)

    assert free_ids(made) == [5, 4, 3, 2, 1]
    assert blocks.block_ids.tolist() == []
    assert (blocks.num_named, blocks.num_outside) == (0, 0)


@pytest.mark.parametrize("is_shared", [False, True])
def test_next_blocks_are_named_in_order(is_shared: bool) -> None:
    """One more block of each is named; of twins the earlier one is found."""
    made = manager(9)
    first, second = sequence(made, 1), sequence(made, 1 if is_shared else 2)
    for blocks in (first, second):
        made.allocate_slots(blocks, 8, 3)

    made.cache_next_blocks([second, first])

    assert (first.num_named, second.num_named) == (1, 1)
    assert made.get_computed_blocks(second, 9).tolist() == [3]
    assert made.get_computed_blocks(first, 9).tolist() == [3 if is_shared else 1]
    made.check_invariants([first, second])


def test_each_receiver_gets_the_next_block() -> None:
    """Blocks are appended in the order of the receivers."""
    made = manager(9)
    first, second = allocated(made, 1, 4), allocated(made, 2, 4)

    made.append_blocks([second, first])

    assert first.block_ids.tolist() == [1, 4]
    assert second.block_ids.tolist() == [2, 3]


def test_unnamed_blocks_are_freed_to_the_front() -> None:
    """The last block is not full: it is taken first, before blocks never used."""
    made = manager(5)
    blocks = allocated(made, 1, 9)

    made.free(blocks)

    assert free_ids(made) == [3, 4, 5, 2, 1]


def test_what_no_other_can_have_is_found_by_its_own_request() -> None:
    """Preempted, a request finds its own blocks; a later one has numbers of its own."""
    made = manager(9)
    assert made.index is not None
    prompt = [(1, 8), (-1, 8)]
    blocks = RequestBlocks(made.index.begin(prompt, (-1, 40)))
    made.allocate_slots(blocks, 16, 16)
    made.free(blocks)
    hits = made.get_computed_blocks(blocks, 17)
    assert hits.tolist() == [1, 2, 3, 4]
    made.allocate_slots(blocks, 17, 17, hits=hits)

    made.finish(blocks)

    later = RequestBlocks(made.index.begin(prompt, (-1, 40)))
    assert made.get_computed_blocks(later, 17).tolist() == [1, 2]
    made.check_invariants([])


# -- a sliding window --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_settled", "table"),
    [
        (10, [1, 2, 3, 4, 5, 6]),
        (11, [0, 2, 3, 4, 5, 6]),
        (18, [0, 0, 3, 4, 5, 6]),
        (19, [0, 0, 0, 4, 5, 6]),
    ],
)
def test_whole_blocks_below_the_window_are_dropped(
    num_settled: int, table: list[int]
) -> None:
    """With 11 tokens settled a window of 8 begins at token 4, and block 0 has passed."""
    made = manager(9, sliding_window=8, max_step_tokens=30)
    blocks = allocated(made, 1, 20)

    assert made.allocate_slots(blocks, 21, 21, num_settled_tokens=num_settled)

    assert blocks.block_ids.tolist() == table
    made.check_invariants([blocks])


def test_what_the_window_has_passed_is_freed_even_if_nothing_is_given() -> None:
    """The last of the passed blocks is freed first; what is left is freed as always."""
    made = manager(5, sliding_window=8, max_step_tokens=30)
    blocks = allocated(made, 1, 20)

    assert not made.allocate_slots(blocks, 40, 40, num_settled_tokens=15)

    assert blocks.block_ids.tolist() == [0, 0, 3, 4, 5]
    assert free_ids(made) == [2, 1]
    made.free(blocks)
    assert free_ids(made) == [2, 1, 5, 4, 3]


def test_blocks_that_have_passed_are_dropped_once() -> None:
    """A second look at the same tokens frees nothing more."""
    made = manager(9, sliding_window=8, max_step_tokens=30)
    blocks = allocated(made, 1, 20)

    for _ in range(2):
        made.allocate_slots(blocks, 20, 20, num_settled_tokens=15)

    assert made.block_pool.num_used_blocks == 3


def test_dropped_blocks_are_cached_still() -> None:
    """What the window has passed was named, and another request begins with it."""
    made = manager(9, sliding_window=8, max_step_tokens=30)
    blocks = allocated(made, 1, 20)
    made.allocate_slots(blocks, 20, 20, num_settled_tokens=15)

    assert made.get_computed_blocks(sequence(made, 1), 9).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("window", "step", "num_blocks"), [(8, 4, 4), (8, 5, 4), (8, 6, 5), (9, 400, 25)]
)
def test_full_prompt_check_is_capped_at_what_the_window_can_hold(
    window: int, step: int, num_blocks: int
) -> None:
    """The window less one and a step, at most the model's 100, and one block more."""
    made = manager(50, sliding_window=window, max_step_tokens=step, max_model_len=100)

    assert made.num_missing_blocks(0, 1, 1000) == num_blocks
    assert made.num_missing_blocks(0, 1, 8) == 2


@pytest.mark.parametrize(
    ("window", "hits"),
    [(5, [0, 0, 0, 0, 5]), (8, [0, 0, 0, 4, 5]), (9, [0, 0, 0, 4, 5]),
     (10, [0, 0, 3, 4, 5])],
)  # fmt: skip
def test_a_window_needs_the_tokens_before_the_next(window: int, hits: list[int]) -> None:
    """The token after a hit attends to a window less itself: 8 tokens are two blocks."""
    made = manager(12, sliding_window=window, max_step_tokens=30)
    made.free(allocated(made, 1, 20))

    assert made.get_computed_blocks(sequence(made, 1), 21).tolist() == hits


def test_hits_of_a_window_are_the_last_run_with_null_blocks_before_it() -> None:
    """A window of 8 needs two blocks; what comes before is neither held nor counted."""
    made = manager(12, sliding_window=8, max_step_tokens=30)
    made.free(allocated(made, 1, 20))
    blocks = sequence(made, 1)

    hits = made.get_computed_blocks(blocks, 21)
    assert hits.tolist() == [0, 0, 0, 4, 5]
    assert made.allocate_slots(blocks, 21, 21, hits=hits, num_settled_tokens=20)

    assert blocks.block_ids.tolist() == [0, 0, 0, 4, 5, 6]
    assert (blocks.num_outside, blocks.num_named) == (3, 5)
    assert made.block_pool.num_used_blocks == 3
    made.check_invariants([blocks])


def test_null_blocks_among_hits_need_no_room() -> None:
    """Two idle hits and a new block fit into three free blocks, whatever lies before."""
    made = manager(6, sliding_window=8, max_step_tokens=30)
    made.free(allocated(made, 1, 20))
    blocks = sequence(made, 1)
    assert blocks.path is not None
    leading = made.block_pool.find(blocks.path.parts(0, 3))
    made.block_pool.touch(leading, made.block_pool.idle(leading))
    hits = made.get_computed_blocks(blocks, 21)
    assert hits.tolist() == [0, 0, 0, 4, 5]
    assert made.block_pool.num_free_blocks == 3

    assert made.allocate_slots(blocks, 21, 21, hits=hits, num_settled_tokens=20)
    assert made.block_pool.num_free_blocks == 0


def test_passed_blocks_are_not_named() -> None:
    """A block that had left the window before its name came has none."""
    made = manager(9, sliding_window=8, max_step_tokens=30)
    blocks = sequence(made, 1)
    made.allocate_slots(blocks, 20, 3)
    made.allocate_slots(blocks, 20, 3, num_settled_tokens=11)

    made.cache_blocks(blocks, 12)

    assert blocks.num_named == 3
    held = RequestBlocks(blocks.path)
    assert made.get_computed_blocks(held, 21).tolist() == [0, 2, 3]
    assert made.get_computed_blocks(held, 9).tolist() == []


# -- the books ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_tables", [0, 2])
def test_tables_that_disagree_with_the_pool_are_told(num_tables: int) -> None:
    """A block that nobody's table shows, or one table counted twice, is found."""
    made = manager(9)
    blocks = allocated(made, 1, 8)
    made.check_invariants([blocks])

    with pytest.raises(AssertionError, match="held by nobody, or twice"):
        made.check_invariants([blocks] * num_tables)


def test_null_block_inside_the_window_is_told() -> None:
    """A table may have null blocks only where the window has passed."""
    made = manager(9, sliding_window=8, max_step_tokens=30)
    blocks = allocated(made, 1, 20)
    made.allocate_slots(blocks, 20, 20, num_settled_tokens=15)
    blocks.num_outside = 1

    with pytest.raises(AssertionError, match="a null block inside the window"):
        made.check_invariants([blocks])


@settings(max_examples=100)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_a_table_grows_by_any_pieces(lengths: list[int]) -> None:
    """One block at a time or many, a table holds what was put in, in order."""
    table = RequestBlocks(None)
    made = manager(400, enable_caching=False)
    expected: list[int] = []
    for length in lengths:
        taken = made.block_pool.get_new_blocks(length)
        if length % 2:
            table.append(taken)
        else:
            for block_id in taken.tolist():
                RequestBlocks.append_one_each([table], [block_id])
        expected += taken.tolist()

        assert table.block_ids.tolist() == expected
