"""Tests for :mod:`harness.schedulers.lockstep`: many steps are as many single ones."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.kv_cache_manager import KVCacheManager, RequestBlocks
from harness.request import Request
from harness.schedulers.engine_request import EngineRequest, engine_requests_of
from harness.schedulers.lockstep import Lockstep

NUM_BLOCKS = 400


@dataclass
class Side:
    """A lockstep with a pool of its own, and the requests made for it."""

    size: int
    is_async: bool
    manager: KVCacheManager = field(init=False)
    lockstep: Lockstep = field(init=False)
    requests: list[EngineRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = KVCacheManager(
            self.size, NUM_BLOCKS, enable_caching=True, max_model_len=500
        )
        self.lockstep = Lockstep(self.manager, is_async=self.is_async)

    def join(
        self, num_prompt: int, num_output: int, segment: int, order: int = -1
    ) -> EngineRequest:
        """Let a request join whose prompt is computed and whose first token is due."""
        index = self.manager.index
        assert index is not None
        output = 100 + segment, num_output
        blocks = RequestBlocks(index.begin([(segment, num_prompt)], output))
        request = Request(
            request_id=len(self.requests),
            arrival_ns=0,
            prompt=((segment, num_prompt),),
            num_prompt_tokens=num_prompt,
            outputs=(output,),
        )
        (made,) = engine_requests_of(request, [blocks], 500)
        made.order = len(self.requests) if order < 0 else order
        made.num_computed_tokens = num_prompt
        assert self.manager.allocate_slots(blocks, num_prompt, num_prompt)
        self.requests.append(made)
        self.lockstep.join(made)
        return made

    def num_computed(self, request: EngineRequest) -> int:
        """Its computed tokens, in lockstep or not."""
        if request.is_in_lockstep:
            return request.base + self.lockstep.clock
        return request.num_computed_tokens

    def books(self) -> list[tuple[int, list[int], int]]:
        """Computed tokens, blocks and named blocks of every request."""
        return [
            (self.num_computed(r), r.blocks.block_ids.tolist(), r.blocks.num_named)
            for r in self.requests
        ]


def assert_sums(side: Side) -> None:
    """What the lockstep keeps as sums is what its requests add up to."""
    lockstep = side.lockstep
    members = [r for r in side.requests if r.is_in_lockstep]
    assert set(lockstep.requests) == set(members)
    num_tokens = sum(map(side.num_computed, members))
    num_slots = sum(r.blocks.num_blocks for r in members) * side.size
    assert lockstep.num_tokens == num_tokens
    assert lockstep.num_unfilled_tokens == num_slots - num_tokens
    assert lockstep.last_order == max((r.order for r in members), default=-1)


def num_to_end(side: Side, request: EngineRequest) -> int:
    """Steps until a request has computed all its tokens but the last."""
    return request.num_final_tokens - 1 - side.num_computed(request)


def num_blocks_in(side: Side, num_steps: int) -> int:
    """Blocks that so many steps take, request by request."""
    return sum(
        -(-(side.num_computed(r) + num_steps) // side.size) - r.blocks.num_blocks
        for r in side.lockstep.requests
    )


def most_steps(side: Side, num_free: int) -> int:
    """Steps until one ends or blocks run out, counted one by one."""
    members = list(side.lockstep.requests)
    steps = min(num_to_end(side, request) for request in members)
    while num_blocks_in(side, steps) > num_free:
        steps -= 1
    return steps


@settings(max_examples=200)
@given(st.integers(1, 5), st.booleans(), st.data())
def test_many_steps_are_as_many_single_ones(
    size: int, is_async: bool, data: st.DataObject
) -> None:
    """Blocks, names and ends are those of stepping one by one, in the same order."""
    at_once, one_by_one = Side(size, is_async), Side(size, is_async)
    sides = (at_once, one_by_one)
    for _ in range(data.draw(st.integers(1, 14))):
        for _ in range(data.draw(st.integers(0, 2))):
            lengths = data.draw(st.integers(1, 11)), data.draw(st.integers(2, 25))
            segment = data.draw(st.integers(0, 5))
            for side in sides:
                side.join(*lengths, segment)
        members = list(at_once.lockstep.requests)
        if members and data.draw(st.integers(0, 3)) == 0:
            gone = at_once.requests.index(data.draw(st.sampled_from(members)))
            for side in sides:
                side.lockstep.leave(side.requests[gone])
        if not at_once.lockstep.requests:
            continue
        num_free = data.draw(st.integers(0, 12))
        assert at_once.lockstep.max_steps(num_free) == most_steps(at_once, num_free)
        num_steps = data.draw(st.integers(1, most_steps(at_once, NUM_BLOCKS)))
        assert at_once.lockstep.num_next_blocks == num_blocks_in(at_once, 1)

        at_once.lockstep.advance(num_steps)
        for _ in range(num_steps):
            one_by_one.lockstep.advance(1)

        assert at_once.books() == one_by_one.books()
        free = [side.manager.block_pool.num_free_blocks for side in sides]
        assert free[0] == free[1]
        for request in at_once.lockstep.requests:
            num_named = (at_once.num_computed(request) - is_async) // size
            in_prompt = request.request.num_prompt_tokens // size
            assert request.blocks.num_named == max(num_named, in_prompt)
        assert_sums(at_once)
        ended = [side.lockstep.pop_ended() for side in sides]
        assert [r.order for r in ended[0]] == [r.order for r in ended[1]]
        assert [r.order for r in ended[0]] == sorted(r.order for r in ended[0])
        assert all(num_to_end(at_once, request) == 0 for request in ended[0])
        assert_sums(at_once)


def test_a_request_ends_before_its_last_token_is_computed() -> None:
    """The last token is sampled and never computed: 3 tokens after 5 take 2 steps."""
    side = Side(4, is_async=False)
    request = side.join(5, 3, 0)

    assert side.lockstep.max_steps(100) == 2
    side.lockstep.advance(1)
    assert side.lockstep.pop_ended() == []
    side.lockstep.advance(1)
    assert side.lockstep.pop_ended() == [request]
    assert request.num_computed_tokens == 7
    assert not request.is_in_lockstep


def test_blocks_run_out_before_the_end() -> None:
    """Two requests in blocks of 4, 6 and 7 tokens long: a third block comes soon."""
    side = Side(4, is_async=False)
    side.join(6, 30, 0)
    side.join(7, 30, 1)

    steps = [side.lockstep.max_steps(num_free) for num_free in (0, 1, 2, 3)]

    assert steps == [1, 2, 5, 6]


def test_who_left_and_came_back_ends_at_its_new_end() -> None:
    """The end noted before it left does not count, even while another is in lockstep."""
    side = Side(4, is_async=False)
    request, other = side.join(5, 4, 0), side.join(5, 30, 1)
    side.lockstep.advance(1)
    side.lockstep.leave(request)
    side.lockstep.advance(2)
    RequestBlocks.append_one_each([request.blocks], [399])

    side.lockstep.join(request)

    assert side.lockstep.max_steps(100) == 2
    side.lockstep.advance(2)
    assert side.lockstep.pop_ended() == [request]
    assert list(side.lockstep.requests) == [other]


def test_blocks_are_handed_out_in_running_order() -> None:
    """Of two that begin a block in the same step the earlier admitted gets it first."""
    side = Side(4, is_async=False)
    late, early = side.join(4, 30, 0, order=7), side.join(8, 30, 1, order=2)

    side.lockstep.advance(1)

    assert early.blocks.block_ids.tolist()[-1] < late.blocks.block_ids.tolist()[-1]


def test_nobody_in_lockstep_takes_no_steps() -> None:
    """An empty lockstep has no end to come, and its last place is before all others."""
    lockstep = Side(4, is_async=False).lockstep

    assert (len(lockstep.requests), lockstep.last_order, lockstep.num_tokens) == (
        0,
        -1,
        0,
    )
    assert lockstep.max_steps(9) == -1
    assert lockstep.pop_ended() == []


def test_who_left_and_came_back_names_the_block_filled_meanwhile() -> None:
    """With calls ahead a prompt's block is named at once, the next one a step late."""
    side = Side(1, is_async=True)
    request = side.join(5, 30, 0)
    assert request.blocks.num_named == 5
    side.lockstep.leave(request)
    request.num_computed_tokens += 1
    side.manager.append_blocks([request.blocks])

    side.lockstep.join(request)
    side.lockstep.advance(1)

    assert request.blocks.num_named == 6
