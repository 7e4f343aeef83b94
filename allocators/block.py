"""The physical block and the block table: metadata about KV memory, never the memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from allocators.errors import DoubleFreeError

NO_HASH = -1
NEVER_ACCESSED = -1


class Device(StrEnum):
    """Where a block's memory lies."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(slots=True, eq=False)
class PhysicalTokenBlock:
    """State of one KV-cache block. Two blocks are equal only if they are the same one.

    Attributes:
        device: Where its memory lies.
        block_number: Its number, unique on that device.
        block_size: Tokens it has room for.
        block_hash: Identity of the content, ``NO_HASH`` without prefix caching.
        num_hashed_tokens: Tokens from the start of the sequence to the block's end.
        ref_count: Block tables that hold it.
        last_accessed: Latest time at which a scheduled sequence held it, as far as known
            (see ``BlockTable.last_accessed``).
        computed: A prefill may skip computing it.
    """

    device: Device
    block_number: int
    block_size: int
    block_hash: int = NO_HASH
    num_hashed_tokens: int = 0
    ref_count: int = 0
    last_accessed: int = NEVER_ACCESSED
    computed: bool = False

    def drop_hold(self) -> bool:
        """Hold the block once less; whether nobody holds it now.

        Raises:
            DoubleFreeError: Nobody held it; nothing changed.
        """
        if self.ref_count == 0:
            raise DoubleFreeError(self.device, self.block_number)
        self.ref_count -= 1
        return self.ref_count == 0


class BlockTable:
    """The physical blocks of one sequence, in order.

    Every block of a scheduled sequence counts as accessed in that step. Marking each one
    in each step would cost the length of the table, so the table remembers the time and
    hands it to a block when the block leaves (:meth:`stamp`); until then nobody asks.

    Attributes:
        last_accessed: When the sequence was last scheduled with this table.
    """

    __slots__ = ("_blocks", "_num_leading_computed", "last_accessed")

    def __init__(self, blocks: list[PhysicalTokenBlock] | None = None) -> None:
        self._blocks = blocks if blocks is not None else []
        self._num_leading_computed = 0
        self.last_accessed = NEVER_ACCESSED

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[PhysicalTokenBlock]:
        return iter(self._blocks)

    def __getitem__(self, index: int) -> PhysicalTokenBlock:
        return self._blocks[index]

    @property
    def last(self) -> PhysicalTokenBlock:
        """The block that holds the sequence's newest token."""
        return self._blocks[-1]

    @property
    def block_numbers(self) -> list[int]:
        """Numbers of the blocks, in order."""
        return [block.block_number for block in self._blocks]

    def append(self, block: PhysicalTokenBlock) -> None:
        """Add a block at the end."""
        self._blocks.append(block)

    def replace_last(self, block: PhysicalTokenBlock) -> None:
        """Put ``block`` in place of the last one."""
        self._blocks[-1] = block

    def copy(self) -> "BlockTable":
        """A table of the same blocks whose sequence has not been scheduled yet."""
        return BlockTable(self._blocks.copy())

    def stamp(self, block: PhysicalTokenBlock) -> None:
        """Tell a block that leaves this table when it was last accessed here."""
        if self.last_accessed > block.last_accessed:
            block.last_accessed = self.last_accessed

    def num_leading_computed(self) -> int:
        """Leading blocks that are computed, the last block of the table never counted.

        A block in use stays computed, so each is looked at once in a table's life.
        """
        blocks, count = self._blocks, self._num_leading_computed
        while count < len(blocks) - 1 and blocks[count].computed:
            count += 1
        self._num_leading_computed = count
        return count
