"""Tests for ``steady`` in :mod:`results.summary`: whether waits settled."""

from collections.abc import Callable, Sequence

import pytest

from results.columns import Columns
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, Outcome, RunInfo
from results.summary import is_steady, summarize

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]

S = 1_000_000_000
INCOMPLETE = [ending for ending in Ending if ending is not Ending.COMPLETE]


@pytest.fixture
def queued(make_request: MakeRequest) -> list[RequestRecord]:
    """Return 20 requests a second apart, each of which waits a second longer."""
    return [
        make_request(
            arrival_ns=k * S,
            first_scheduled_ns=2 * k * S,
            first_token_ns=(2 * k + 1) * S,
            finished_ns=(2 * k + 2) * S,
        )
        for k in range(20)
    ]


def steady(
    info: RunInfo, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> bool | None:
    """Return what the document says, having asked the function too."""
    columns = Columns.of(RequestRecord, requests), Columns.of(StepRecord, steps)
    said = is_steady(info, *columns)
    assert summarize(info, *columns)["steady"] == said
    return said


def test_a_growing_queue_is_not_steady(
    queued: list[RequestRecord], make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Where each request waits longer than the one before, latencies tell nothing."""
    assert steady(make_info(), queued, [make_step(end_ns=40 * S)]) is False


def test_equal_waits_are_steady(
    make_request: MakeRequest, make_step: MakeStep, make_info: MakeInfo
) -> None:
    """Where every request waits alike, the queue has settled."""
    requests = [make_request() for _ in range(20)]

    assert steady(make_info(), requests, [make_step(end_ns=4 * S)]) is True
    assert steady(make_info(), requests[1:], [make_step(end_ns=4 * S)]) is None


@pytest.mark.parametrize("ending", INCOMPLETE)
def test_a_run_that_broke_off_is_never_steady(
    queued: list[RequestRecord],
    make_request: MakeRequest,
    make_step: MakeStep,
    make_info: MakeInfo,
    ending: Ending,
) -> None:
    """What had not grown by then might have; what had, has."""
    info = make_info(outcome=Outcome(ending=ending))

    assert steady(info, [make_request()] * 20, [make_step(end_ns=4 * S)]) is None
    assert steady(info, queued, [make_step(end_ns=40 * S)]) is False
    assert steady(info, [], []) is None


def test_no_queue_grows_in_a_closed_loop(
    queued: list[RequestRecord], make_step: MakeStep, make_info: MakeInfo
) -> None:
    """With so many requests at most, waits say nothing about the load."""
    info = make_info(config={"max_concurrency": 8})

    assert steady(info, queued, [make_step(end_ns=40 * S)]) is None
