"""Tests for :mod:`harness.arrivals`."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.arrivals import ArrivalSource, FrontDoor, MaxConcurrency, OpenLoop
from harness.errors import UsageError
from harness.request import Request
from harness.workload import Workload


def _workload(
    times: Sequence[int],
    parent: Sequence[int] | None = None,
    delay_ns: Sequence[int] | None = None,
    num_tokens: Sequence[int] | None = None,
) -> Workload:
    lengths = [3] * len(times) if num_tokens is None else num_tokens
    requests = [
        Request(
            request_id=i,
            arrival_ns=time,
            prompt=((i, length),),
            num_prompt_tokens=length,
            outputs=((100 + i, 1),),
        )
        for i, (time, length) in enumerate(zip(times, lengths, strict=True))
    ]
    return Workload.from_requests(requests, parent=parent, delay_ns=delay_ns)


def _ids(requests: list[Request]) -> list[int]:
    return [request.request_id for request in requests]


def _drain(
    source: ArrivalSource, service_ns: Sequence[int], step_ns: int
) -> tuple[list[Request], dict[int, int]]:
    """Serve every request for its time; look at the source once a step only."""
    now, running, sent = 0, dict[int, int](), list[Request]()
    ends = dict[int, int]()
    while running or source.next_ns() is not None:
        for request_id in sorted(running, key=lambda i: (running[i], i)):
            if running[request_id] <= now:
                ends[request_id] = running.pop(request_id)
                source.on_finished(sent[_ids(sent).index(request_id)], now)
        for request in source.pop_due(now):
            sent.append(request)
            running[request.request_id] = now + service_ns[request.request_id]
        now += step_ns
    return sent, ends


CASES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(-1, 5), st.integers(0, 9)),
    min_size=1,
    max_size=15,
)


def _of_case(
    case: list[tuple[int, int, int]], num_tokens: Sequence[int] | None = None
) -> Workload:
    times = sorted(time for time, _, _ in case)
    parent = [min(p, i - 1) for i, (_, p, _) in enumerate(case)]
    return _workload(times, parent, [delay for _, _, delay in case], num_tokens)


@given(CASES, st.sampled_from([None, 1, 2, 4]), st.integers(1, 7))
def test_everything_arrives_once(
    case: list[tuple[int, int, int]], limit: int | None, step_ns: int
) -> None:
    """Each request is handed out exactly once, at or after its arrival."""
    workload = _of_case(case)
    open_loop = OpenLoop(workload)
    source = open_loop if limit is None else MaxConcurrency(open_loop, limit)

    sent, _ = _drain(source, [3] * len(case), step_ns)

    assert sorted(_ids(sent)) == list(range(len(case)))
    assert source.next_ns() is None


@given(CASES, st.integers(1, 7))
def test_turn_waits_for_the_turn_before(
    case: list[tuple[int, int, int]], step_ns: int
) -> None:
    """A turn arrives its delay after the turn before has left, others at their time."""
    workload = _of_case(case)
    sent, left = list[Request](), dict[int, int]()
    source = OpenLoop(workload)
    for now in range(0, 10_000, step_ns):
        for request in source.pop_due(now):
            sent.append(request)
            left[request.request_id] = now
            source.on_finished(request, now)

    for request in sent:
        before = int(workload.parent[request.request_id])
        delay = int(workload.delay_ns[request.request_id])
        expected = left[before] + delay if before >= 0 else None
        assert request.arrival_ns == (
            expected if before >= 0 else workload.arrival_ns[request.request_id]
        )


@given(CASES, st.integers(1, 30))
def test_due_requests_come_in_order(case: list[tuple[int, int, int]], now: int) -> None:
    """What is due comes by arrival time, then request id, and none of it is late."""
    source = OpenLoop(_of_case(case))
    due = source.pop_due(now)

    keys = [(request.arrival_ns, request.request_id) for request in due]

    assert keys == sorted(keys)
    assert all(time <= now for time, _ in keys)
    following = source.next_ns()
    assert following is None or following > now


def test_released_turns_and_others_are_merged_by_time() -> None:
    """A released turn comes between what arrives before and after it; ties by id."""
    source = OpenLoop(
        _workload([0, 5, 10, 15, 20], parent=[-1, 0, -1, 0, -1], delay_ns=[0, 9, 0, 8, 0])
    )
    (first,) = source.pop_due(0)
    source.on_finished(first, 2)

    assert source.next_ns() == 10
    due = source.pop_due(20)
    assert [(r.arrival_ns, r.request_id) for r in due] == [
        (10, 2),
        (10, 3),
        (11, 1),
        (20, 4),
    ]


def test_next_turn_is_announced_only_when_released() -> None:
    """While only a waiting turn is left, nothing is due; its release gives a time."""
    source = OpenLoop(_workload([0, 5], parent=[-1, 0], delay_ns=[0, 7]))
    (first,) = source.pop_due(0)

    assert source.next_ns() is None
    source.on_finished(first, 20)
    assert source.next_ns() == 27
    assert source.pop_due(26) == []
    (turn,) = source.pop_due(30)
    assert turn.arrival_ns == 27


def test_a_request_ends_once() -> None:
    """A second report of the same end releases nothing."""
    source = OpenLoop(_workload([0, 5], parent=[-1, 0]))
    (first,) = source.pop_due(0)
    source.on_finished(first, 1)
    source.on_finished(first, 2)

    assert _ids(source.pop_due(9)) == [1]


def test_held_back_requests_arrive_when_sent() -> None:
    """With one place, a request arrives when the one before it left."""
    source = MaxConcurrency(OpenLoop(_workload([0, 1, 50])), 1)
    (first,) = source.pop_due(0)

    assert source.next_ns() is None
    assert source.pop_due(9) == []
    source.on_finished(first, 10)
    assert source.next_ns() == 10
    (second,) = source.pop_due(12)
    assert (second.request_id, second.arrival_ns) == (1, 10)
    source.on_finished(second, 20)
    assert source.next_ns() == 50


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(0, 2**20),
    st.sampled_from([0, 1, 13]),
)
def test_closed_loop_is_a_queue_with_as_many_servers(
    times: list[int], limit: int, seed: int, entry_ns: int
) -> None:
    """Looked at every nanosecond, requests are sent as by a first-come queue.

    A server is taken from when a request is sent, on its way to the scheduler too.
    """
    times = sorted(time - min(times) for time in times)
    rng = random.Random(seed)
    service = [rng.randint(1, 20) for _ in times]
    loop = MaxConcurrency(OpenLoop(_workload(times)), limit)
    door = FrontDoor(loop, 3, lambda request: None, entry_ns)

    sent, _ = _drain(door, service, step_ns=1)

    free = [0] * limit
    for request, time in zip(sent, times, strict=True):
        start = max(time, min(free))
        free[free.index(min(free))] = start + entry_ns + service[request.request_id]
        assert request.arrival_ns == start


def test_places_taken_late_count_from_when_they_were_free() -> None:
    """An engine that looks rarely does not make requests arrive later."""
    source = MaxConcurrency(OpenLoop(_workload([0, 0, 1, 2])), 2)
    first, second = source.pop_due(0)
    source.on_finished(second, 5)
    source.on_finished(first, 8)

    due = source.pop_due(100)

    assert [(r.request_id, r.arrival_ns) for r in due] == [(2, 5), (3, 8)]


def test_no_place_at_all_is_refused() -> None:
    """A limit below 1 is a usage error."""
    with pytest.raises(UsageError, match="max concurrency is 0"):
        MaxConcurrency(OpenLoop(_workload([0])), 0)


def test_door_refuses_prompts_that_the_model_cannot_take() -> None:
    """A prompt of the model's length comes in, a longer one leaves and frees its turn."""
    source = _workload([0, 1, 2], parent=[-1, 0, -1], delay_ns=[0, 7, 0])
    limit = int(source.input_tokens[0])
    refused: list[Request] = []
    door = FrontDoor(OpenLoop(source), limit - 1, refused.append)

    assert door.pop_due(6) == []
    assert door.next_ns() == 7
    assert _ids(refused) == [0, 2]
    assert door.pop_due(10) == []
    assert _ids(refused) == [0, 2, 1]
    wide = FrontDoor(OpenLoop(source), limit, refused.append)
    assert _ids(wide.pop_due(10)) == [0, 2]


