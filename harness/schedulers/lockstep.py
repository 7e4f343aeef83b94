"""Requests that decode side by side: a token each, step after step.

Nothing has to be decided for them until one ends, a block is missing or somebody comes.
At which steps each of them begins a block, and fills one, follows from its length alone.
So a step costs as much as blocks change hands in it, however many requests decode.
"""

import heapq
from bisect import insort
from operator import attrgetter

from allocators.kv_cache_manager import KVCacheManager
from harness.schedulers.engine_request import EngineRequest

_ORDER = attrgetter("order")


class Lockstep:
    """Decoding requests and a clock that counts the steps they have taken together.

    A request that joined has ``base + clock`` computed tokens. It begins a block in the
    steps in which that is one more than a multiple of the block size; so requests are
    kept by the remainder of those steps.

    Args:
        manager: Their blocks.
        is_async: A step is scheduled before its token is known, so that a block is named
            one step after the one that fills it.

    Attributes:
        clock: Steps taken.
        requests: Who takes part.
        latest_to_grow: Who began a block in the latest advance, in its order.
    """

    def __init__(self, manager: KVCacheManager, *, is_async: bool) -> None:
        self.clock = 0
        self.requests: dict[EngineRequest, None] = {}
        self.latest_to_grow: list[EngineRequest] = []
        self._manager = manager
        self._block_size = manager.block_size
        self._num_tokens_ahead = 1 if is_async else 0
        self._by_remainder: list[list[EngineRequest]] = [
            [] for _ in range(self._block_size)
        ]
        # The same without those whose blocks are named when they leave.
        self._named_in_time: list[list[EngineRequest]] = [
            [] for _ in range(self._block_size)
        ]
        self._ends: list[tuple[int, int, EngineRequest]] = []
        self._num_named_in_time = 0
        self._named_before: dict[EngineRequest, None] = {}
        self._sum_of_bases = 0
        self._num_blocks = 0
        self._last_order: int | None = None

    @property
    def num_tokens(self) -> int:
        """Computed tokens of all of them."""
        return self._sum_of_bases + len(self.requests) * self.clock

    @property
    def num_unfilled_tokens(self) -> int:
        """Slots in their last blocks that hold no token."""
        return self._num_blocks * self._block_size - self.num_tokens

    @property
    def last_order(self) -> int:
        """The greatest place in the running queue that one of them has."""
        if self._last_order is None:
            self._last_order = max(map(_ORDER, self.requests), default=-1)
        return self._last_order

    def join(self, request: EngineRequest) -> None:
        """Let a request take part from the next step on; it was scheduled in this one."""
        request.base = request.num_computed_tokens - self.clock
        request.joined_clock = self.clock
        request.is_in_lockstep = True
        self.requests[request] = None
        place = (1 - request.base) % self._block_size
        insort(self._by_remainder[place], request, key=_ORDER)
        if not _can_be_named_late(request):
            self._name_in_time(request, place)
        # Its last step computes all of its tokens but the one that it samples.
        end = request.num_final_tokens - 1 - request.base
        heapq.heappush(self._ends, (end, request.order, request))
        self._sum_of_bases += request.base
        self._num_blocks += request.blocks.num_blocks
        if self._last_order is not None:
            self._last_order = max(self._last_order, request.order)

    def _name_in_time(self, request: EngineRequest, place: int) -> None:
        """Name a request's blocks as they are filled."""
        self._num_named_in_time += 1
        insort(self._named_in_time[place], request, key=_ORDER)
        num_named_tokens = request.blocks.num_named * self._block_size
        if self._num_tokens_ahead and request.num_computed_tokens == num_named_tokens:
            self._named_before[request] = None  # the block that it has just filled

    def leave(self, request: EngineRequest, num_steps_back: int = 0) -> None:
        """Take a request out, and its latest steps back.

        Its computed tokens are what they are by now.
        """
        request.num_computed_tokens = request.base + self.clock - num_steps_back
        request.is_in_lockstep = False
        self._named_before.pop(request, None)
        del self.requests[request]
        place = (1 - request.base) % self._block_size
        self._by_remainder[place].remove(request)
        if request in self._named_in_time[place]:
            self._named_in_time[place].remove(request)
            self._num_named_in_time -= 1
        else:
            # Blocks are named as a step is scheduled: taking it back unnames none.
            num_known = request.base + self.clock - self._num_tokens_ahead
            self._manager.cache_blocks(request.blocks, num_known)
        self._sum_of_bases -= request.base
        self._num_blocks -= request.blocks.num_blocks
        if request.order == self._last_order:
            self._last_order = None

    def advance(self, num_steps: int) -> None:
        """Let all take so many steps; there must be room."""
        by_remainder, size = self._by_remainder, self._block_size
        steps = range(self.clock + 1, self.clock + num_steps + 1)
        self.clock += num_steps
        self.latest_to_grow = beginning = []
        for step in steps:
            beginning += by_remainder[step % size]
        if beginning:
            self._manager.append_blocks([request.blocks for request in beginning])
            self._num_blocks += len(beginning)
        if self._num_named_in_time:
            self._name_filled(steps)

    def _name_filled(self, steps: range) -> None:
        """Name what those fill in these steps whose blocks are named in time."""
        named_in_time, size = self._named_in_time, self._block_size
        lag = 1 - self._num_tokens_ahead
        first = named_in_time[(steps[0] + lag) % size]
        filling = [request for request in first if request not in self._named_before]
        for step in steps[1:]:
            filling += named_in_time[(step + lag) % size]
        self._named_before.clear()
        if filling and self._manager.index is not None:
            self._manager.cache_next_blocks([request.blocks for request in filling])

    @property
    def num_next_blocks(self) -> int:
        """Blocks that the next step takes."""
        return len(self._by_remainder[(self.clock + 1) % self._block_size])

    def max_steps(self, num_free_blocks: int) -> int:
        """Steps until one of them ends or blocks run out."""
        num_steps = self._steps_to_first_end()
        cycles = -(-num_steps // self._block_size)
        if len(self.requests) * cycles <= num_free_blocks:
            return num_steps
        size, step = self._block_size, self.clock
        while num_steps:
            num_free_blocks -= len(self._by_remainder[(step + 1) % size])
            if num_free_blocks < 0:
                break
            step += 1
            num_steps -= 1
        return step - self.clock

    def pop_ended(self) -> list[EngineRequest]:
        """Take those out that have taken their last step, in running order."""
        ended = []
        while self._steps_to_first_end() == 0:
            request = heapq.heappop(self._ends)[2]
            self.leave(request)
            ended.append(request)
        return ended

    def check_invariants(self) -> None:
        """Raise AssertionError unless sums and lists are those of who takes part."""
        assert self._sum_of_bases == sum(r.base for r in self.requests)
        assert self._num_blocks == sum(r.blocks.num_blocks for r in self.requests)
        for place, group in enumerate(self._by_remainder):
            assert group == sorted(group, key=_ORDER)
            assert all((1 - r.base) % self._block_size == place for r in group)
        assert sum(map(len, self._by_remainder)) == len(self.requests)

    def _steps_to_first_end(self) -> int:
        """Steps until the first of them ends; -1 if there is none."""
        while self._ends:
            end, _, request = self._ends[0]
            is_there = request.is_in_lockstep
            if is_there and end == request.num_final_tokens - 1 - request.base:
                return end - self.clock
            heapq.heappop(self._ends)  # it has left, and maybe come back
        return -1


def _can_be_named_late(request: EngineRequest) -> bool:
    """Whether only this request could find the blocks that it is filling.

    It looks for them after a preemption, and has been named by then.
    """
    blocks = request.blocks
    if blocks.path is None or blocks.path.own is None or blocks.was_freed:
        return False
    return blocks.path.own.begin <= blocks.num_named
