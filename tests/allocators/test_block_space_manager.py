"""Tests for :mod:`allocators.block_space_manager`."""

import pytest

from allocators.block_hash import PrefixHashes, PrefixIndex
from allocators.block_space_manager import AllocStatus, BlockSpaceManager
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus

INDEX = PrefixIndex()


def group_of(
    *runs: tuple[int, int], n: int = 1, seq_id: int = 0, salt: str = ""
) -> SequenceGroup:
    """Make a waiting group whose prompt is these runs; it writes segment 99."""
    root = INDEX.root((salt,) if salt else ())
    hashes = PrefixHashes(INDEX, root, runs).extended(99 + seq_id, 1000)
    seq = Sequence(seq_id, sum(n for _, n in runs), hashes, max_output_tokens=1000)
    return SequenceGroup(seq_id, [seq], n)


def admit(manager: BlockSpaceManager, group: SequenceGroup) -> None:
    """Allocate the group's prompt and let it run."""
    manager.allocate(group)
    for seq in group.seqs:
        seq.status = SequenceStatus.RUNNING


def fork(manager: BlockSpaceManager, group: SequenceGroup, seq_id: int) -> Sequence:
    """Add a sample to the group."""
    parent = group.seqs[0]
    child = Sequence(
        seq_id,
        parent.num_prompt_tokens,
        parent.hashes,
        num_output_tokens=parent.num_output_tokens,
        status=SequenceStatus.RUNNING,
    )
    manager.fork(parent, child)
    group.seqs.append(child)
    return child


def tables(manager: BlockSpaceManager, group: SequenceGroup) -> list[list[int]]:
    """Block numbers of each sequence."""
    return [manager.block_tables[seq.seq_id].block_numbers for seq in group.seqs]


def test_35_tokens_own_3_blocks() -> None:
    """At block size 16 a prompt of 35 tokens takes three blocks."""
    manager = BlockSpaceManager(16, 10, 0)
    group = group_of((1, 35))

    admit(manager, group)

    assert len(manager.block_tables[0]) == 3
    assert manager.num_free_gpu_blocks == 7


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (16 * 8, AllocStatus.OK),
        (16 * 8 + 1, AllocStatus.LATER),
        (16 * 198, AllocStatus.LATER),
        (16 * 198 + 1, AllocStatus.NEVER),
    ],
)
def test_admission_keeps_the_watermark(num_tokens: int, expected: AllocStatus) -> None:
    """Of 200 blocks with 190 taken, 8 can be had, 9 to 198 later, 199 never."""
    manager = BlockSpaceManager(16, 200, 0)
    admit(manager, group_of((1, 16 * 190)))

    assert manager.watermark_blocks == 2
    assert manager.can_allocate(group_of((2, num_tokens), seq_id=1)) is expected


def test_growth_may_use_the_last_block() -> None:
    """The watermark does not hold back a running sequence, only its own number does."""
    manager = BlockSpaceManager(16, 200, 0)
    group = group_of((1, 16 * 199))
    admit(manager, group)
    group.seqs[0].num_output_tokens = 1
    assert manager.can_append_slots(group)

    manager.append_slots(group.seqs[0])

    assert manager.num_free_gpu_blocks == 0
    assert not manager.can_append_slots(group)


def test_cached_blocks_give_no_discount_at_admission() -> None:
    """A prompt that is cached whole still asks for all its blocks."""
    manager = BlockSpaceManager(16, 20, 0, enable_caching=True)
    admit(manager, group_of((1, 16 * 15)))
    admit(manager, group_of((2, 16 * 3), seq_id=1))

    assert manager.num_free_gpu_blocks == 2
    assert manager.can_allocate(group_of((1, 16 * 15), seq_id=2)) is AllocStatus.LATER


def test_identical_prompts_share_even_a_half_filled_block() -> None:
    """Two equal prompts have equal tables, and the next token of one is a copy."""
    manager = BlockSpaceManager(16, 10, 0, enable_caching=True)
    first, second = group_of((1, 19)), group_of((1, 19), seq_id=1)
    admit(manager, first)
    admit(manager, second)
    assert tables(manager, first) == tables(manager, second) == [[0, 1]]

    first.seqs[0].num_output_tokens = 1
    copies = manager.append_slots(first.seqs[0])

    assert copies == [(1, 2)]
    assert tables(manager, first) == [[0, 2]]
    assert tables(manager, second) == [[0, 1]]
    manager.check_invariants()