@given(
    CASES,
    st.sampled_from([None, 1, 2, 4]),
    st.integers(1, 7),
    st.sampled_from([0, 1, 5, 30]),
    st.sampled_from([3, 4, 5]),
)
def test_a_request_is_handed_in_its_entry_after_it_arrived(
    case: list[tuple[int, int, int]],
    limit: int | None,
    step_ns: int,
    entry_ns: int,
    longest: int,
) -> None:
    """At the first look from then on, in order, once; so are those that are refused."""
    workload = _of_case(case, num_tokens=[3 + i % 3 for i in range(len(case))])
    loop = OpenLoop(workload)
    inner = loop if limit is None else MaxConcurrency(loop, limit)
    refused, seen = list[Request](), list[tuple[Request, int]]()
    door = FrontDoor(inner, longest, refused.append, entry_ns)
    running, now = dict[int, tuple[int, Request]](), 0

    while running or door.next_ns() is not None:
        for end_ns, request in sorted(running.values(), key=lambda pair: pair[0]):
            if end_ns <= now:
                door.on_finished(running.pop(request.request_id)[1], now)
        due = door.pop_due(now)
        following = door.next_ns()
        assert following is None or following > now
        seen += [(request, now) for request in due]
        running |= {request.request_id: (now + 3, request) for request in due}
        assert limit is None or len(running) <= limit
        now += step_ns

    for request, at_ns in seen:
        assert 0 <= at_ns - (request.arrival_ns + entry_ns) < step_ns
    keys = [(request.arrival_ns, request.request_id) for request, _ in seen]
    assert keys == sorted(keys)
    assert all(request.num_prompt_tokens > longest for request in refused)
    assert sorted(_ids([r for r, _ in seen] + refused)) == list(range(len(case)))


