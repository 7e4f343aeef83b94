"""Who runs, and how the running ones get on: step by step, or side by side.

Source: behaviour of vLLM 0.32 (``vllm/v1/core/sched``), recorded in tests/data/golden;
docs/v1.md states the rules.
"""

from collections import deque

from allocators.kv_cache_manager import KVCacheManager
from harness.schedulers.batch import Preempted
from harness.schedulers.call_v1 import Call, Part
from harness.schedulers.engine_request import EngineRequest
from harness.schedulers.limits import Limits
from harness.schedulers.lockstep import Lockstep
from harness.schedulers.offloading import Offloading
from harness.schedulers.waiting_queue import WaitingQueue


class RunningQueue:
    """Requests that hold blocks and compute, in the order of their admission.

    Those that decode, with nothing to decide about them, are in the lockstep; the others
    are looked at one by one. Where it matters in which order they get blocks or tokens,
    the lockstep is disbanded for the step.

    Invariant: each of them is in the lockstep, an individual or ending.

    Args:
        manager: Their blocks.
        waiting: Where those go who are preempted.
        limits: The scheduler's.
        offloading: Copies to and from a tier of CPU blocks, if there is one.

    Attributes:
        requests: All of them.
        lockstep: Those who decode side by side.
        individuals: Those to be looked at one by one.
        ending: Those whose last tokens are on their way.
        in_flight: Calls whose steps have not been handed in.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        waiting: WaitingQueue,
        limits: Limits,
        offloading: Offloading | None,
    ) -> None:
        self.requests: dict[EngineRequest, None] = {}
        self.lockstep = Lockstep(manager, is_async=limits.is_async)
        self.individuals: dict[EngineRequest, None] = {}
        self.ending: dict[EngineRequest, None] = {}
        self.in_flight: deque[Call] = deque()
        self._manager = manager
        self._waiting = waiting
        self._limits = limits
        self._offloading = offloading
        self._num_started = 0

    def start(self, request: EngineRequest) -> None:
        """Put a request that was admitted at the end."""
        request.order = self._num_started
        self._num_started += 1
        self.requests[request] = None
        self.individuals[request] = None

    def remove(self, request: EngineRequest) -> None:
        """Take out a request that has all its tokens."""
        del self.requests[request]
        del self.ending[request]

    # -- a call ------------------------------------------------------------------------

    def run(self, call: Call) -> None:
        """Let the running requests go on, in their order, as far as tokens reach."""
        self._run_lockstep(call)
        self._run_individuals(call)

    def _run_lockstep(self, call: Call) -> None:
        """Let the lockstep take a step, or disband it where its order matters."""
        lockstep = self.lockstep
        num_tokens = len(lockstep.requests)
        first = next(iter(self.individuals), None)
        is_calm = (
            (first is None or lockstep.last_order < first.order)
            and num_tokens <= call.num_tokens_left
            and lockstep.num_next_blocks <= self._manager.block_pool.num_free_blocks
        )
        if is_calm:
            lockstep.advance(1)
            call.num_tokens_left -= num_tokens
            return
        lockstep.latest_to_grow = []
        for request in list(lockstep.requests):
            self._leave_lockstep(call, request)
        self.individuals = {r: None for r in self.requests if r not in self.ending}

    def _run_individuals(self, call: Call) -> None:
        """Let the others go on; whoever finds no block preempts from the end."""
        for request in list(self.individuals):
            if call.num_tokens_left <= 0:
                break
            if request not in self.requests:
                continue  # preempted by one before it
            num_tokens = min(
                self._limits.below_threshold(call, request.num_wanted_tokens),
                call.num_tokens_left,
                self._limits.max_model_len - 1 - request.num_computed_tokens,
            )
            if num_tokens <= 0:
                continue
            num_blocks_before = request.blocks.num_blocks
            if not self._make_room(call, request, num_tokens):
                break
            call.take(
                Part(
                    request,
                    num_tokens,
                    is_prefill=not request.has_sampled,
                    num_blocks_before=num_blocks_before,
                )
            )

    def _make_room(self, call: Call, request: EngineRequest, num_tokens: int) -> bool:
        """Give a running request its blocks; False if it goes without, or had to go."""
        while not self._manager.allocate_slots(
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

    def _victim(self) -> EngineRequest:
        """Who has to make room: the last, or the first of the least urgent."""
        if not self._limits.by_priority:
            return next(reversed(self.requests))
        return max(self.requests, key=lambda request: request.sort_key[:2])

    def _is_out_of_reach(self, victim: EngineRequest) -> bool:
        """Whether a step in flight may still write blocks that a load could fill.

        Only async scheduling with an offload tier asks.
        """
        if self._offloading is None or not self._limits.is_async:
            return False
        is_in_flight = any(victim in call.parts for call in self.in_flight)
        return is_in_flight or victim.is_in_lockstep or victim.num_in_flight > 0

    def _preempt(self, call: Call, victim: EngineRequest) -> None:
        """Take a running request's blocks, and what this step has given it."""
        if victim.is_in_lockstep:
            self._leave_lockstep(call, victim, num_steps_back=1)
            call.num_tokens_left += 1
        elif victim in call.parts:
            call.give_back(victim)
        num_lost = victim.num_computed_tokens
        call.preempted.append(Preempted(victim.request, num_lost, victim.sample))
        call.victims.append(victim)
        del self.requests[victim]
        self.individuals.pop(victim, None)
        self.ending.pop(victim, None)
        if self._offloading is not None:
            self._offloading.keep_table(victim)
        self._manager.free(victim.blocks)
        victim.num_computed_tokens = victim.num_settled_tokens = 0
        victim.has_sampled = False
        victim.num_preemptions += 1
        self._waiting.push_back(victim)

    def _leave_lockstep(
        self, call: Call, request: EngineRequest, num_steps_back: int = 0
    ) -> None:
        """Take a request out of the lockstep, and its latest steps back."""
        self.lockstep.leave(request, num_steps_back)
        call.unsteady.append((request.request.request_id, request.sample))
        self._settle_tokens(request)

    def _settle_tokens(self, request: EngineRequest) -> None:
        """Tell the tokens that a request has from those that it will get.

        Every step that it took in lockstep brings a token.
        """
        for call in self.in_flight:
            if call.clock > request.joined_clock:
                call.sampled.append(request)
                request.num_in_flight += 1
        num_due = request.num_computed_tokens + 1
        request.num_tokens = num_due - request.num_in_flight

    # -- the end of a call -------------------------------------------------------------

    def close(self, call: Call) -> None:
        """Count what is computed, and find out who gets a token and who ends by it."""
        call.num_steady_seqs = len(self.lockstep.requests)
        call.num_steady_tokens = self.lockstep.num_tokens
        call.clock = self.lockstep.clock
        self.in_flight.append(call)
        self._end_lockstep(call)
        for request, part in call.parts.items():
            request.num_computed_tokens += part.num_tokens
            part.num_preemptions = request.num_preemptions
            part.samples = request.num_wanted_tokens == 0
            if part.samples:
                self._sample(call, request)

    def drop_latest(self) -> None:
        """Forget the latest call, which found nothing to run."""
        self.in_flight.pop()

    def repeat(self, num_steps: int) -> None:
        """Let the latest call's step, all of it in lockstep, be followed by more."""
        call = self.in_flight[-1]
        self.lockstep.advance(num_steps)
        call.clock = self.lockstep.clock
        self._end_lockstep(call)

    def _sample(self, call: Call, request: EngineRequest) -> None:
        """Let a request outside the lockstep have a token by this step."""
        request.num_in_flight += 1
        request.has_sampled = True
        call.sampled.append(request)
        if request.is_ending:
            call.ending.append(request)
            self.ending[request] = None
            del self.individuals[request]
        elif self._manager.sliding_window is None:
            self.lockstep.join(request)
            del self.individuals[request]

    def _end_lockstep(self, call: Call) -> None:
        """Take those out of the lockstep whose last token the step brings."""
        for request in self.lockstep.pop_ended():
            self._settle_tokens(request)
            call.ending.append(request)
            self.ending[request] = None

    # -- a step has run ----------------------------------------------------------------

    def hand_in(self) -> list[EngineRequest]:
        """Take in the tokens of the oldest step in flight; whose last token came."""
        call = self.in_flight.popleft()
        if self._manager.sliding_window is not None:
            call.settle()
        complete = []
        for request in call.sampled:
            request.num_in_flight -= 1
            request.num_tokens += 1
            if request.is_in_lockstep:
                continue  # it goes on, and the lockstep names its blocks
            if self._limits.is_async and request in self.requests:
                self._name_computed(request)
            if request.num_tokens >= request.num_final_tokens:
                complete.append(request)
        return complete

    def _name_computed(self, request: EngineRequest) -> None:
        """Name the blocks that a token just handed in has completed."""
        num_computed = request.num_computed_tokens - request.num_in_flight
        self._manager.cache_blocks(request.blocks, min(request.num_tokens, num_computed))

    # -- what there is to know ---------------------------------------------------------

    def num_computed_tokens(self, request: EngineRequest) -> int:
        """Tokens computed when all that is scheduled has run."""
        if request.is_in_lockstep:
            return request.base + self.lockstep.clock
        return request.num_computed_tokens

    def num_known_tokens(self, request: EngineRequest) -> int:
        """Tokens of the prompt and those that have been handed in."""
        if not request.is_in_lockstep:
            return request.num_tokens
        clocks = (call.clock for call in self.in_flight)
        num_in_flight = sum(clock > request.joined_clock for clock in clocks)
        num_due = self.num_computed_tokens(request) + 1
        return num_due - num_in_flight - request.num_in_flight

    @property
    def num_unfilled_tokens(self) -> int:
        """Slots in their last blocks that hold no token."""
        num_unfilled = self.lockstep.num_unfilled_tokens
        for request in (*self.individuals, *self.ending):
            num_slots = request.blocks.num_blocks * self._manager.block_size
            num_unfilled += max(0, num_slots - request.num_computed_tokens)
        return num_unfilled

    def check_invariants(self) -> None:
        """Raise AssertionError unless each is in one place, and in order."""
        places = [*self.lockstep.requests, *self.individuals, *self.ending]
        assert len(places) == len(set(places)) == len(self.requests)
        assert set(places) == set(self.requests)
        for group in (self.requests, self.individuals):
            orders = [request.order for request in group]
            assert orders == sorted(orders)
        self.lockstep.check_invariants()

    def steady_requests(self, call: Call) -> list[EngineRequest]:
        """Who decoded in lockstep in the latest step, in running order."""
        joined_before = [
            r for r in self.lockstep.requests if r.joined_clock < self.lockstep.clock
        ]
        ended = [r for r in call.ending if r not in call.parts]
        return sorted(joined_before + ended, key=lambda request: request.order)
