"""The scheduler that every vLLM since 0.11 has: one running queue, recompute, no swap.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/sched``), recorded in tests/data/golden;
docs/v1.md states the rules.
"""

from collections.abc import Iterable

import numpy as np

from allocators.free_block_queue import BlockIds
from allocators.kv_cache_manager import KVCacheManager, RequestBlocks
from harness.request import Request, Run
from harness.schedulers.admission import Admission
from harness.schedulers.batch import Batch, CacheState, Finished, TransferId
from harness.schedulers.call_v1 import Call
from harness.schedulers.departure import Departures
from harness.schedulers.engine_request import EngineRequest, engine_requests_of
from harness.schedulers.limits import Limits
from harness.schedulers.offloading import Offloading
from harness.schedulers.running_queue import RunningQueue
from harness.schedulers.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue
from results.naming import named


class SchedulerV1:
    """Decides batches as vLLM 0.32 does, over a :class:`KVCacheManager`.

    In a call the running requests go on first, then others are admitted.

    Args:
        manager: Its blocks.
        limits: Its knobs.
        offloading: Copies to and from a tier of CPU blocks, if there is one.

    Attributes:
        waiting: Who is to be admitted.
        loading: Who is to be admitted and holds blocks that the offload tier fills.
        running: Who holds blocks and computes, in order of admission.
        latest_call: What the latest call decided.
        latest_finished: Who finished by the latest commit, in its order.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        limits: Limits,
        offloading: Offloading | None = None,
    ) -> None:
        self.manager = manager
        self.limits = limits
        self.offloading = offloading
        self.waiting: WaitingQueue = _queue(limits)
        self.loading: WaitingQueue = _queue(limits)
        self._departures = Departures(manager, offloading)
        self._running = RunningQueue(manager, self.waiting, limits, offloading)
        self._admission = Admission(
            manager,
            self.waiting,
            self.loading,
            self._running,
            self._departures,
            limits,
            offloading,
        )
        self.running = self._running.requests
        self.latest_call = Call(0, is_crowded=False)
        self.latest_finished: list[EngineRequest] = []

    def add(self, request: Request) -> None:
        """Put the samples of a request that has arrived into the waiting queue."""
        blocks = [self._blocks(request, output) for output in request.outputs]
        samples = engine_requests_of(request, blocks, self.limits.max_model_len)
        self._departures.expect(samples)
        for sample in samples:
            self._admission.add(sample)

    def _blocks(self, request: Request, output: Run) -> RequestBlocks:
        """What a sample will hold; nothing yet."""
        capacity = self.manager.num_blocks_of(request.num_prompt_tokens + output[1])
        if self.manager.index is None:
            return RequestBlocks(None, capacity)
        prompt, keys = request.prompt, request.extra_keys
        return RequestBlocks(self.manager.index.begin(prompt, output, keys), capacity)

    @property
    def has_unfinished(self) -> bool:
        """Whether there is a request, or something that a call has to be told of.

        As in vLLM, one call more follows the last finish.
        """
        return bool(
            self.running
            or self._admission.num_candidates
            or self._departures.has_news
            or (self.offloading is not None and self.offloading.has_work)
        )

    def schedule(self) -> Batch:
        """Decide the next step; all block decisions for it are made here."""
        num_present = len(self.running) + self._admission.num_candidates
        call = Call(self.limits.max_num_batched_tokens, is_crowded=num_present > 1)
        self._departures.begin_call(call)
        self._running.run(call)
        if not call.preempted:
            self._admission.admit(call)
        self._running.close(call)
        if self.offloading is not None:
            self._offer(call, self.offloading)
        if call.is_idle:
            self._running.drop_latest()
        self.latest_call = call
        return call.batch()

    def _offer(self, call: Call, offloading: Offloading) -> None:
        """Offer the tier what the step computes, and what is left of who has left."""
        steady = [
            request
            for request in offloading.owing
            if (request.is_in_lockstep and request.joined_clock < call.clock)
            or (request in call.ending and request not in call.parts)
        ]
        steady.sort(key=lambda request: request.order)
        transfers, flushed = offloading.close_call(
            [*steady, *call.parts],
            call.victims,
            self._allocated_blocks(call) if offloading.asks_for_allocated else (),
        )
        call.transfers, call.flushed = tuple(transfers), tuple(flushed)

    def _allocated_blocks(self, call: Call) -> list[BlockIds]:
        """Blocks given out in a call; of who was admitted or loads, the whole table."""
        grown = [r for r in self._running.lockstep.latest_to_grow if r in self.running]
        last = [int(r.blocks.block_ids[-1]) for r in grown]
        tables = [request.blocks.block_ids for request in call.loading]
        for request, part in call.parts.items():
            tables.append(request.blocks.block_ids[part.num_blocks_before :])
        return [np.array(last, dtype=np.int64), *tables]

    def commit(self, batch: Batch) -> list[Finished]:
        """Take in the tokens sampled in the batch's last step; who finished."""
        self.latest_finished = self._running.hand_in()
        finished = []
        for request in self.latest_finished:
            if request in self.running:
                self._running.remove(request)
            else:
                self.waiting.remove(request)
            self._admission.open()
            done = self._departures.finish(request)
            if done is not None:
                finished.append(done)
        return finished

    # -- steps between decisions -------------------------------------------------------

    def max_repeat(self, batch: Batch) -> int:
        """Further calls in a row that would decide the latest batch again.

        While it repeats free blocks only become fewer, and what cached content a waiting
        request loses it would lack: it would be refused again.
        """
        running, admission = self._running, self._admission
        if running.individuals or not running.in_flight:
            return 0
        if self._departures.dismissed_late:
            return 0  # the next call has more to say than this one
        if not running.in_flight[-1].is_steady:
            return 0
        if admission.is_open and admission.num_candidates:
            return 0
        index, offloading = self.manager.index, self.offloading
        if index is not None and index.shared_writers:
            return 0  # what one of them writes may be what another waits for
        if offloading is not None:
            may_load = (
                offloading.has_transfers or not self.limits.scheduler_reserve_full_isl
            )
            if offloading.asks_for_allocated or offloading.may_offer_again:
                return 0
            if admission.num_candidates and may_load:
                return 0
        return running.lockstep.max_steps(self.manager.block_pool.num_free_blocks)

    def repeat(self, batch: Batch, num_steps: int) -> None:
        """Do what ``num_steps`` further calls would decide: the same batch, grown."""
        self._running.repeat(num_steps)

    def transfers_done(self, transfers: Iterable[TransferId]) -> None:
        """Take note that copies from or to the tier have ended."""
        if self.offloading is not None and transfers:
            for request in self.offloading.transfers_done(transfers):
                request.is_loading = False
            self._admission.open()

    # -- what there is to know ---------------------------------------------------------

    @property
    def num_used_blocks(self) -> int:
        """GPU blocks that requests hold."""
        return self.manager.block_pool.num_used_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free GPU blocks whose content could still be reused."""
        return self.manager.block_pool.num_cached_free_blocks

    @property
    def num_evictions(self) -> int:
        """Cached GPU blocks given up since the run began."""
        return self.manager.block_pool.num_evictions

    @property
    def num_regretted_evictions(self) -> int:
        """Of these, how many were allocated again for the same content."""
        return self.manager.block_pool.num_regretted_evictions

    def sample_lengths(self, request_id: int) -> tuple[int, ...]:
        """Tokens that each sample of an unfinished request has."""
        samples = self._departures.present[request_id]
        prompt = samples[0].request.num_prompt_tokens
        return tuple(
            length or self._running.num_known_tokens(sample) - prompt
            for sample, length in zip(samples, samples[0].siblings.lengths, strict=True)
        )

    def num_computed_tokens(self, request: EngineRequest) -> int:
        """Tokens of a request computed when all that is scheduled has run."""
        return self._running.num_computed_tokens(request)

    def steady_requests(self) -> list[EngineRequest]:
        """Who decoded in lockstep in the latest step, in running order."""
        return self._running.steady_requests(self.latest_call)

    def state(self) -> CacheState:
        """Queues and pool as they are now."""
        pool = self.manager.block_pool
        num_used_blocks = pool.num_used_blocks
        num_slots = num_used_blocks * self.manager.block_size
        return CacheState(
            num_waiting=len(self.waiting),
            num_running=len(self.running),
            num_swapped=0,
            num_used_blocks=num_used_blocks,
            num_used_tokens=num_slots - self._running.num_unfilled_tokens,
            num_cached_blocks=pool.num_cached_free_blocks,
            num_used_cpu_blocks=(
                0 if self.offloading is None else self.offloading.tier.num_used_blocks
            ),
        )

    def holders(self) -> str:
        """Who is in which queue and how many blocks are free, for people."""
        by_name = {
            "running": list(self.running),
            "loading": list(self.loading),
            "waiting": list(self.waiting),
        }
        parts = [
            f"{len(queue)} {name} ({named(r.request.request_id for r in queue)})"
            for name, queue in by_name.items()
            if queue
        ]
        pool = self.manager.block_pool
        usable = pool.num_gpu_blocks - 1
        return ", ".join([*parts, f"{pool.num_free_blocks:,} of {usable:,} blocks free"])

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is free or owned, and counted right."""
        holders = [*self.running, *self._admission.loads]
        self.manager.check_invariants(request.blocks for request in holders)
        self._running.check_invariants()
        self._admission.check_invariants()
        if self.offloading is not None:
            self.offloading.check_invariants()

    def close(self) -> int:
        """Take every block back and check that all are free; no block is ever lost."""
        for request in (*self.running, *self._admission.take_all()):
            self.manager.free(request.blocks)
        self.running.clear()
        self.manager.check_invariants([])
        assert self.num_used_blocks == 0, "a block is held by nobody"
        return 0


def _queue(limits: Limits) -> WaitingQueue:
    return PriorityQueue() if limits.by_priority else FcfsQueue()
