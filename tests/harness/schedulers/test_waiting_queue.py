"""Tests for :mod:`harness.schedulers.waiting_queue`: who is admitted next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocators.kv_cache_manager import RequestBlocks
from harness.request import Request
from harness.schedulers.engine_request import EngineRequest, engine_requests_of
from harness.schedulers.waiting_queue import FcfsQueue, PriorityQueue


def waiting(
    request_id: int, priority: int = 0, arrival_ns: int = 0, n: int = 1
) -> list[EngineRequest]:
    """The samples of a request that waits."""
    request = Request(
        request_id=request_id,
        arrival_ns=arrival_ns,
        prompt=((0, 8),),
        num_prompt_tokens=8,
        outputs=((1, 9),) * n,
        priority=priority,
    )
    return engine_requests_of(request, [RequestBlocks(None) for _ in range(n)], 100)


def drained(queue: FcfsQueue | PriorityQueue) -> list[tuple[int, int]]:
    """Take all out: ids and samples in the order of the queue, which it has told."""
    told = [(r.request.request_id, r.sample) for r in queue]
    taken = []
    while queue:
        first = queue.first()
        assert queue.pop() is first
        taken.append((first.request.request_id, first.sample))
    assert taken == told
    return taken


def test_first_come_is_first_served_whatever_the_priority() -> None:
    """Requests leave in the order in which they were put in."""
    queue = FcfsQueue()
    for request_id, priority in ((3, 9), (1, 0), (2, 5)):
        queue.push(*waiting(request_id, priority))

    assert len(queue) == 3
    assert drained(queue) == [(3, 0), (1, 0), (2, 0)]


def test_who_was_preempted_last_comes_first() -> None:
    """Victims are taken from the end, so putting each in front keeps their order."""
    queue = FcfsQueue()
    queue.push(*waiting(5))
    for victim in (4, 3):
        queue.push_back(*waiting(victim))

    assert drained(queue) == [(3, 0), (4, 0), (5, 0)]


def test_priority_then_arrival_then_name_as_text() -> None:
    """Lower priorities go first; of equals the earlier; of those "10" before "9"."""
    queue = PriorityQueue()
    for request_id, priority, arrival in ((9, 1, 5), (10, 1, 5), (2, 1, 6), (3, 0, 7)):
        queue.push(*waiting(request_id, priority, arrival))

    assert drained(queue) == [(3, 0), (10, 0), (9, 0), (2, 0)]


def test_samples_are_named_by_their_number_first() -> None:
    """Of requests 1 and 0 with two samples each the first samples go first."""
    queue = PriorityQueue()
    for request_id in (1, 0):
        for sample in waiting(request_id, n=2):
            queue.push(sample)

    assert drained(queue) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_who_was_preempted_has_its_place_by_priority_again() -> None:
    """A victim does not overtake a more urgent request."""
    queue = PriorityQueue()
    queue.push(*waiting(5, priority=1))

    queue.push_back(*waiting(4, priority=2))

    assert drained(queue) == [(5, 0), (4, 0)]


@pytest.mark.parametrize("kind", [FcfsQueue, PriorityQueue])
@given(data=st.data())
def test_any_may_leave(
    data: st.DataObject, kind: type[FcfsQueue | PriorityQueue]
) -> None:
    """Taking one out from anywhere leaves the others in their order."""
    queue = kind()
    pushed = [
        waiting(number, data.draw(st.integers(0, 2)))[0]
        for number in range(data.draw(st.integers(1, 9)))
    ]
    for request in pushed:
        queue.push(request)
    left = list(queue)
    gone = data.draw(st.sampled_from(pushed))

    queue.remove(gone)

    left.remove(gone)
    assert list(queue) == left
    assert len(queue) == len(pushed) - 1
    assert drained(queue) == [(r.request.request_id, 0) for r in left]
