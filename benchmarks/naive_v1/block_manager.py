"""Which blocks requests get: hits, the window, and what must stay free."""

from collections import deque

from naive_v1.block_pool import NaiveBlock, NaiveBlockPool
from naive_v1.progress import Progress


class NaiveBlockManager:
    """Gives requests their blocks and takes them back.

    Args:
        block_size: Tokens in a block.
        num_gpu_blocks: Blocks of the pool, the null block included.
        enable_prefix_caching: Let prompts find the content of earlier requests.
        max_model_len: Longest sequence.
        watermark: Share of the pool that an admission leaves free beside others.
        scheduler_reserve_full_isl: Admit only what would fit as a whole.
        sliding_window: Tokens that attention reaches back, the newest included.
        max_tokens_in_flight: Most tokens scheduled and not handed in.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        enable_prefix_caching: bool,
        max_model_len: int,
        watermark: float,
        scheduler_reserve_full_isl: bool,
        sliding_window: int | None,
        max_tokens_in_flight: int,
    ) -> None:
        self.pool = NaiveBlockPool(num_gpu_blocks)
        self._block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._max_model_len = max_model_len
        self._watermark_blocks = int(watermark * num_gpu_blocks)
        self._reserves_all = scheduler_reserve_full_isl
        self._window = sliding_window
        self._max_held_blocks = num_gpu_blocks
        if sliding_window is not None:
            num_held = sliding_window - 1 + max_tokens_in_flight
            self._max_held_blocks = self._num_blocks(num_held) + 1

    def get_computed_blocks(self, one: Progress) -> list[NaiveBlock]:
        """Cached blocks that a request may begin with; its last token is never one."""
        if not self._enable_prefix_caching:
            return []
        keys = one.keys[: (one.num_tokens - 1) // self._block_size]
        if self._window is not None:
            return self._hits_in_window(keys, self._window)
        hits = []
        for key in keys:
            block = self.pool.find(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def admit(
        self,
        one: Progress,
        hits: list[NaiveBlock],
        num_tokens: int,
        *,
        others_run: bool,
    ) -> list[NaiveBlock] | None:
        """The table of a request that begins with the hits; None if it does not fit."""
        num_usable = self.pool.num_free_blocks
        if others_run:
            num_usable -= self._watermark_blocks
        num_computed = len(hits) * self._block_size
        num_needed = self._num_blocks(num_computed + num_tokens)
        if self._reserves_all:
            whole = min(self._num_blocks(one.num_tokens), self._max_held_blocks)
            num_needed = max(num_needed, whole)
        num_revived = sum(
            block.ref_cnt == 0 and block is not self.pool.null_block for block in hits
        )
        if max(0, num_needed - len(hits)) + num_revived > num_usable:
            return None
        for block in hits:
            if block is not self.pool.null_block:
                self.pool.touch(block)
        one.table = list(hits)
        one.num_cached_blocks = len(hits)
        one.num_computed_tokens = one.num_handed_in_tokens = num_computed
        self._grow(one, num_tokens)
        return list(one.table)

    def allocate_slots(self, one: Progress, num_tokens: int) -> list[NaiveBlock] | None:
        """The blocks that a running request gets for more tokens; None: too few free."""
        self._drop_behind_window(one)
        num_slots = one.num_computed_tokens + num_tokens
        num_new_blocks = self._num_blocks(num_slots) - len(one.table)
        if num_new_blocks > self.pool.num_free_blocks:
            return None
        return self._grow(one, num_tokens)

    def cache_blocks(self, one: Progress, num_tokens: int) -> None:
        """Cache the full blocks of the first tokens."""
        if not self._enable_prefix_caching:
            return
        for place in range(one.num_cached_blocks, num_tokens // self._block_size):
            if one.table[place] is not self.pool.null_block:
                self.pool.cache(one.table[place], one.keys[place])
            one.num_cached_blocks = place + 1

    def free(self, one: Progress) -> None:
        """Take all blocks of a request back, the last one first."""
        self.pool.free_blocks(reversed(one.table))
        one.table = []
        one.num_cached_blocks = 0
        one.num_computed_tokens = one.num_handed_in_tokens = 0

    def _grow(self, one: Progress, num_tokens: int) -> list[NaiveBlock]:
        """Add the blocks for more tokens, and cache those that are full by then."""
        num_slots = one.num_computed_tokens + num_tokens
        num_new_blocks = self._num_blocks(num_slots) - len(one.table)
        blocks = self.pool.get_new_blocks(num_new_blocks)
        one.table.extend(blocks)
        self.cache_blocks(one, min(num_slots, one.num_tokens))
        return blocks

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._max_model_len) // self._block_size)

    def _hits_in_window(self, keys: list[int], window: int) -> list[NaiveBlock]:
        """The last run of cached blocks that fills the window, else the leading run."""
        num_needed = -(-(window - 1) // self._block_size)
        run: deque[NaiveBlock] = deque()
        for place in range(len(keys) - 1, -1, -1):
            block = self.pool.find(keys[place])
            if block is None:
                run.clear()
                continue
            run.appendleft(block)
            if len(run) == num_needed:
                return [self.pool.null_block] * place + list(run)
        return list(run)

    def _drop_behind_window(self, one: Progress) -> None:
        """Free the blocks that no token to come can see."""
        if self._window is None:
            return
        num_hidden = one.num_handed_in_tokens - self._window + 1
        dropped = []
        for place in range(num_hidden // self._block_size - 1, -1, -1):
            if one.table[place] is self.pool.null_block:
                break
            dropped.append(one.table[place])
            one.table[place] = self.pool.null_block
        self.pool.free_blocks(dropped)
