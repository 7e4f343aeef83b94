"""Tests for :mod:`results.findings.queue` and ``place``."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.queue import find_queue
from results.record import RequestRecord, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., Any]

S = 1_000_000_000
HARDWARE = "--tensor-parallel-size or a larger GPU"
LIGHTER = " (--speedup below 1 shows a lighter load, here and not in vLLM)"
BLOCKS = {"num_head_blocks": 5}


@pytest.fixture
def queued(make_request: MakeRequest) -> Callable[..., list[RequestRecord]]:
    """Return a maker of 20 requests of which request k waits k seconds."""

    def make(gap_s: float = 1, **changes: int) -> list[RequestRecord]:
        return [
            make_request(
                request_id=k,
                arrival_ns=round(k * gap_s * S),
                first_scheduled_ns=round(k * (gap_s + 1) * S),
                finished_ns=99 * S,
                **{"num_demand_blocks": 1, "num_requested_tokens": 1} | changes,
            )
            for k in range(20)
        ]

    return make


@pytest.fixture
def waiting(make_step: MakeStep) -> Callable[..., list[StepRecord]]:
    """Return a maker of two steps in which ten wait 190 s together, in part so."""

    def make(in_part_s: float = 19, **why: int) -> list[StepRecord]:
        first_ns = round(in_part_s * S)
        return [
            make_step(end_ns=first_ns, num_waiting=10, **why),
            make_step(start_ns=first_ns, end_ns=19 * S, num_waiting=10),
        ]

    return make


@pytest.mark.parametrize(
    ("why", "shape", "knobs", "what", "remedy"),
    [
        (
            BLOCKS,
            {"num_demand_blocks": 3},
            {"watermark": 0},
            ", most of it for blocks",
            f"61 blocks, 0.0 GiB more on each GPU ({HARDWARE}), enough for all that could"
            " have run at once",
        ),
        (
            BLOCKS,
            {"num_demand_blocks": 3},
            {
                "watermark": 0,
                "source_of_num_gpu_blocks": "override",
                "num_fitting_gpu_blocks": 70,
            },
            ", most of it for blocks",
            "--num-gpu-blocks-override 61 (about 70 blocks fit on this GPU), enough for"
            " all that could have run at once; if the queue grows all the same,"
            f" {HARDWARE}",
        ),
        (
            {"num_running": 4},
            {},
            {"max_num_seqs": 4},
            ", most of it for one of the 4 places of max_num_seqs",
            "--max-num-seqs 9, as many as the pool holds with 75 % of their output; if"
            f" the queue grows all the same, {HARDWARE}",
        ),
        (
            {"num_running": 4},
            {"num_demand_blocks": 5},
            {"max_num_seqs": 4},
            ", most of it for one of the 4 places of max_num_seqs",
            "a larger pool, and then a higher --max-num-seqs; if the queue grows all the"
            f" same, {HARDWARE}",
        ),
        ({}, {}, {}, "", HARDWARE),
    ],
)
def test_overloaded_names_what_requests_waited_for(
    why: dict[str, int],
    shape: dict[str, int],
    knobs: dict[str, Any],
    what: str,
    remedy: str,
    queued: Callable[..., list[RequestRecord]],
    waiting: Callable[..., list[StepRecord]],
    make_view: MakeView,
) -> None:
    """Blocks, places or neither; its remedy comes first, and hardware once."""
    (found,) = find_queue(make_view(queued(**shape), waiting(**why), config=knobs))

    assert (found.code, found.severity) == ("overloaded", "warning")
    assert found.message == (
        "for 19 s requests came faster than they were served: the first quarter waited"
        f" 2.0 s on average, the last 17.0 s{what}; latencies depend on the trace's"
        " length"
    )
    assert found.advice == remedy + LIGHTER
    assert found.advice.count(HARDWARE) == 1


@pytest.mark.parametrize(("in_part_s", "is_named"), [(9.5, True), (9.4, False)])
def test_less_than_half_of_the_waiting_is_no_cause(
    in_part_s: float,
    is_named: bool,
    queued: Callable[..., list[RequestRecord]],
    waiting: Callable[..., list[StepRecord]],
    make_view: MakeView,
) -> None:
    """95 of the 190 s that requests waited are named, 94 are not."""
    (found,) = find_queue(make_view(queued(), waiting(in_part_s, **BLOCKS)))

    assert ("most of it for blocks" in found.message) == is_named


@pytest.mark.parametrize(
    ("gap_s", "came", "lighter"),
    [
        (0.53, "for 10 s requests came", "--speedup below 1 shows a lighter load"),
        (0.52, "all requests came within 9.9 s", "--request-rate spreads the arrivals"),
    ],
)
def test_a_burst_is_spread_out_and_a_rate_slowed_down(
    gap_s: float,
    came: str,
    lighter: str,
    queued: Callable[..., list[RequestRecord]],
    waiting: Callable[..., list[StepRecord]],
    make_view: MakeView,
) -> None:
    """Arrivals within 10 s have no rate of which one could take a part."""
    (found,) = find_queue(make_view(queued(gap_s), waiting()))

    assert found.message.startswith(came)
    assert f"({lighter}" in found.advice


def test_a_queue_that_settles_is_no_finding(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Equal waits, and a run without requests."""
    steps = [make_step(end_ns=9 * S, num_waiting=10)]

    assert find_queue(make_view([make_request()] * 20, steps)) == []
    assert find_queue(make_view([], [])) == []