def test_a_place_is_empty_until_the_next_request_has_come_in() -> None:
    """It is sent when the place is left, not before, and is on its way for a while."""
    loop = MaxConcurrency(OpenLoop(_workload([0, 1, 2])), 1)
    door = FrontDoor(loop, 3, lambda request: None, entry_ns=19)

    assert door.next_ns() == 19
    assert door.pop_due(18) == []
    (first,) = door.pop_due(19)
    assert door.next_ns() is None
    door.on_finished(first, 100)

    assert door.next_ns() == 119
    assert door.pop_due(118) == []
    (second,) = door.pop_due(125)
    assert (second.request_id, second.arrival_ns) == (1, 100)


def test_a_turn_comes_in_its_delay_and_entry_after_the_turn_before() -> None:
    """The think time ends with its arrival; what the server takes comes on top."""
    source = OpenLoop(_workload([0, 5], parent=[-1, 0], delay_ns=[0, 7]))
    door = FrontDoor(source, 3, lambda request: None, entry_ns=10)
    (first,) = door.pop_due(10)
    door.on_finished(first, 20)

    assert door.next_ns() == 37
    assert [turn.arrival_ns for turn in door.pop_due(37)] == [27]


def test_who_is_refused_holds_its_place_until_then() -> None:
    """A refusal comes after the entry, too, and makes way for the next one and a turn."""
    work = _workload([0, 0, 1], [-1, 0, -1], [0, 2, 0], num_tokens=[9, 3, 3])
    refused: list[Request] = []
    door = FrontDoor(MaxConcurrency(OpenLoop(work), 1), 3, refused.append, entry_ns=10)

    assert door.pop_due(9) == []
    assert refused == []
    assert door.pop_due(10) == []
    assert _ids(refused) == [0]
    assert door.next_ns() == 20  # request 2, sent at 10
    (other,) = door.pop_due(20)
    assert (other.request_id, other.arrival_ns) == (2, 10)


def test_the_place_that_was_free_first_is_taken_first() -> None:
    """A refused request leaves its place earlier than others who have left before."""
    work = _workload([0, 0, 0, 1, 1, 1], num_tokens=[3, 3, 3, 9, 3, 3])
    door = FrontDoor(MaxConcurrency(OpenLoop(work), 3), 3, lambda request: None)
    first = door.pop_due(0)
    for request, end_ns in zip(first, (10, 12, 13), strict=True):
        door.on_finished(request, end_ns)

    due = door.pop_due(20)  # 3 is refused at 10, and 4 takes its place then

    assert [(r.request_id, r.arrival_ns) for r in due] == [(4, 10), (5, 12)]
