"""A pool of blocks and the cache of their content, touched one block at a time."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class NaiveBlock:
    """A block and the content it is cached under, if any.

    Attributes:
        number: Its position in memory; 0 is the null block.
        key: Its content's name; ``None`` while it is not cached.
        ref_cnt: Requests that hold it.
    """

    number: int
    key: int | None = None
    ref_cnt: int = 0


class NaiveBlockPool:
    """Blocks 1 to ``num_gpu_blocks - 1`` are each in the free queue or held by a request.

    Args:
        num_gpu_blocks: Blocks, the null block included.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.null_block = NaiveBlock(0)
        self._blocks = [NaiveBlock(number) for number in range(1, num_gpu_blocks)]
        self._free_block_queue = OrderedDict((b.number, b) for b in self._blocks)
        self._cached: dict[int, dict[int, NaiveBlock]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free_block_queue)

    def get_new_blocks(self, num_blocks: int) -> list[NaiveBlock]:
        """Blocks from the head of the queue; what was cached in them is lost."""
        blocks = []
        for _ in range(num_blocks):
            _, block = self._free_block_queue.popitem(last=False)
            if block.key is not None:
                self._evict(block, block.key)
            block.ref_cnt = 1
            blocks.append(block)
        return blocks

    def touch(self, block: NaiveBlock) -> None:
        """One more request holds the block."""
        if block.ref_cnt == 0:
            del self._free_block_queue[block.number]
        block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[NaiveBlock]) -> None:
        """Take blocks back: cached ones to the end of the queue, others to its front."""
        worthless = []
        for block in blocks:
            if block is self.null_block:
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and block.key is not None:
                self._free_block_queue[block.number] = block
            elif block.ref_cnt == 0:
                worthless.append(block)
        for block in reversed(worthless):
            self._free_block_queue[block.number] = block
            self._free_block_queue.move_to_end(block.number, last=False)

    def cache(self, block: NaiveBlock, key: int) -> None:
        """Let later prompts find the block under its content."""
        assert block.key is None, f"block {block.number} is cached already"
        block.key = key
        self._cached.setdefault(key, {})[block.number] = block

    def find(self, key: int) -> NaiveBlock | None:
        """The block that has been cached longest under the key."""
        same = self._cached.get(key)
        return next(iter(same.values())) if same else None

    def check_invariants(self, tables: Iterable[Sequence[NaiveBlock]]) -> None:
        """Raise AssertionError unless blocks are held as the tables say, else free."""
        num_holders = dict.fromkeys(range(len(self._blocks) + 1), 0)
        for table in tables:
            for block in table:
                num_holders[block.number] += 1
        for block in self._blocks:
            is_free = block.number in self._free_block_queue
            assert block.ref_cnt == num_holders[block.number], block
            assert is_free == (block.ref_cnt == 0), block

    def _evict(self, block: NaiveBlock, key: int) -> None:
        same = self._cached[key]
        del same[block.number]
        if not same:
            del self._cached[key]
        block.key = None
