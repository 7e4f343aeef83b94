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
    taken, ``num_reserved`` stay free, and no block completed turns out to be cached.
    """
    limit = _before_a_twin(seqs, block_manager, limit)
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


def _before_a_twin(
    seqs: Seq[Sequence], block_manager: BlockSpaceManager, limit: int
) -> int:
    """Steps before one in which a completed block's content is cached already.

    Then the block would be given back, and free blocks would become more. Sequences that
    write the same content could give each other such twins: they are stepped singly.
    """
    if not block_manager.enable_caching:
        return limit
    if len({seq.content_id for seq in seqs}) < len(seqs):
        return 1
    block_size, contains = block_manager.block_size, block_manager.contains_block
    for seq in seqs:
        assert seq.hashes is not None
        first = (seq.num_tokens // block_size + 1) * block_size
        for length in range(first, seq.num_tokens + limit, block_size):
            if contains(seq.hashes[length]):
                limit = length - seq.num_tokens
                break
    return max(limit, 1)
