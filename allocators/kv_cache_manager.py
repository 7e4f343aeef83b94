"""Which blocks a request holds, and whether it gets more: vLLM's V1 bookkeeping.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/kv_cache_manager.py``), recorded in
tests/data/golden; docs/v1.md states the rules.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from allocators.block_pool import NO_BLOCKS, NULL_BLOCK, BlockPool
from allocators.content import ContentIndex, ContentPath
from allocators.free_block_queue import BlockIds


class RequestBlocks:
    """The blocks of one request.

    Args:
        path: Its contents; ``None`` without prefix caching.
        capacity: Blocks of its table when it is as long as it gets, where this is known.

    Attributes:
        num_blocks: Blocks of its table, null blocks included.
        num_named: Leading blocks that are cached under their content.
        num_outside: Leading blocks that a sliding window has passed.
        was_freed: It has had blocks before, and may find them cached.
    """

    __slots__ = (
        "_capacity", "_size", "_table", "_table_at", "num_blocks", "num_named",
        "num_outside", "path", "was_freed",
    )  # fmt: skip

    def __init__(self, path: ContentPath | None, capacity: int = 0) -> None:
        self.path = path
        self._capacity = capacity
        self.was_freed = False
        self.num_blocks = self.num_named = self.num_outside = 0
        self._table, self._table_at, self._size = NO_BLOCKS, NO_BLOCKS.data, 0

    @property
    def block_ids(self) -> BlockIds:
        """Its table; not to be kept, as it changes."""
        return self._table[: self.num_blocks]

    def block_id(self, place: int) -> int:
        """One block of its table."""
        block_id: int = self._table_at[place]
        return block_id

    def append(self, block_ids: BlockIds) -> None:
        """Put blocks at the end of the table."""
        end = self.num_blocks + len(block_ids)
        if end > self._size:
            self._make_room(end)
        self._table[self.num_blocks : end] = block_ids
        self.num_blocks = end

    @staticmethod
    def append_one_each(
        tables: Sequence["RequestBlocks"], block_ids: Sequence[int]
    ) -> None:
        """Put one block at the end of each table."""
        for table, block_id in zip(tables, block_ids, strict=True):
            place = table.num_blocks
            if place == table._size:
                table._make_room(place + 1)
            table._table_at[place] = block_id
            table.num_blocks = place + 1

    def clear(self) -> None:
        """Forget all blocks."""
        self.was_freed = True
        self.num_blocks = self.num_named = self.num_outside = 0
        self._table, self._table_at, self._size = NO_BLOCKS, NO_BLOCKS.data, 0

    def _make_room(self, num_blocks: int) -> None:
        size = max(num_blocks, self._capacity, self._size + self._size // 4)
        table = np.empty(size, dtype=np.int64)
        table[: self.num_blocks] = self.block_ids
        # The same memory again: single numbers are faster through a view.
        self._table, self._table_at, self._size = table, table.data, size


class KVCacheManager:
    """Gives requests their blocks and finds what is cached for them.

    Args:
        block_size: Tokens in a block.
        num_gpu_blocks: Blocks of the pool, the null block among them.
        enable_caching: Name full blocks by content, and find them again.
        max_model_len: Longest sequence.
        watermark: Share of the blocks that an admission beside running requests leaves
            free.
        sliding_window: Tokens that a token attends to, itself included, where every
            layer has this window; ``None`` for full attention.
        max_step_tokens: With a window: most tokens that a request computes before its
            blocks are looked at again.
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        *,
        enable_caching: bool,
        max_model_len: int,
        watermark: float = 0.0,
        sliding_window: int | None = None,
        max_step_tokens: int = 0,
    ) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.sliding_window = sliding_window
        self.block_pool = BlockPool(num_gpu_blocks)
        self.index = None
        if enable_caching and sliding_window != 1:
            # A window of one token never needs a block that is cached: none is named.
            self.index = ContentIndex(block_size, self.block_pool.forget)
        self._max_window_blocks: int | None = None
        if sliding_window is not None:
            num_tokens = min(sliding_window - 1 + max_step_tokens, max_model_len)
            self._max_window_blocks = -(-num_tokens // block_size) + 1

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens, of at most the model's length."""
        if num_tokens > self.max_model_len:
            num_tokens = self.max_model_len
        return -(-num_tokens // self.block_size)

    def get_computed_blocks(self, blocks: RequestBlocks, num_tokens: int) -> BlockIds:
        """The cached blocks that a request of so many tokens begins with.

        Its last token is always computed. Changes nothing.
        """
        if blocks.path is None:
            return NO_BLOCKS
        num_blocks = (num_tokens - 1) // self.block_size
        own = blocks.path.own
        if own is not None and not blocks.was_freed:
            num_blocks = min(num_blocks, own.begin)  # nobody else can have cached them
        parts = blocks.path.parts(0, num_blocks)
        if self.sliding_window is None:
            return self.block_pool.find(parts)
        num_needed = -(-(self.sliding_window - 1) // self.block_size)
        return self.block_pool.find_last(parts, num_needed)

    def allocate_slots(
        self,
        blocks: RequestBlocks,
        num_tokens: int,
        num_known_tokens: int,
        *,
        hits: BlockIds = NO_BLOCKS,
        num_settled_tokens: int = 0,
        num_reserved_blocks: int = 0,
        num_promised_blocks: int = 0,
        num_full_tokens: int = 0,
    ) -> bool:
        """Give a request blocks for its first ``num_tokens``; all or nothing.

        Full blocks of known tokens are named at once, before they are computed: a
        request admitted in the same step can already hit them.

        Args:
            blocks: What it holds.
            num_tokens: Its tokens that are computed by the end of the step.
            num_known_tokens: Its tokens that are known by now.
            hits: Cached blocks that it begins with, for a request that holds none.
            num_settled_tokens: Its tokens that steps before have computed; what a
                sliding window has passed of them is freed even if nothing is given.
            num_reserved_blocks: Blocks that must stay free.
            num_promised_blocks: Blocks that must stay free besides, but may be counted
                as room for ``num_full_tokens``.
            num_full_tokens: Tokens for which there must be room as well.

        Returns:
            Whether there was room.
        """
        pool = self.block_pool
        if self.sliding_window is not None:
            self._drop_outside(blocks, num_settled_tokens)
        num_hits = len(hits)
        num_held = blocks.num_blocks + num_hits
        num_new = self.num_missing_blocks(num_held, num_tokens)
        num_room = pool.num_free_blocks - num_reserved_blocks
        touched = idle = hits
        if num_hits:
            touched = hits if self.sliding_window is None else hits[hits != NULL_BLOCK]
            idle = pool.idle(touched)
            num_room -= len(idle)
        if num_new + num_promised_blocks > num_room or (
            num_full_tokens
            and self.num_missing_blocks(num_held, 0, num_full_tokens) > num_room
        ):
            return False
        if num_hits:
            pool.touch(touched, idle)
            blocks.append(hits)
            blocks.num_named = num_hits
            blocks.num_outside = num_hits - len(touched)
        if num_new:
            blocks.append(pool.get_new_blocks(num_new))
        self.cache_blocks(blocks, min(num_tokens, num_known_tokens))
        return True

    def num_missing_blocks(
        self, num_held: int, num_tokens: int, num_full_tokens: int = 0
    ) -> int:
        """Blocks that a request with so many would need for its tokens, and in full."""
        num_blocks = self.num_blocks_of(num_tokens)
        if num_full_tokens:
            num_full = self.num_blocks_of(num_full_tokens)
            if self._max_window_blocks is not None:
                num_full = min(num_full, self._max_window_blocks)
            num_blocks = max(num_blocks, num_full)
        return max(0, num_blocks - num_held)

    def append_blocks(self, receivers: Sequence[RequestBlocks]) -> None:
        """Give each of these one block more, in this order; so many must be free."""
        taken = self.block_pool.get_single_blocks(len(receivers))
        RequestBlocks.append_one_each(receivers, taken)

    def cache_blocks(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """Name the full blocks of a request's first ``num_tokens``."""
        num_full = num_tokens // self.block_size
        if blocks.path is None or num_full <= blocks.num_named:
            return
        begin = max(blocks.num_named, blocks.num_outside)
        own, pool = blocks.path.own, self.block_pool
        is_new = own is not None and not blocks.was_freed
        for part in blocks.path.parts(begin, num_full):
            block_ids = blocks.block_ids[part.begin : part.end]
            if is_new and own is not None and part.begin >= own.begin:
                pool.cache_new_blocks(part.first, block_ids)
            else:
                pool.cache_blocks(part.first, block_ids)
        blocks.num_named = num_full

    def cache_next_blocks(self, holders: Sequence[RequestBlocks]) -> None:
        """Name the next full block of each of these, in this order."""
        contents, block_ids = [], []
        for blocks in holders:
            place = blocks.num_named
            assert blocks.path is not None, "blocks are named only while caching"
            contents.append(blocks.path.content(place))
            block_ids.append(blocks.block_id(place))
            blocks.num_named = place + 1
        self.block_pool.cache_single_blocks(contents, block_ids)

    def free(self, blocks: RequestBlocks) -> None:
        """Take all blocks of a request back, the last first."""
        self._free(blocks, blocks.num_outside, blocks.num_blocks)
        blocks.clear()

    def finish(self, blocks: RequestBlocks) -> None:
        """Take all blocks of a request back that is over."""
        self.free(blocks)
        if self.index is not None and blocks.path is not None:
            self.index.end(blocks.path)

    def _free(self, blocks: RequestBlocks, begin: int, end: int) -> None:
        """Free a stretch of a table, its last block first."""
        num_named = 0 if blocks.path is None else blocks.num_named
        num_unnamed = end - min(max(begin, num_named), end)
        block_ids = blocks.block_ids[begin:end][::-1].copy()
        self.block_pool.free_blocks(block_ids, num_unnamed)

    def _drop_outside(self, blocks: RequestBlocks, num_settled_tokens: int) -> None:
        """Free what the window has passed, the last first; null blocks take its place."""
        assert self.sliding_window is not None, "only a window passes blocks"
        num_passed = num_settled_tokens - self.sliding_window + 1
        num_outside = min(max(0, num_passed) // self.block_size, blocks.num_blocks)
        if num_outside > blocks.num_outside:
            self._free(blocks, blocks.num_outside, num_outside)
            blocks.block_ids[blocks.num_outside : num_outside] = NULL_BLOCK
            blocks.num_outside = num_outside

    def check_invariants(self, tables: Iterable[RequestBlocks]) -> None:
        """Raise AssertionError unless the pool agrees with who holds what.

        Args:
            tables: The blocks of every request that has any.
        """
        self.block_pool.check_invariants()
        num_held = np.zeros(self.block_pool.num_gpu_blocks, dtype=np.int64)
        for blocks in tables:
            held = blocks.block_ids[blocks.num_outside :]
            assert NULL_BLOCK not in held, "a null block inside the window"
            np.add.at(num_held, held, 1)
        assert (num_held == self.block_pool.ref_cnt).all(), "held by nobody, or twice"
