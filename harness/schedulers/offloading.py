"""Copies between the GPU's blocks and a tier of CPU blocks: what, when, and for whom.

Source: behaviour of vLLM 0.32's offloading connector (its scheduler side), recorded in
tests/data/golden; docs/v1.md states the rules.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocators.block_pool import NO_BLOCKS
from allocators.content import ContentPath
from allocators.free_block_queue import BlockIds
from allocators.offload_tier import OffloadTier
from harness.schedulers.batch import Transfer, TransferId
from harness.schedulers.engine_request import EngineRequest


@dataclass(slots=True, eq=False)
class _Offered:
    """What the tier knows of a request.

    Attributes:
        num_blocks: Full blocks of the prompt.
        num_offered: Leading blocks that have been offered, or came from the tier.
        is_used: By block of the sequence: it was loaded, or offered while it was absent
            or ready.
        transfers: Copies under way.
        block_ids: Its table when it last had one, as far as stores need it.
    """

    num_blocks: int
    num_offered: int = 0
    is_used: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    transfers: set[TransferId] = field(default_factory=set)
    block_ids: BlockIds = field(default_factory=lambda: NO_BLOCKS)

    def use(self, begin: int, end: int, which: NDArray[np.bool_] | bool) -> None:
        """Note that blocks ``begin`` to ``end`` of the sequence, or some, were used."""
        if end > len(self.is_used):
            more = np.zeros(max(end, self.num_blocks) - len(self.is_used), np.bool_)
            self.is_used = np.concatenate((self.is_used, more))
        self.is_used[begin:end] |= which


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy under way.

    Attributes:
        request: For whom.
        contents: What is copied.
        block_ids: The GPU blocks of a store; empty for a load.
        is_store: To the tier, or from it.
    """

    request: EngineRequest
    contents: NDArray[np.int64]
    block_ids: BlockIds
    is_store: bool


