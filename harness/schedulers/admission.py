"""Who is admitted next, and with what: cached blocks, loaded blocks, new blocks.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/sched``), recorded in tests/data/golden;
docs/v1.md states the rules.
"""

from allocators.block_pool import NO_BLOCKS
from allocators.kv_cache_manager import KVCacheManager
from harness.schedulers.batch import Dismissal, Refused
from harness.schedulers.call_v1 import Call, Hits, Part
from harness.schedulers.departure import Departures
from harness.schedulers.engine_request import EngineRequest
from harness.schedulers.limits import Limits
from harness.schedulers.offloading import Offloading
from harness.schedulers.running_queue import RunningQueue
from harness.schedulers.waiting_queue import WaitingQueue


class Admission:
    """Turns waiting requests into running ones, as far as blocks and tokens reach.

    Args:
        manager: Their blocks.
        waiting: Who waits.
        loading: Who holds blocks already, which the offload tier fills or has filled.
            They come before those who wait.
        running: Where they go.
        departures: Lets those go that can never run.
        limits: The scheduler's.
        offloading: Copies to and from a tier of CPU blocks, if there is one.

    Attributes:
        is_open: Something has happened since the latest call by which who was refused
            then may be admitted now.
        loads: Who holds blocks and does not run: loading, or loaded.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        waiting: WaitingQueue,
        loading: WaitingQueue,
        running: RunningQueue,
        departures: Departures,
        limits: Limits,
        offloading: Offloading | None,
    ) -> None:
        self.is_open = False
        self.loads: dict[EngineRequest, None] = {}
        self._manager = manager
        self._waiting = waiting
        self._loading = loading
        self._running = running
        self._departures = departures
        self._limits = limits
        self._offloading = offloading

    @property
    def num_candidates(self) -> int:
        """Requests that do not run yet, or not any more."""
        return len(self._waiting) + len(self._loading)

    def open(self) -> None:
        """Take note that who was refused may be admitted now."""
        self.is_open = True

    def add(self, request: EngineRequest) -> None:
        """Let a request wait that has arrived."""
        self._waiting.push(request)
        self.open()
        if self._offloading is not None:
            self._offloading.begin(request)

    def admit(self, call: Call) -> None:
        """Admit requests in order, up to the first that has to wait on.

        Who waits for a copy keeps its place, and the others go on.
        """
        passed_over: list[EngineRequest] = []
        running, max_num_seqs = self._running.requests, self._limits.max_num_seqs
        while call.num_tokens_left > 0 and len(running) < max_num_seqs:
            queue = self._loading or self._waiting
            if not queue:
                break
            hits = self._look_up(queue.first())
            if hits is None:
                passed_over.append(queue.pop())
            elif not self._admit(call, queue, hits):
                break
        for request in reversed((*passed_over, *call.loading)):
            holds_blocks = request.blocks.num_blocks > 0
            (self._loading if holds_blocks else self._waiting).push_back(request)
        self.is_open = False

    def take_all(self) -> list[EngineRequest]:
        """Forget who holds blocks and does not run; who that was."""
        loads = list(self.loads)
        self.loads.clear()
        return loads

    def check_invariants(self) -> None:
        """Raise AssertionError unless exactly those hold blocks who load or loaded."""
        assert set(self.loads) == set(self._loading)
        assert all(not request.blocks.num_blocks for request in self._waiting)

    def _look_up(self, request: EngineRequest) -> Hits | None:
        """What the caches have of a request; None as long as it waits for a copy."""
        if request.is_loading:
            return None
        if request.num_computed_tokens:  # it was loaded
            self._manager.cache_blocks(request.blocks, request.num_computed_tokens)
            if request.num_computed_tokens == request.num_tokens:
                request.num_computed_tokens -= 1  # whose output is the next token
            return Hits(NO_BLOCKS, 0, request.num_computed_tokens)
        block_ids = self._manager.get_computed_blocks(request.blocks, request.num_tokens)
        num_loadable: int | None = 0
        if self._offloading is not None:
            num_loadable = self._offloading.num_loadable_blocks(request, len(block_ids))
        if num_loadable is None:
            return None
        return Hits(block_ids, num_loadable, len(block_ids) * self._manager.block_size)

    def _admit(self, call: Call, queue: WaitingQueue, hits: Hits) -> bool:
        """Admit the first request of a queue, or dismiss it; False if it waits on."""
        request, limits = queue.first(), self._limits
        num_wanted_tokens = request.num_tokens - hits.num_tokens
        reason = self._never(request, num_wanted_tokens)
        if reason is not None and not limits.waits_like_vllm:
            self.loads.pop(request, None)
            self._departures.dismiss(call, queue.pop(), reason)
            return True
        if hits.num_loadable_blocks:
            return self._load(call, queue, hits)
        num_tokens = limits.below_threshold(call, num_wanted_tokens)
        if num_tokens > call.num_tokens_left and not limits.enable_chunked_prefill:
            return False
        num_tokens = min(num_tokens, call.num_tokens_left)
        if not self._allocate(call, request, hits, hits.num_tokens + num_tokens):
            return False
        queue.pop()
        self._start(call, request, hits, num_tokens)
        return True

    def _start(
        self, call: Call, request: EngineRequest, hits: Hits, num_tokens: int
    ) -> None:
        """Let a request run that has its blocks."""
        self.loads.pop(request, None)
        request.num_computed_tokens = request.num_settled_tokens = hits.num_tokens
        self._running.start(request)
        if self._offloading is not None:
            self._offloading.owe(request)
        num_loaded_tokens = min(request.num_loaded_tokens, hits.num_tokens)
        request.num_loaded_tokens = 0
        call.take(
            Part(
                request,
                num_tokens,
                is_prefill=True,
                is_admission=True,
                num_cached_tokens=hits.num_tokens,
                num_loaded_tokens=num_loaded_tokens,
            )
        )

    def _load(self, call: Call, queue: WaitingQueue, hits: Hits) -> bool:
        """Give a request blocks for what the tier has of it, and have them filled."""
        assert self._offloading is not None, "only it finds what can be loaded"
        request, block_size = queue.first(), self._manager.block_size
        num_loaded_tokens = hits.num_loadable_blocks * block_size
        num_tokens = hits.num_tokens + num_loaded_tokens
        if not self._allocate(call, request, hits, num_tokens):
            return False
        begin = len(hits.block_ids)
        self._offloading.load(request, begin, begin + hits.num_loadable_blocks)
        request.num_computed_tokens = num_tokens
        request.num_loaded_tokens = num_loaded_tokens
        request.is_loading = True
        self.loads[request] = None
        call.loading += (queue.pop(),)
        return True

    def _allocate(
        self, call: Call, request: EngineRequest, hits: Hits, num_tokens: int
    ) -> bool:
        """Give a request that is to be admitted, or loaded, blocks for its tokens.

        Full blocks of a load are named only when they are filled, and blocks that other
        requests need to get through their prefill are out of its reach.
        """
        manager, is_load = self._manager, hits.num_loadable_blocks > 0
        num_full = request.num_tokens if self._limits.scheduler_reserve_full_isl else 0
        num_reserved = manager.watermark_blocks if self._running.requests else 0
        num_promised = self._num_promised_blocks() if is_load else 0
        num_held = request.blocks.num_blocks + len(hits.block_ids)
        if manager.allocate_slots(
            request.blocks,
            num_tokens,
            0 if is_load else request.num_tokens,
            hits=hits.block_ids,
            num_settled_tokens=hits.num_tokens,
            num_reserved_blocks=num_reserved,
            num_promised_blocks=num_promised,
            num_full_tokens=num_full,
        ):
            return True
        call.refused = Refused(
            manager.num_missing_blocks(num_held, num_tokens, num_full),
            max(0, manager.block_pool.num_free_blocks - num_reserved - num_promised),
        )
        return False

    def _num_promised_blocks(self) -> int:
        """Blocks that prefills under way, and loads, still need for all their tokens."""
        under_way = [r for r in self._running.individuals if not r.has_sampled]
        return sum(
            self._manager.num_blocks_of(request.num_tokens) - request.blocks.num_blocks
            for request in (*under_way, *self.loads)
        )

    def _never(self, request: EngineRequest, num_wanted_tokens: int) -> Dismissal | None:
        """Why a waiting request can never run, if so."""
        manager, limits = self._manager, self._limits
        num_usable = manager.block_pool.num_gpu_blocks - 1
        if manager.num_missing_blocks(0, 1, request.num_tokens) > num_usable:
            return Dismissal.EXCEEDS_KV_CAPACITY
        if limits.enable_chunked_prefill or limits.long_prefill_token_threshold:
            return None
        if num_wanted_tokens > limits.max_num_batched_tokens:
            return Dismissal.TOO_LONG_FOR_A_STEP
        return None
