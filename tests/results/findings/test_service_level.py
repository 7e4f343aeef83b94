"""Tests for :mod:`results.findings.service_level`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings import Finding
from results.findings.run_view import RunView
from results.findings.service_level import find_service_level
from results.record import RequestRecord, RequestStatus, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]

S = 1_000_000_000
MS = 1_000_000


@pytest.fixture
def find(make_view: MakeView, make_request: MakeRequest) -> Callable[..., list[Finding]]:
    """Return what looks at ten requests: TTFT i s, of which all but 0.1 s waiting."""

    def look(
        slo: dict[str, float] | None, steps: list[StepRecord], **changes: Any
    ) -> list[Finding]:
        requests = [
            make_request(
                request_id=i,
                first_scheduled_ns=i * S - S // 10,
                first_token_ns=i * S,
                finished_ns=i * S + 4 * 20 * MS,
            )
            for i in range(1, 11)
        ]
        trace = {"num_requests": 10}
        return find_service_level(
            make_view(requests, steps, slo=slo, trace=trace, **changes)
        )

    return look


def decodes(make_step: MakeStep, num_seqs: int, ms: int, **changes: Any) -> StepRecord:
    """A stretch of ten steps of so many sequences and milliseconds."""
    return make_step(
        num_steps=10,
        end_ns=10 * ms * MS,
        first_step_ns=ms * MS,
        last_step_ns=ms * MS,
        num_decode_seqs=num_seqs,
        **changes,
    )


@pytest.mark.parametrize("slo", [None, {"ttft_s": 9.0}, {"ttft_p50_s": 5.5}])
def test_limits_that_are_met_are_no_finding(
    find: Callable[..., list[Finding]],
    make_step: MakeStep,
    slo: dict[str, float] | None,
) -> None:
    """Nine of ten inside a limit are enough, and a condition met exactly is met."""
    assert find(slo, [decodes(make_step, 4, 10)]) == []


def test_first_tokens_wait_for_what_is_named(
    find: Callable[..., list[Finding]], make_step: MakeStep
) -> None:
    """Who waited for blocks is told so, with how many missed the limit."""
    step = decodes(
        make_step, 4, 2000, num_waiting=5, num_head_blocks=3, num_room_blocks=1
    )

    (finding,) = find({"ttft_s": 8.0}, [step])

    assert finding.code == "slo_missed"
    assert finding.message == (
        "80 % of requests were inside the SLO: 2 missed ttft of 8 s, the median was 5.5 s"
    )
    assert finding.advice.startswith("they waited for blocks: ")


def test_tokens_come_in_time_from_fewer_sequences(
    find: Callable[..., list[Finding]], make_step: MakeStep
) -> None:
    """The remedy is the largest batch up to which all decode steps were inside."""
    shapes = ((2, 9), (5, 14), (7, 14), (7, 16), (8, 14), (9, 21))
    steps = [decodes(make_step, seqs, ms) for seqs, ms in shapes]

    (finding,) = find({"tpot_s": 0.015}, steps)

    assert "10 missed tpot of 15 ms, the median was 20 ms" in finding.message
    assert finding.advice == (
        "--max-num-seqs 5: no step of so few that only decoded exceeded tpot"
    )


def test_steps_that_are_slow_alone_need_hardware(
    find: Callable[..., list[Finding]], make_step: MakeStep
) -> None:
    """Where no batch was inside the limit, fewer sequences are no remedy."""
    (finding,) = find({"tpot_s": 0.015}, [decodes(make_step, 1, 21)])

    assert finding.advice.startswith("a faster GPU")


def test_conditions_on_the_run_are_named_with_their_value(
    find: Callable[..., list[Finding]], make_step: MakeStep
) -> None:
    """A condition alone says nothing of single requests."""
    (finding,) = find({"ttft_max_s": 0.25}, [decodes(make_step, 4, 10)])

    assert finding.message == "ttft_max was 10 s, not 250 ms"


def test_requests_that_did_not_finish_are_outside(
    make_view: MakeView, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """They count as missed, also those that a killed run has no row of."""
    rows = [make_request(), make_request(status=RequestStatus.ABORTED)]

    (finding,) = find_service_level(
        make_view(
            rows,
            [decodes(make_step, 4, 10)],
            slo={"ttft_s": 60.0},
            trace={"num_requests": 4},
        )
    )

    assert finding.message == ("25 % of requests were inside the SLO: 3 did not finish")
