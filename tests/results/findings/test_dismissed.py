"""Tests for :mod:`results.findings.dismissed`: sentences, figures and remedies."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.dismissed import find_dismissed
from results.findings.run_view import RunView
from results.record import RequestRecord, RequestStatus

MakeRequest = Callable[..., RequestRecord]
MakeView = Callable[..., RunView]


@pytest.fixture
def refused(make_request: MakeRequest) -> Callable[..., list[RequestRecord]]:
    """Return a maker of requests with these prompts, all refused for the reason."""

    def make(reason: str, *prompts: int) -> list[RequestRecord]:
        return [
            make_request(
                request_id=i,
                num_prompt_tokens=prompt,
                num_output_tokens=0,
                max_sample_tokens=0,
                first_scheduled_ns=None,
                status=RequestStatus.REJECTED,
                reason=reason,
            )
            for i, prompt in enumerate(prompts)
        ]

    return make


@pytest.mark.parametrize(
    ("longest_model_len", "advice"),
    [
        (8192, "--max-model-len 5001 takes the longest, and one token of output"),
        (5001, "--max-model-len 5001 takes the longest, and one token of output"),
        (5000, "shorten them: the model takes 5,000 tokens at most"),
        (4096, "shorten them: the model takes 4,096 tokens at most"),
        (None, "--max-model-len 5001 takes the longest, and one token of output"),
    ],
)
def test_prompts_too_long_are_let_in_as_far_as_the_model_goes(
    longest_model_len: int | None,
    advice: str,
    refused: Callable[..., list[RequestRecord]],
    make_view: MakeView,
) -> None:
    """Beyond its own limit no flag helps."""
    knobs: dict[str, Any] = {"longest_model_len": longest_model_len}
    rows = refused("prompt_too_long", 4500, 5000)

    (found,) = find_dismissed(make_view(rows, [], config=knobs))

    assert (found.code, found.severity) == ("prompt_too_long", "warning")
    assert found.message == (
        "2 requests (#0, #1) had prompts longer than max_model_len (4,096 tokens), up to"
        " 5,000, and never ran"
    )
    assert found.advice == advice


@pytest.mark.parametrize(
    ("knobs", "pool"),
    [
        (
            {},
            "14 blocks, 0.0 GiB more on each GPU (--tensor-parallel-size or a larger"
            " GPU)",
        ),
        (
            {"source_of_num_gpu_blocks": "override", "num_fitting_gpu_blocks": 20},
            "--num-gpu-blocks-override 14 (about 20 blocks fit on this GPU)",
        ),
    ],
)
def test_requests_larger_than_the_pool_name_one_that_holds_them(
    knobs: dict[str, Any],
    pool: str,
    refused: Callable[..., list[RequestRecord]],
    make_view: MakeView,
) -> None:
    """200 tokens are 13 blocks, and one is kept free of ten."""
    rows = refused("exceeds_kv_capacity", 180, 200)

    (found,) = find_dismissed(make_view(rows, [], config={"watermark": 0.1} | knobs))

    assert found.code == "exceeds_kv_capacity"
    assert found.message == (
        "2 requests (#0, #1) did not fit into the pool, or outgrew it: the longest came"
        " to 200 tokens, and the largest needs 14 blocks at its full length, the"
        " watermark included, 0.0 GiB; the pool has 10"
    )
    assert found.advice == f"{pool}; or send such requests elsewhere"


def band(make_request: MakeRequest, num_demand_blocks: int) -> RequestRecord:
    """A request of 100 tokens that was refused and would have come to so many blocks."""
    return make_request(
        num_prompt_tokens=100,
        max_sample_tokens=0,
        num_demand_blocks=num_demand_blocks,
        status=RequestStatus.REJECTED,
        reason="exceeds_kv_capacity",
    )


def test_only_the_watermark_stops_what_fits_exactly(
    make_request: MakeRequest, make_view: MakeView
) -> None:
    """Ten blocks of ten fit without a watermark, eleven never."""
    knobs = {"config": {"watermark": 0.2}}

    (fits,) = find_dismissed(make_view([band(make_request, 10)], [], **knobs))
    (large,) = find_dismissed(make_view([band(make_request, 11)], [], **knobs))

    assert (fits.code, large.code) == ("watermark_band", "exceeds_kv_capacity")
    assert fits.advice == (
        "--watermark 0 would admit them; where vLLM has no such option, 12 blocks would"
    )


@pytest.mark.parametrize("num_blocks", [7, 8, 9, 10])
def test_the_watermark_that_is_named_admits(
    num_blocks: int, make_request: MakeRequest, make_view: MakeView
) -> None:
    """Rounded down, it leaves the blocks that the largest needs."""
    rows = [band(make_request, num_blocks)]

    (found,) = find_dismissed(make_view(rows, [], config={"watermark": 0.95}))

    watermark = float(found.advice.split()[1])
    assert num_blocks + int(watermark * 10) <= 10


def test_swap_space_is_named_for_the_largest_and_for_all(
    make_request: MakeRequest, make_view: MakeView
) -> None:
    """Three and six GiB groups that were there together need three, six and nine."""
    rows = [
        make_request(
            request_id=i,
            n=2,
            num_demand_blocks=gib * 1024,
            status=RequestStatus.ABORTED,
            reason="no_cpu_blocks",
        )
        for i, gib in enumerate((3, 6))
    ]

    (found,) = find_dismissed(make_view(rows, []))
    (held,) = find_dismissed(make_view(rows, [], config={"num_cpu_blocks": 7 * 1024}))

    assert "The largest alone needs 6,144 blocks, 6.0 GiB" in found.message
    everyone = "9 for all groups of n > 1 that were there at once"
    assert found.advice == f"--swap-space 6 for that one, {everyone}"
    assert held.advice == f"--swap-space {everyone}"
