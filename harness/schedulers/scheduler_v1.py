"""The scheduler that every vLLM since 0.11 has: one running queue, recompute, no swap.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/sched``), recorded in tests/data/golden;
docs/v1.md states the rules.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from allocators.block_pool import NO_BLOCKS
from allocators.free_block_queue import BlockIds
from allocators.kv_cache_manager import KVCacheManager, RequestBlocks
from harness.request import Request, Run
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Dismissal,
    Dismissed,
    Finished,
    Preempted,
    Refused,
    TransferId,
)
from harness.schedulers.call_v1 import Call, Hits, Part
from harness.schedulers.engine_request import (
    EngineRequest,
    Siblings,
    engine_requests_of,
)
from harness.schedulers.lockstep import Lockstep
from harness.schedulers.offloading import Offloading
from harness.schedulers.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue
from results.naming import named


class SchedulerV1:
    """Decides batches as vLLM 0.32 does, over a :class:`KVCacheManager`.

    Requests that decode, with nothing to decide about them, are in the lockstep; the
    others that run are looked at one by one. Where it matters in which order they get
    their blocks or tokens, the lockstep is disbanded for the step.

    Args:
        manager: Its blocks.
        offloading: Copies to and from a tier of CPU blocks, if there is one.
        max_num_seqs: Requests that run at a time, each sample counted.
        max_num_batched_tokens: Tokens a step.
        max_model_len: Longest sequence, prompt and output.
        enable_chunked_prefill: Cut a prefill to what a step has left.
        long_prefill_token_threshold: Cut longer prefills to this; 0 for no limit.
        scheduler_reserve_full_isl: Admit only who finds room for all that is known of
            it, not just for its first chunk.
        by_priority: Serve by priority instead of first come, first served.
        is_async: A step is scheduled before the tokens of the one before are in.
        waits_like_vllm: Let a request wait for ever that can never run, instead of
            dismissing it.

    Attributes:
        waiting: Who is to be admitted.
        loading: Who holds blocks already, which the offload tier fills or has filled;
            they come before those who wait.
        running: Who holds blocks, in order of admission.
        lockstep: Those of them who decode side by side.
        latest_call: What the latest call decided.
        latest_finished: Who finished by the latest commit, in its order.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        offloading: Offloading | None = None,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        by_priority: bool = False,
        is_async: bool = False,
        waits_like_vllm: bool = False,
    ) -> None:
        self.manager = manager
        self.offloading = offloading
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.scheduler_reserve_full_isl = scheduler_reserve_full_isl
        self.by_priority = by_priority
        self.is_async = is_async
        self.waits_like_vllm = waits_like_vllm
        self.waiting: WaitingQueue = PriorityQueue() if by_priority else FcfsQueue()
        self.loading: WaitingQueue = PriorityQueue() if by_priority else FcfsQueue()
        self.running: dict[EngineRequest, None] = {}
        self.lockstep = Lockstep(manager, is_async=is_async)
        # Of the running ones: those to be looked at one by one, and those whose last
        # tokens are on their way; the others are in the lockstep.
        self._individuals: dict[EngineRequest, None] = {}
        self._ending: dict[EngineRequest, None] = {}
        self._loads: dict[EngineRequest, None] = {}
        self._uncommitted: deque[Call] = deque()
        self._requests: dict[int, list[EngineRequest]] = {}
        self.latest_call = Call(0, is_crowded=False)
        self.latest_finished: list[EngineRequest] = []
        self._dismissed_late: list[Siblings] = []
        self._num_admissions = 0
        self._may_admit = False
        self._has_news = False

    def add(self, request: Request) -> None:
        """Put the samples of a request that has arrived into the waiting queue."""
        blocks = [self._blocks(request, output) for output in request.outputs]
        samples = engine_requests_of(request, blocks, self.max_model_len)
        self._requests[request.request_id] = samples
        for sample in samples:
            self.waiting.push(sample)
            if self.offloading is not None:
                self.offloading.begin(sample)
        self._may_admit = True

    def _blocks(self, request: Request, output: Run) -> RequestBlocks:
        """What a sample will hold; nothing yet."""
        capacity = self.manager.num_blocks_of(request.num_prompt_tokens + output[1])
        if self.manager.index is None:
            return RequestBlocks(None, capacity)
        prompt, keys = request.prompt, request.extra_keys
        return RequestBlocks(self.manager.index.begin(prompt, output, keys), capacity)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs, or the last call knew of one that has left.

        As in vLLM, one call more follows the last finish.
        """
        has_copies = self.offloading is not None and self.offloading.has_work
        return bool(
            self.running or self.waiting or self.loading or self._has_news or has_copies
        )

    # -- a call ------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Decide the next step; all block decisions for it are made here."""
        call = Call(
            self.max_num_batched_tokens,
            is_crowded=len(self.running) + len(self.waiting) + len(self.loading) > 1,
        )
        call.dismissed += tuple(map(self._dismissed, self._dismissed_late))
        self._dismissed_late.clear()
        self._has_news = False
        self._run_lockstep(call)
        self._run_individuals(call)
        if not call.preempted:
            self._admit_waiting(call)
        self._close(call)
        self.latest_call = call
        return call.batch()

    def _run_lockstep(self, call: Call) -> None:
        """Let the lockstep take a step, or disband it where its order matters."""
        lockstep = self.lockstep
        first = next(iter(self._individuals), None)
        is_calm = (
            (first is None or lockstep.last_order < first.order)
            and len(lockstep) <= call.num_tokens_left
            and lockstep.num_next_blocks <= self.manager.block_pool.num_free_blocks
        )
        if is_calm:
            lockstep.advance(1)
            call.num_tokens_left -= len(lockstep)
            return
        lockstep.latest_to_grow = []
        for request in list(lockstep.requests):
            self._leave_lockstep(call, request)
        self._individuals = {r: None for r in self.running if r not in self._ending}

    def _leave_lockstep(
        self, call: Call, request: EngineRequest, num_steps_back: int = 0
    ) -> None:
        """Take a request out of the lockstep, and its latest steps back."""
        self.lockstep.leave(request, num_steps_back)
        call.unsteady += ((request.request.request_id, request.sample),)
        self._settle_tokens(request)

    def _settle_tokens(self, request: EngineRequest) -> None:
        """Tell the tokens that a request has from those that it will get.

        Every step that it took in lockstep brings a token.
        """
        for call in self._uncommitted:
            if call.clock > request.joined_clock:
                call.sampled.append(request)
                request.num_in_flight += 1
        num_due = request.num_computed_tokens + 1
        request.num_tokens = num_due - request.num_in_flight

    def _run_individuals(self, call: Call) -> None:
        """Let the others go on; whoever finds no block preempts from the end."""
        for request in list(self._individuals):
            if call.num_tokens_left <= 0:
                break
            if request not in self.running:
                continue  # preempted by one before it
            num_tokens = min(
                self._below_threshold(call, request.num_wanted_tokens),
                call.num_tokens_left,
                self.max_model_len - 1 - request.num_computed_tokens,
            )
            if num_tokens <= 0:
                continue
            num_blocks_before = request.blocks.num_blocks
            if not self._make_room(call, request, num_tokens):
                break
            call.parts[request] = Part(
                request,
                num_tokens,
                is_prefill=not request.has_sampled,
                num_blocks_before=num_blocks_before,
            )
            call.num_tokens_left -= num_tokens

    def _below_threshold(self, call: Call, num_tokens: int) -> int:
        """What a request may have of the tokens it wants, beside others."""
        threshold = self.long_prefill_token_threshold
        is_cut = 0 < threshold < num_tokens and call.is_crowded
        return threshold if is_cut else num_tokens

    def _make_room(self, call: Call, request: EngineRequest, num_tokens: int) -> bool:
        """Give a running request its blocks; False if it had to go itself."""
        while not self.manager.allocate_slots(
            request.blocks,
            request.num_computed_tokens + num_tokens,
            request.num_tokens,
            num_settled_tokens=request.num_settled_tokens,
        ):
            victim = self._victim()
            if self._is_out_of_reach(victim):
                return False
            self._preempt(call, victim)
            if victim is request:
                return False
        return True

    def _is_out_of_reach(self, victim: EngineRequest) -> bool:
        """Whether a step in flight may still write blocks that a load could fill.

        Only async scheduling with an offload tier asks.
        """
        if self.offloading is None or not self.is_async:
            return False
        is_in_flight = any(victim in call.parts for call in self._uncommitted)
        return is_in_flight or victim.is_in_lockstep or victim.num_in_flight > 0

    def _victim(self) -> EngineRequest:
        """Who has to make room: the last, or the first of the least urgent."""
        if not self.by_priority:
            return next(reversed(self.running))
        return max(self.running, key=lambda request: request.sort_key[:2])

    def _preempt(self, call: Call, victim: EngineRequest) -> None:
        """Take a running request's blocks, and what this step has given it."""
        if victim.is_in_lockstep:
            self._leave_lockstep(call, victim, num_steps_back=1)
            call.num_tokens_left += 1
        elif victim in call.parts:
            call.num_tokens_left += call.parts.pop(victim).num_tokens
        num_lost = victim.num_computed_tokens
        call.preempted += (Preempted(victim.request, num_lost, victim.sample),)
        call.victims += (victim,)
        del self.running[victim]
        self._individuals.pop(victim, None)
        self._ending.pop(victim, None)
        if self.offloading is not None:
            self.offloading.keep_table(victim)
        self.manager.free(victim.blocks)
        victim.num_computed_tokens = victim.num_settled_tokens = 0
        victim.has_sampled = False
        victim.num_preemptions += 1
        self.waiting.push_back(victim)
        self._may_admit = True

    # -- admission ---------------------------------------------------------------------

    def _admit_waiting(self, call: Call) -> None:
        """Admit requests in order, up to the first that has to wait on.

        Who waits for a copy keeps its place, and the others go on.
        """
        passed_over: list[EngineRequest] = []
        while call.num_tokens_left > 0 and len(self.running) < self.max_num_seqs:
            queue = self.loading or self.waiting
            if not queue:
                break
            hits = self._look_up(queue.first())
            if hits is None:
                passed_over.append(queue.pop())
            elif not self._admit(call, queue, hits):
                break
        for request in reversed((*passed_over, *call.loading)):
            holds_blocks = request.blocks.num_blocks > 0
            (self.loading if holds_blocks else self.waiting).push_back(request)
        self._may_admit = False

    def _look_up(self, request: EngineRequest) -> Hits | None:
        """What the caches have of a request; None as long as it waits for a copy."""
        if request.is_loading:
            return None
        if request.num_computed_tokens:  # it was loaded
            self.manager.cache_blocks(request.blocks, request.num_computed_tokens)
            if request.num_computed_tokens == request.num_tokens:
                request.num_computed_tokens -= 1  # whose output is the next token
            return Hits(NO_BLOCKS, 0, request.num_computed_tokens)
        block_ids = self.manager.get_computed_blocks(request.blocks, request.num_tokens)
        num_loadable: int | None = 0
        if self.offloading is not None:
            num_loadable = self.offloading.num_loadable_blocks(request, len(block_ids))
        if num_loadable is None:
            return None
        return Hits(block_ids, num_loadable, len(block_ids) * self.manager.block_size)

    def _admit(self, call: Call, queue: WaitingQueue, hits: Hits) -> bool:
        """Admit the first request of a queue, or dismiss it; False if it waits on."""
        request = queue.first()
        if hits.num_loadable_blocks:
            return self._load(call, queue, hits)
        num_wanted_tokens = request.num_tokens - hits.num_tokens
        reason = self._never(request, num_wanted_tokens)
        if reason is not None and not self.waits_like_vllm:
            self._dismiss(call, queue.pop(), reason)
            return True
        num_tokens = self._below_threshold(call, num_wanted_tokens)
        if num_tokens > call.num_tokens_left and not self.enable_chunked_prefill:
            return False
        num_tokens = min(num_tokens, call.num_tokens_left)
        if not self._allocate(call, request, hits, hits.num_tokens + num_tokens):
            return False
        queue.pop()
        self._loads.pop(request, None)
        request.num_computed_tokens = request.num_settled_tokens = hits.num_tokens
        self._start(request)
        call.parts[request] = Part(
            request,
            num_tokens,
            is_prefill=True,
            is_admission=True,
            num_cached_tokens=hits.num_tokens,
            num_loaded_tokens=min(request.num_loaded_tokens, hits.num_tokens),
        )
        request.num_loaded_tokens = 0
        call.num_tokens_left -= num_tokens
        return True

    def _load(self, call: Call, queue: WaitingQueue, hits: Hits) -> bool:
        """Give a request blocks for what the tier has of it, and have them filled."""
        assert self.offloading is not None, "only it finds what can be loaded"
        request, block_size = queue.first(), self.manager.block_size
        num_loaded_tokens = hits.num_loadable_blocks * block_size
        num_tokens = hits.num_tokens + num_loaded_tokens
        if not self._allocate(call, request, hits, num_tokens):
            return False
        begin = len(hits.block_ids)
        self.offloading.load(request, begin, begin + hits.num_loadable_blocks)
        request.num_computed_tokens = num_tokens
        request.num_loaded_tokens = num_loaded_tokens
        request.is_loading = True
        self._loads[request] = None
        call.loading += (queue.pop(),)
        return True

    def _allocate(
        self, call: Call, request: EngineRequest, hits: Hits, num_tokens: int
    ) -> bool:
        """Give a request that is to be admitted, or loaded, blocks for its tokens.

        Full blocks of a load are named only when they are filled, and blocks that other
        requests need to get through their prefill are out of its reach.
        """
        manager, is_load = self.manager, hits.num_loadable_blocks > 0
        num_full = request.num_tokens if self.scheduler_reserve_full_isl else 0
        num_reserved = manager.watermark_blocks if self.running else 0
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
        under_way = [r for r in self._individuals if not r.has_sampled]
        return sum(
            self.manager.num_blocks_of(request.num_tokens) - request.blocks.num_blocks
            for request in (*under_way, *self._loads)
        )

    def _never(self, request: EngineRequest, num_wanted_tokens: int) -> Dismissal | None:
        """Why a waiting request can never run, if so."""
        manager = self.manager
        num_usable = manager.block_pool.num_gpu_blocks - 1
        if manager.num_missing_blocks(0, 1, request.num_tokens) > num_usable:
            return Dismissal.EXCEEDS_KV_CAPACITY
        if self.enable_chunked_prefill or self.long_prefill_token_threshold:
            return None
        if num_wanted_tokens > self.max_num_batched_tokens:
            return Dismissal.TOO_LONG_FOR_A_STEP
        return None

    def _start(self, request: EngineRequest) -> None:
        request.order = self._num_admissions
        self._num_admissions += 1
        self.running[request] = None
        self._individuals[request] = None

    def _dismiss(self, call: Call, request: EngineRequest, reason: Dismissal) -> None:
        """End a waiting request; the user's is dismissed when no sample is left."""
        siblings = request.siblings
        siblings.reason = siblings.reason or reason
        if self._leave(request):
            call.dismissed += (self._dismissed(siblings),)

    # -- the end of a call -------------------------------------------------------------

    def _close(self, call: Call) -> None:
        """Count what is computed, and find out who gets a token and who ends by it."""
        call.num_steady_seqs = len(self.lockstep)
        call.num_steady_tokens = self.lockstep.num_tokens
        call.clock = self.lockstep.clock
        self._uncommitted.append(call)
        self._end_lockstep(call)
        for request, part in call.parts.items():
            request.num_computed_tokens += part.num_tokens
            part.num_preemptions = request.num_preemptions
            part.samples = request.num_wanted_tokens == 0
            if part.samples:
                self._sample(call, request)
        if self.offloading is not None:
            self._offer(call, self.offloading)
        if call.is_idle:
            self._uncommitted.pop()

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
        grown = [r for r in self.lockstep.latest_to_grow if r in self.running]
        last = [int(r.blocks.block_ids[-1]) for r in grown]
        tables = [request.blocks.block_ids for request in call.loading]
        for request, part in call.parts.items():
            tables.append(request.blocks.block_ids[part.num_blocks_before :])
        return [np.array(last, dtype=np.int64), *tables]

    def _sample(self, call: Call, request: EngineRequest) -> None:
        """Let a request outside the lockstep have a token by this step."""
        request.num_in_flight += 1
        request.has_sampled = True
        call.sampled.append(request)
        if request.is_ending:
            call.ending.append(request)
            self._ending[request] = None
            del self._individuals[request]
        elif self.manager.sliding_window is None:
            self.lockstep.join(request)
            del self._individuals[request]

    def _end_lockstep(self, call: Call) -> None:
        """Take those out of the lockstep whose last token the step brings."""
        for request in self.lockstep.pop_ended():
            self._settle_tokens(request)
            call.ending.append(request)
            self._ending[request] = None

    # -- a step has run ----------------------------------------------------------------

    def commit(self, batch: Batch) -> list[Finished]:
        """Take in the tokens sampled in the batch's last step; who finished."""
        call = self._uncommitted.popleft()
        self.latest_finished = []
        if self.manager.sliding_window is not None:
            for request, part in call.parts.items():
                if part.num_preemptions == request.num_preemptions:
                    request.num_settled_tokens += part.num_tokens
        finished: list[Finished] = []
        for request in call.sampled:
            request.num_in_flight -= 1
            request.num_tokens += 1
            if request.is_in_lockstep:
                continue  # it goes on, and the lockstep names its blocks
            if self.is_async and request in self.running:
                self._name_computed(request)
            if request.num_tokens >= request.num_final_tokens:
                self._finish(request, finished)
        return finished

    def _name_computed(self, request: EngineRequest) -> None:
        """Name the blocks that a token just handed in has completed."""
        num_computed = request.num_computed_tokens - request.num_in_flight
        self.manager.cache_blocks(request.blocks, min(request.num_tokens, num_computed))

    def _finish(self, request: EngineRequest, finished: list[Finished]) -> None:
        if request in self.running:
            del self.running[request]
            del self._ending[request]
        else:
            self.waiting.remove(request)
        self.latest_finished.append(request)
        siblings = request.siblings
        if not self._leave(request):
            return
        if siblings.reason is None:
            finished.append(Finished(siblings.request, tuple(siblings.lengths)))
        else:
            self._dismissed_late.append(siblings)

    def _leave(self, request: EngineRequest) -> bool:
        """Take a request's blocks for good; whether it was the last of its samples."""
        siblings = request.siblings
        prompt = siblings.request.num_prompt_tokens
        siblings.lengths[request.sample] = request.num_tokens - prompt
        request.has_left = True
        if self.offloading is not None:
            self.offloading.keep_table(request)
            self.offloading.end(request)
        self.manager.finish(request.blocks)
        self._may_admit = self._has_news = True
        siblings.num_left -= 1
        if not siblings.num_left:
            del self._requests[siblings.request.request_id]
        return not siblings.num_left

    def _dismissed(self, siblings: Siblings) -> Dismissed:
        assert siblings.reason is not None, "one of its samples was dismissed"
        return Dismissed(
            siblings.request,
            siblings.reason,
            num_tokens=siblings.request.num_prompt_tokens + max(siblings.lengths),
            num_output_tokens=sum(siblings.lengths),
        )

    # -- steps between decisions -------------------------------------------------------

    def max_repeat(self, batch: Batch) -> int:
        """Further calls in a row that would decide the latest batch again.

        While it repeats free blocks only become fewer, and what cached content a waiting
        request loses it would lack: it would be refused again.
        """
        if not self._uncommitted or not self._uncommitted[-1].is_steady:
            return 0
        is_waiting = bool(self.waiting or self.loading)
        if self._individuals or (self._may_admit and is_waiting):
            return 0
        index, offloading = self.manager.index, self.offloading
        if index is not None and index.shared_writers:
            return 0  # what one of them writes may be what another waits for
        if offloading is not None:
            may_load = offloading.has_transfers or not self.scheduler_reserve_full_isl
            if offloading.asks_for_allocated or offloading.may_offer_again:
                return 0
            if is_waiting and may_load:
                return 0
        return self.lockstep.max_steps(self.manager.block_pool.num_free_blocks)

    def repeat(self, batch: Batch, num_steps: int) -> None:
        """Do what ``num_steps`` further calls would decide: the same batch, grown."""
        call = self._uncommitted[-1]
        self.lockstep.advance(num_steps)
        call.clock = self.lockstep.clock
        self._end_lockstep(call)

    def transfers_done(self, transfers: Iterable[TransferId]) -> None:
        """Take note that copies from or to the tier have ended."""
        if self.offloading is not None and transfers:
            for request in self.offloading.transfers_done(transfers):
                request.is_loading = False
            self._may_admit = True

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
        samples = self._requests[request_id]
        prompt = samples[0].request.num_prompt_tokens
        return tuple(
            length or self._num_known_tokens(sample) - prompt
            for sample, length in zip(samples, samples[0].siblings.lengths, strict=True)
        )

    def num_computed_tokens(self, request: EngineRequest) -> int:
        """Tokens computed when all that is scheduled has run."""
        if request.is_in_lockstep:
            return request.base + self.lockstep.clock
        return request.num_computed_tokens

    def _num_known_tokens(self, request: EngineRequest) -> int:
        if not request.is_in_lockstep:
            return request.num_tokens
        clocks = (call.clock for call in self._uncommitted)
        num_in_flight = sum(clock > request.joined_clock for clock in clocks)
        num_due = self.num_computed_tokens(request) + 1
        return num_due - num_in_flight - request.num_in_flight

    def steady_requests(self) -> list[EngineRequest]:
        """Who decoded in lockstep in the latest step, in running order."""
        call, clock = self.latest_call, self.lockstep.clock
        steady = [r for r in self.lockstep.requests if r.joined_clock < clock]
        steady += [r for r in call.ending if r not in call.parts]
        return sorted(steady, key=lambda request: request.order)

    def state(self) -> CacheState:
        """Queues and pool as they are now."""
        block_size = self.manager.block_size
        num_used_blocks = self.num_used_blocks
        num_unfilled = self.lockstep.num_unfilled_tokens
        for request in (*self._individuals, *self._ending):
            num_slots = request.blocks.num_blocks * block_size
            num_unfilled += max(0, num_slots - request.num_computed_tokens)
        return CacheState(
            num_waiting=len(self.waiting),
            num_running=len(self.running),
            num_swapped=0,
            num_used_blocks=num_used_blocks,
            num_used_tokens=num_used_blocks * block_size - num_unfilled,
            num_cached_blocks=self.num_cached_blocks,
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
        holders = [*self.running, *self._loads]
        self.manager.check_invariants(request.blocks for request in holders)
        if self.offloading is not None:
            self.offloading.tier.check_invariants()

    def close(self) -> int:
        """Take every block back and check that all are free; no block is ever lost."""
        for request in (*self.running, *self._loads):
            self.manager.free(request.blocks)
        self.running.clear()
        self._loads.clear()
        self.manager.check_invariants([])
        assert self.num_used_blocks == 0, "a block is held by nobody"
        return 0