def test_salt_keeps_tenants_apart() -> None:
    """The same prompt under another salt shares nothing; under the same one, all."""
    manager = BlockSpaceManager(16, 20, 0, enable_caching=True)
    for seq_id, salt in enumerate(("x", "y", "x")):
        admit(manager, group_of((1, 64), seq_id=seq_id, salt=salt))

    numbers = [manager.block_tables[i].block_numbers for i in range(3)]
    assert numbers[0] == numbers[2] == [0, 1, 2, 3]
    assert numbers[1] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(64, 48), (65, 64), (63, 48), (16, 0), (17, 16)]
)
def test_last_block_of_a_prompt_is_always_computed(
    num_tokens: int, num_cached: int
) -> None:
    """Sent again behind itself, a prompt skips its computed full blocks but the last.

    v0 calls every full block but the last full one computed; a continuation makes that
    one computed too.
    """
    manager = BlockSpaceManager(16, 40, 0, enable_caching=True)
    earlier = group_of((1, num_tokens), (2, 32))
    admit(manager, earlier)
    manager.mark_blocks_as_computed(earlier.seqs)
    again = group_of((1, num_tokens), seq_id=1)
    admit(manager, again)

    assert manager.num_computed_blocks(again.seqs[0]) * 16 == num_cached


def test_block_in_use_is_shared_before_it_is_computed() -> None:
    """Memory is shared at once; the computation is skipped only when marked."""
    manager = BlockSpaceManager(16, 20, 0, enable_caching=True)
    first, second = group_of((1, 64)), group_of((1, 64), seq_id=1)
    admit(manager, first)
    admit(manager, second)

    assert tables(manager, first) == tables(manager, second)
    assert manager.num_computed_blocks(second.seqs[0]) == 0
    manager.mark_blocks_as_computed(first.seqs)
    assert manager.num_computed_blocks(second.seqs[0]) == 3


def test_hole_in_a_prefix_ends_the_hit() -> None:
    """Blocks behind one that is not computed are not skipped."""
    manager = BlockSpaceManager(4, 20, 0, enable_caching=True)
    group = group_of((1, 20))
    admit(manager, group)
    manager.mark_blocks_as_computed(group.seqs)
    manager.block_tables[0][1].computed = False
    again = group_of((1, 20), seq_id=1)
    admit(manager, again)

    assert manager.num_computed_blocks(again.seqs[0]) == 1


def test_fork_shares_and_the_first_writer_copies() -> None:
    """A child holds its parent's blocks; whoever writes first gets a copy."""
    manager = BlockSpaceManager(4, 10, 0)
    group = group_of((1, 6))
    admit(manager, group)
    group.seqs[0].num_output_tokens = 1
    child = fork(manager, group, seq_id=1)

    assert tables(manager, group) == [[9, 8], [9, 8]]
    assert manager.append_slots(group.seqs[0]) == [(8, 7)]
    assert manager.append_slots(child) == []
    assert tables(manager, group) == [[9, 7], [9, 8]]
    manager.check_invariants()


def test_swapping_moves_each_distinct_block_once() -> None:
    """Blocks shared within a group are copied once and still shared afterwards."""
    manager = BlockSpaceManager(4, 10, 10)
    group = group_of((1, 8))
    admit(manager, group)
    fork(manager, group, seq_id=1)
    assert manager.can_swap_out(group)

    out = manager.swap_out(group)
    for seq in group.seqs:
        seq.status = SequenceStatus.SWAPPED

    assert out == [(9, 9), (8, 8)]
    assert (manager.num_free_gpu_blocks, manager.num_free_cpu_blocks) == (10, 8)
    assert manager.can_swap_in(group) is AllocStatus.OK
    back = manager.swap_in(group)
    assert back == [(9, 8), (8, 9)]
    assert (manager.num_free_gpu_blocks, manager.num_free_cpu_blocks) == (8, 10)
    manager.check_invariants()


def test_swap_out_needs_a_cpu_block_for_each() -> None:
    """With too few CPU blocks a group cannot be swapped out."""
    manager = BlockSpaceManager(4, 10, 1)
    group = group_of((1, 8))
    admit(manager, group)

    assert not manager.can_swap_out(group)


