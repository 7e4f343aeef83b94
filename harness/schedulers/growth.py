"""What happens to block tables while the same decodes run on.

A block boundary is not a decision: between two decisions each sequence takes a block, or
completes one, at steps that its length alone fixes.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from allocators.block_space_manager import BlockSpaceManager
from allocators.sequence import Sequence


def num_plain_steps(
    seqs: Seq[Sequence], block_manager: BlockSpaceManager, num_reserved: int, limit: int
) -> int:
    """Steps, at most ``limit``, that these decodes run with nothing to decide.

    The first is the step just scheduled. In the others only blocks that are free are
    taken, and ``num_reserved`` stay free.
    """
    num_spare = block_manager.num_free_gpu_blocks - num_reserved
    block_size = block_manager.block_size
    if _num_new_blocks(seqs, block_size, limit) <= num_spare:
        return limit
    fits, too_many = 1, limit
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _num_new_blocks(seqs, block_size, middle) <= num_spare:
            fits = middle
        else:
            too_many = middle
    return fits


def grow(seqs: Seq[Sequence], block_manager: BlockSpaceManager, num_steps: int) -> None:
    """Let each sequence have ``num_steps`` tokens more.

    Blocks are taken and named in the order in which single steps would do it. The time of
    access stays that of the first step: everybody who runs is in the batch, so no block
    is freed, and none of another time comes between.
    """
    num_before = [seq.num_output_tokens for seq in seqs]
    for step, index in slots_in_order(seqs, block_manager.block_size, num_steps):
        seqs[index].num_output_tokens = num_before[index] + step
        copies = block_manager.append_slots(seqs[index])
        assert not copies, "a copy-on-write ends a stretch"
    for seq, num_output_tokens in zip(seqs, num_before, strict=True):
        seq.num_output_tokens = num_output_tokens + num_steps
    block_manager.mark_blocks_as_computed(seqs)


def slots_in_order(
    seqs: Seq[Sequence], block_size: int, num_steps: int
) -> list[tuple[int, int]]:
    """When a table changes in the next ``num_steps`` steps: ``(step, index)``, sorted.

    Steps count from 1, indices are positions in ``seqs``.
    """
    return sorted(
        (step, index)
        for index, seq in enumerate(seqs)
        for step in _slot_steps(seq.num_tokens, block_size, num_steps)
    )


def _slot_steps(num_tokens: int, block_size: int, num_steps: int) -> Iterator[int]:
    """Steps that begin a block or complete one."""
    begins = -(-num_tokens // block_size) * block_size + 1 - num_tokens
    yield from range(begins, num_steps + 1, block_size)
    if block_size > 1:
        completes = (num_tokens // block_size + 1) * block_size - num_tokens
        yield from range(completes, num_steps + 1, block_size)


def _num_new_blocks(seqs: Seq[Sequence], block_size: int, num_steps: int) -> int:
    grown = num_steps - 1
    return sum(
        (seq.num_tokens + grown + block_size - 1) // block_size
        - (seq.num_tokens + block_size - 1) // block_size
        for seq in seqs
    )
