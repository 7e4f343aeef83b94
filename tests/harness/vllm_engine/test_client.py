"""The client hands requests out when they are due, and knows how late it was."""

import time
from collections.abc import Sequence

from harness.arrivals import MaxConcurrency, OpenLoop
from harness.request import Request
from harness.vllm_engine.child.client import Client, Clock
from harness.workload import Workload


def workload(arrivals_ns: Sequence[int], parent: Sequence[int] | None = None) -> Workload:
    """Requests that arrive then."""
    requests = [
        Request(
            request_id=number,
            arrival_ns=ns,
            prompt=((number, 8),),
            num_prompt_tokens=8,
            outputs=((100 + number, 4),),
        )
        for number, ns in enumerate(arrivals_ns)
    ]
    return Workload.from_requests(requests, parent=parent)


def taken(client: Client) -> list[int]:
    """The numbers of what was sent."""
    return [request.request_id for request in client.take()]


def test_all_that_is_due_is_there_before_the_first_step() -> None:
    """Nothing depends on which thread is first."""
    client = Client(OpenLoop(workload([0] * 500)), Clock())

    assert taken(client) == list(range(500))
    assert not client.wait(1.0)
    lateness = client.lateness_s()
    assert lateness is not None
    assert 0 <= lateness["p50"] <= lateness["p99"] <= lateness["max"] < 0.5


def test_a_request_waits_for_its_time() -> None:
    """It is sent when it is due, not before."""
    clock = Clock()
    client = Client(OpenLoop(workload([0, 50_000_000])), clock)
    assert taken(client) == [0]

    while not (sent := taken(client)):
        assert client.wait(1.0)

    assert sent == [1]
    assert clock.now_ns() >= 50_000_000


def test_a_turn_that_is_due_at_once_is_sent_at_once() -> None:
    """The next step has it, whatever threads do."""
    source = workload([0, 0], parent=[-1, 0])
    clock = Clock()
    client = Client(OpenLoop(source), clock)
    assert taken(client) == [0]

    client.on_finished(source.request(0), clock.now_ns())

    assert taken(client) == [1]


def test_a_place_is_given_on() -> None:
    """With one request at a time the next is sent when the first has left."""
    source = workload([0, 0])
    clock = Clock()
    client = Client(MaxConcurrency(OpenLoop(source), 1), clock)
    assert taken(client) == [0]
    assert taken(client) == []

    client.on_finished(source.request(0), clock.now_ns())

    assert taken(client) == [1]
    assert not client.wait(0.1)


def test_a_closed_client_sends_nothing() -> None:
    """What would have come later does not come."""
    client = Client(OpenLoop(workload([0, 30_000_000])), Clock())
    taken(client)

    client.close()
    time.sleep(0.06)

    assert taken(client) == []