@pytest.mark.parametrize(
    ("num_blocks", "expected"),
    [(2, AllocStatus.NEVER), (5, AllocStatus.NEVER), (6, AllocStatus.OK)],
)
def test_swap_in_wants_one_block_more_a_sequence(
    num_blocks: int, expected: AllocStatus
) -> None:
    """Two blocks shared by four sequences come back only where six would fit."""
    manager = BlockSpaceManager(4, num_blocks, 64)
    group = group_of((1, 8))
    admit(manager, group)
    for seq_id in range(1, 4):
        fork(manager, group, seq_id)
    manager.swap_out(group)
    for seq in group.seqs:
        seq.status = SequenceStatus.SWAPPED

    assert manager.can_swap_in(group) is expected


def test_swap_in_may_land_on_a_block_in_use() -> None:
    """VLLM shares a half-filled block by name and lists the copy onto it all the same."""
    manager = BlockSpaceManager(4, 10, 10, enable_caching=True)
    first, second = group_of((1, 1)), group_of((1, 1), seq_id=1)
    admit(manager, first)
    manager.swap_out(first)
    first.seqs[0].status = SequenceStatus.SWAPPED
    admit(manager, second)
    second.seqs[0].num_output_tokens = 1
    assert manager.append_slots(second.seqs[0]) == []

    pairs = manager.swap_in(first)

    assert pairs == [(0, manager.block_tables[1].last.block_number)]
    manager.check_invariants()


def test_watermark_is_no_reason_never_to_swap_in() -> None:
    """A group that only the empty pool holds waits for it; the watermark is for later."""
    manager = BlockSpaceManager(4, 200, 400)
    group = group_of((1, 4 * 198))
    admit(manager, group)
    manager.swap_out(group)
    group.seqs[0].status = SequenceStatus.SWAPPED

    assert manager.watermark_blocks == 2
    assert manager.can_swap_in(group) is AllocStatus.LATER


def test_swap_in_waits_for_free_blocks() -> None:
    """A group that fits into the pool waits while others hold it."""
    manager = BlockSpaceManager(4, 8, 64)
    group = group_of((1, 8))
    admit(manager, group)
    manager.swap_out(group)
    group.seqs[0].status = SequenceStatus.SWAPPED
    admit(manager, group_of((2, 24), seq_id=1))

    assert manager.can_swap_in(group) is AllocStatus.LATER


def test_finished_samples_leave_references_that_nobody_drops() -> None:
    """Without caching, a survivor's blocks are held once for each of its group."""
    manager = BlockSpaceManager(4, 10, 0)
    group = group_of((1, 8))
    done = Sequence(1, 8, status=SequenceStatus.FINISHED)
    group.seqs.append(done)
    manager.allocate(group)
    group.seqs[0].status = SequenceStatus.RUNNING
    manager.check_invariants()

    manager.free(group.seqs[0])

    assert manager.num_free_gpu_blocks == 8
    manager.check_invariants()
    assert manager.reclaim() == 2
    assert manager.num_free_gpu_blocks == 10
    manager.check_invariants()


def test_promoted_block_is_found_by_a_later_sequence() -> None:
    """A block filled by decoding is cached under its content from then on."""
    manager = BlockSpaceManager(4, 10, 0, enable_caching=True)
    group = group_of((1, 3))
    admit(manager, group)
    seq = group.seqs[0]
    seq.num_output_tokens = 1
    manager.append_slots(seq)

    assert (
        manager.gpu_allocator.allocate(seq.prefix_hash()) is manager.block_tables[0].last
    )


def test_freeing_a_sequence_without_a_table_does_nothing() -> None:
    """A sequence that never got blocks can be freed."""
    manager = BlockSpaceManager(4, 10, 0)

    manager.free(Sequence(5, 3))

    assert manager.num_free_gpu_blocks == 10


def test_access_reaches_a_block_when_it_leaves_the_table() -> None:
    """The time of the last access is the block's once its sequence lets go of it."""
    manager = BlockSpaceManager(4, 10, 0, enable_caching=True)
    first, second = group_of((1, 8)), group_of((1, 8), seq_id=1)
    admit(manager, first)
    admit(manager, second)
    block = manager.block_tables[0][0]
    manager.access(first.seqs[0], 7)
    manager.access(second.seqs[0], 5)

    manager.free(first.seqs[0])
    manager.free(second.seqs[0])

    assert block.last_accessed == 7
