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
        " to 200 tokens and needs 14 blocks with the watermark, 0.0 GiB; the pool has 10"
    )
    assert found.advice == f"{pool}; or send such requests elsewhere"