class Offloading:
    """Loads prompts from a tier and stores them there.

    Prompt blocks are offered to the tier in the step that computes them; what it lacks
    is copied beside the steps. A copy reads GPU blocks that may be handed out again
    meanwhile: it is then forced to end first.

    Args:
        tier: The CPU blocks.
        block_size: Tokens in a block.
        num_gpu_blocks: Blocks of the GPU's pool.

    Attributes:
        owing: Requests that have run, and of whose prompt not all has been offered.
    """

    def __init__(self, tier: OffloadTier, block_size: int, num_gpu_blocks: int) -> None:
        self.tier = tier
        self._block_size = block_size
        self._offered: dict[EngineRequest, _Offered] = {}
        self.owing: dict[EngineRequest, None] = {}
        self._over: list[EngineRequest] = []
        self._copies: dict[TransferId, _Copy] = {}
        self._num_copies = 0
        self._num_fences = np.zeros(num_gpu_blocks, dtype=np.int64)
        self._fenced: dict[TransferId, None] = {}
        self._new_loads: list[Transfer] = []
        self._has_changed = False  # by copies that have ended since the last offers

    @property
    def has_transfers(self) -> bool:
        """Whether a copy is under way."""
        return bool(self._copies)

    @property
    def has_work(self) -> bool:
        """Whether a call has something to do even if no request is left."""
        return bool(self._copies or self._over)

    @property
    def asks_for_allocated(self) -> bool:
        """Whether it matters to the next call which blocks are given out in it."""
        return bool(self._fenced or self._over)

    @property
    def may_offer_again(self) -> bool:
        """Whether an offer that was refused may be taken by the next call."""
        return bool(self._has_changed and self.owing)

    def check_invariants(self) -> None:
        """Raise AssertionError unless copies, fences and offers agree."""
        num_fences = np.zeros_like(self._num_fences)
        for transfer_id in self._fenced:
            num_fences[self._copies[transfer_id].block_ids] += 1
        assert (num_fences == self._num_fences).all()
        assert set(self.owing) <= set(self._offered)
        self.tier.check_invariants()

    def request_of(self, transfer_id: TransferId) -> EngineRequest:
        """For whom a copy under way is made."""
        return self._copies[transfer_id].request

    # -- admission ---------------------------------------------------------------------

    def begin(self, request: EngineRequest) -> None:
        """Take note of a request that has arrived."""
        num_blocks = request.request.num_prompt_tokens // self._block_size
        self._offered[request] = _Offered(num_blocks)

    def owe(self, request: EngineRequest) -> None:
        """Take note that a request runs, and what it computes is to be offered."""
        offered = self._offered[request]
        if offered.num_offered < offered.num_blocks:
            self.owing[request] = None

    def num_loadable_blocks(
        self, request: EngineRequest, num_gpu_hits: int
    ) -> int | None:
        """Blocks that the tier has after those that the GPU has; None: not known yet.

        That is so while one of them is being copied, or the request has copies left.
        """
        offered = self._offered[request]
        offered.block_ids = NO_BLOCKS
        if offered.transfers:
            return None
        num_full = request.num_tokens // self._block_size
        contents = self._contents(request, num_gpu_hits, num_full)
        run = self.tier.leading_run(contents)
        return run if self.tier.are_at_rest(contents[:run]) else None

    def load(self, request: EngineRequest, begin: int, end: int) -> None:
        """Start to copy blocks ``begin`` to ``end`` of a sequence to its GPU blocks."""
        contents = self._contents(request, begin, end)
        offered = self._offered[request]
        offered.num_offered = end
        offered.use(begin, end, True)
        self.tier.begin_load(contents)
        copy = _Copy(request, contents, NO_BLOCKS, is_store=False)
        self._new_loads.append(self._start(copy))

    # -- the end of a call -------------------------------------------------------------

    def keep_table(self, request: EngineRequest) -> None:
        """Remember the blocks of a request that is about to lose them, if it has any."""
        offered = self._offered[request]
        if request.blocks.num_blocks:
            offered.block_ids = request.blocks.block_ids[: offered.num_blocks].copy()

    def end(self, request: EngineRequest) -> None:
        """Take note that a request has left; the next call offers the rest of it."""
        self._over.append(request)
        for transfer_id in self._offered[request].transfers:
            self._fence(transfer_id)

    def close_call(
        self,
        scheduled: Iterable[EngineRequest],
        preempted: Iterable[EngineRequest],
        allocated: Sequence[BlockIds],
    ) -> tuple[list[Transfer], list[TransferId]]:
        """Offer what a step computes, and what is left of requests that are over.

        Args:
            scheduled: Who runs in the step, in the order of scheduling.
            preempted: Who lost its blocks in the call.
            allocated: Blocks that were given out in the call.

        Returns:
            Copies to start, loads first, and stores that must end before the step.
        """
        is_given = np.zeros(len(self._num_fences), dtype=np.bool_)
        for block_ids in allocated:
            is_given[block_ids] = True
        forced = {t: None for r in preempted for t in self._offered[r].transfers}
        forced |= dict.fromkeys(self._overwritten(is_given))
        transfers, self._new_loads = self._new_loads, []
        for request in scheduled:
            if request in self.owing:
                transfers += self._store(request, request.num_computed_tokens)
        over = sorted(self._over, key=_name)
        for request in over:
            for store in self._store(request, request.request.num_prompt_tokens):
                transfers.append(store)
                self._fence(store.transfer_id)
                if self._is_overwritten(store.transfer_id, is_given):
                    forced[store.transfer_id] = None
        self._over.clear()
        self._has_changed = False
        for request in over:
            self._forget(request)
        return transfers, list(forced)

    def _store(self, request: EngineRequest, num_tokens: int) -> list[Transfer]:
        """Offer a request's prompt blocks among its first ``num_tokens``."""
        offered = self._offered[request]
        table = request.blocks.block_ids
        if not len(table):
            table = offered.block_ids
        begin = offered.num_offered
        end = min(num_tokens // self._block_size, offered.num_blocks, len(table))
        if end <= begin:
            return []
        contents = self._contents(request, begin, end)
        is_storing, is_stored = self.tier.begin_store(contents)
        offered.use(begin, end, ~is_storing)
        if is_stored is None:
            return []
        offered.num_offered = end
        if end == offered.num_blocks:
            self.owing.pop(request, None)
        if not is_stored.any():
            return []
        stored, block_ids = contents[is_stored], table[begin:end][is_stored]
        return [self._start(_Copy(request, stored, block_ids, is_store=True))]

    def _forget(self, request: EngineRequest) -> None:
        """What a request that is over has used is now the most recently used."""
        is_used = self._offered[request].is_used
        contents = self._contents(request, 0, len(is_used))
        self.tier.touch(contents[is_used][::-1])
        self.owing.pop(request, None)
        if not self._offered[request].transfers:
            del self._offered[request]

    def _start(self, copy: _Copy) -> Transfer:
        transfer_id = self._num_copies
        self._num_copies += 1
        self._copies[transfer_id] = copy
        self._offered[copy.request].transfers.add(transfer_id)
        return Transfer(transfer_id, len(copy.contents), is_store=copy.is_store)

    # -- blocks that are read and given out again --------------------------------------

    def _fence(self, transfer_id: TransferId) -> None:
        """From now on the blocks that a store reads may be given to others."""
        self._fenced[transfer_id] = None
        self._num_fences[self._copies[transfer_id].block_ids] += 1

    def _overwritten(self, is_given: NDArray[np.bool_]) -> list[TransferId]:
        """Stores that read blocks given out in this call."""
        if not self._fenced or not self._num_fences[is_given].any():
            return []
        return [t for t in self._fenced if self._is_overwritten(t, is_given)]

    def _is_overwritten(
        self, transfer_id: TransferId, is_given: NDArray[np.bool_]
    ) -> bool:
        return bool(is_given[self._copies[transfer_id].block_ids].any())

    # -- the end of a copy -------------------------------------------------------------

    def transfers_done(self, transfers: Iterable[TransferId]) -> list[EngineRequest]:
        """Take note that copies have ended; whose load it was."""
        loaded = []
        self._has_changed = True
        for transfer_id in transfers:
            copy = self._copies.pop(transfer_id)
            if copy.is_store:
                self.tier.end_store(copy.contents)
            else:
                self.tier.end_load(copy.contents)
                loaded.append(copy.request)
            if transfer_id in self._fenced:
                del self._fenced[transfer_id]
                self._num_fences[copy.block_ids] -= 1
            self._drop(copy.request, transfer_id)
        return loaded

    def _drop(self, request: EngineRequest, transfer_id: TransferId) -> None:
        offered = self._offered[request]
        offered.transfers.remove(transfer_id)
        if request.has_left and request not in self._over and not offered.transfers:
            del self._offered[request]

    def _contents(
        self, request: EngineRequest, begin: int, end: int
    ) -> NDArray[np.int64]:
        path = request.blocks.path
        assert isinstance(path, ContentPath), "offloading needs prefix caching"
        return path.contents(begin, end)


def _name(request: EngineRequest) -> tuple[int, int]:
    return request.request.request_id, request.sample
