"""Tests for :mod:`results.findings.stall`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.run_view import RunView
from results.findings.stall import find_stalls
from results.record import RequestRecord, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]

MS = 1_000_000


def alone(
    make_step: MakeStep, prefill_ms: int = 200, gap_ms: int = 0, **changes: int
) -> list[StepRecord]:
    """Return six times a prefill, then 20 steps of 10 ms with ten decodes."""
    steps: list[StepRecord] = []
    for i in range(6):
        start = i * (prefill_ms + 200) * MS
        middle = start + prefill_ms * MS
        prefill = {"num_prefill_tokens": 4000, "num_prefill_seqs": 1, "num_admitted": 1}
        fields = prefill | {"num_running": 11, "num_decode_seqs": 0} | changes
        steps += [
            make_step(start_ns=start, end_ns=middle, **fields),
            decodes(make_step, middle, (gap_ms or prefill_ms + 10) * MS),
        ]
    return steps


def beside(make_step: MakeStep, num_tokens: int) -> list[StepRecord]:
    """Return six times a step of 200 ms with a chunk and decodes, then 20 of 10 ms."""
    steps: list[StepRecord] = []
    for i in range(6):
        start = i * 400 * MS
        steps += [
            make_step(
                start_ns=start,
                end_ns=start + 200 * MS,
                first_step_ns=200 * MS,
                num_prefill_tokens=num_tokens,
                num_prefill_seqs=1,
                num_decode_seqs=10,
                gap_ns=[200 * MS],
                gap_count=[10],
            ),
            decodes(make_step, start + 200 * MS, 10 * MS),
        ]
    return steps


def decodes(make_step: MakeStep, start_ns: int, gap_ns: int) -> StepRecord:
    """Return 20 steps of 10 ms, the first of which ends a gap."""
    return make_step(
        start_ns=start_ns,
        end_ns=start_ns + 200 * MS,
        num_steps=20,
        first_step_ns=10 * MS,
        last_step_ns=10 * MS,
        num_decode_seqs=10,
        num_running=10,
        gap_ns=[gap_ns],
        gap_count=[10],
    )


def test_prefills_stall_decodes(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Twenty times the median is a stall; chunks of two medians end it."""
    (stall,) = find_stalls(make_view([make_request()], alone(make_step)))

    assert stall.code == "prefills_stall_decodes"
    assert stall.severity == "info"
    assert stall.message == (
        "1 of 100 tokens came 210 ms or more after the one before, 21 times the median of"
        " 10.0 ms: decodes stood still while prompts were computed"
    )
    # a token takes 200 ms / 4000, so 20 ms are 400 of them, rounded down to 384
    assert stall.advice == (
        "--enable-chunked-prefill with --max-num-batched-tokens 384, at the price of"
        " later first tokens"
    )


def test_chunks_are_not_below_max_num_seqs(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Fewer tokens a step than sequences, and vLLM does not start."""
    (stall,) = find_stalls(
        make_view([make_request()], alone(make_step), config={"max_num_seqs": 500})
    )

    assert "--max-num-batched-tokens 500," in stall.advice


def test_groups_are_not_told_to_chunk(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """With n > 1 chunked prefill can trip an assertion of vLLM's. Source: docs/v0.md."""
    (stall,) = find_stalls(make_view([make_request(n=2)], alone(make_step)))

    assert stall.advice.startswith("fewer or shorter prompts;")


@pytest.mark.parametrize(("limit", "is_found"), [(4096, True), (384, False)])
def test_chunks_that_are_too_large(
    limit: int,
    is_found: bool,
    make_request: MakeRequest,
    make_step: MakeStep,
    make_view: MakeView,
) -> None:
    """With chunks smaller ones are advised, unless they are as small as that."""
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": limit}
    run = make_view([make_request()], beside(make_step, 3800), config=chunked)

    # 190 ms beyond the decodes for 3,800 tokens: 400 again
    assert [finding.advice for finding in find_stalls(run)] == [
        "--max-num-batched-tokens 384, at the price of later first tokens"
    ] * is_found


@pytest.mark.parametrize(
    "changes",
    [
        {"prefill_ms": 89},
        {"prefill_ms": 20, "gap_ms": 210},
        {"num_prefill_tokens": 0, "num_decode_seqs": 1},
        {"num_running": 5},
    ],
)
def test_gaps_that_prefills_did_not_make(
    changes: dict[str, Any],
    make_request: MakeRequest,
    make_step: MakeStep,
    make_view: MakeView,
) -> None:
    """Below 100 ms, longer than the prefill, beside none, or of more than it stopped."""
    assert find_stalls(make_view([make_request()], alone(make_step, **changes))) == []


def test_time_without_steps_is_no_prefill(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Gaps in which nothing ran were not made by prefills."""
    idle = [s for s in alone(make_step) if s.num_decode_seqs]

    assert find_stalls(make_view([make_request()], idle)) == []


def test_few_or_even_gaps_are_no_stall(
    make_request: MakeRequest, make_step: MakeStep, make_view: MakeView
) -> None:
    """Fewer than a thousand tell little, and slow decodes are no stall."""
    slow = make_step(
        end_ns=200_000 * MS,
        num_steps=1000,
        first_step_ns=200 * MS,
        last_step_ns=200 * MS,
        num_decode_seqs=10,
    )

    assert len(find_stalls(make_view([make_request()], alone(make_step)[:10]))) == 1
    assert find_stalls(make_view([make_request()], alone(make_step)[:8])) == []
    assert find_stalls(make_view([make_request()], [slow])) == []
    assert find_stalls(make_view([], [])) == []
