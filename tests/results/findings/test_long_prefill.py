"""Tests for :mod:`results.findings.long_prefill`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.long_prefill import find_long_prefills
from results.findings.run_view import RunView
from results.record import RequestRecord, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]
View = Callable[..., RunView]

S = 1_000_000_000
V1 = {"enable_chunked_prefill": True, "long_prefill_token_threshold": 0}


@pytest.fixture
def view(make_request: MakeRequest, make_step: MakeStep, make_view: MakeView) -> View:
    """Return a maker of v1 views: one prefill fills a step of 1 s while two wait."""

    def make(policy: str = "v1", knobs: dict[str, Any] | None = None, **step: Any) -> Any:
        fields = {"end_ns": S, "first_step_ns": S, "last_step_ns": S}
        fields |= {"num_prefill_seqs": 1, "num_prefill_tokens": 4095, "num_waiting": 2}
        requests = [make_request(first_scheduled_ns=S) for _ in range(2)]
        steps = [make_step(**fields | step)]
        return make_view(requests, steps, policy=policy, config=V1 | (knobs or {}))

    return make


def test_long_prefills_block(view: View) -> None:
    """Both waited their second beside a prompt that took all 4,096 tokens."""
    (found,) = find_long_prefills(view())

    assert found.code == "long_prefills_block"
    assert found.severity == "warning"
    assert found.message == (
        "requests waited 100 % of their time in the queue beside a single long prompt"
        " that took all 4,096 tokens of a step for itself, 1.00 s on average"
    )
    assert found.advice == (
        "--long-prefill-token-threshold 1024: a long prompt leaves room for shorter ones"
        " then, and takes longer itself"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_prefill_tokens": 4094},
        {"num_prefill_seqs": 2},
        {"num_waiting": 0},
        {"num_head_blocks": 1},
        {"end_ns": S // 10 - 1},
        {"policy": "v0"},
        {"knobs": {"long_prefill_token_threshold": 512}},
        {"knobs": {"enable_chunked_prefill": False}},
    ],
)
def test_nobody_is_blamed_without_need(view: View, changes: dict[str, Any]) -> None:
    """A token was left, two shared, nobody waited, blocks lacked, v0, knobs set."""
    assert find_long_prefills(view(**changes)) == []


def test_growing_queue_is_said_once(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Where requests come faster than they are served, ``overloaded`` says it."""
    requests, steps = [], []
    for i in range(400):
        times = {"arrival_ns": i * S, "first_scheduled_ns": 3 * i * S}
        ends = {"first_token_ns": 3 * i * S + 1, "finished_ns": 3 * i * S + 2}
        requests.append(make_request(request_id=i, **times, **ends))
        fields = {"start_ns": 3 * i * S, "end_ns": 3 * (i + 1) * S, "num_waiting": 100}
        steps.append(make_step(num_prefill_seqs=1, num_prefill_tokens=4095, **fields))

    run = make_view(requests, steps, policy="v1", config=V1)
    closed = make_view(requests, steps, policy="v1", config=V1 | {"max_concurrency": 9})

    assert run.is_growing
    assert find_long_prefills(run) == []
    assert find_long_prefills(closed) != []
