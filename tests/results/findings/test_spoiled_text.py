"""Tests for :mod:`results.findings.spoiled_text`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.findings.spoiled_text import find_spoiled_text
from results.run_info import Ending, Outcome

MakeView = Callable[..., RunView]
Make = Callable[..., Any]


class Swapping:
    """Makes runs of prompts of 100 tokens that were preempted and swapped in."""

    def __init__(self, make_request: Make, make_step: Make, make_view: MakeView) -> None:
        self.make_request, self.make_step = make_request, make_step
        self.make_view = make_view

    def prompts(self, *shared: int, **more: Any) -> list[Any]:
        """Return a request for each number of shared tokens."""
        fields = {"num_prompt_tokens": 100, "num_preemptions": 1, "num_demand_blocks": 12}
        return [
            self.make_request(request_id=i, num_shared_tokens=s, **(fields | more))
            for i, s in enumerate(shared)
        ]

    def found(
        self, requests: list[Any], num_blocks: int = 3, **changes: Any
    ) -> list[Finding]:
        """Return what is found with prefix caching on."""
        config = {"enable_prefix_caching": True} | changes.pop("config", {})
        step = self.make_step(num_swap_in_blocks=num_blocks)
        return find_spoiled_text(
            self.make_view(requests, [step], config=config, **changes)
        )


@pytest.fixture
def swapping(make_request: Make, make_step: Make, make_view: MakeView) -> Swapping:
    """Return a maker of runs."""
    return Swapping(make_request, make_step, make_view)


def test_run_without_rows_has_no_findings(make_view: MakeView) -> None:
    """A run that ended before anything ran spoiled nothing."""
    ended = Outcome(ending=Ending.KILLED)

    assert (
        find_spoiled_text(
            make_view([], [], config={"enable_prefix_caching": True}, outcome=ended)
        )
        == []
    )


def test_swapping_equal_prompts_may_spoil_text(swapping: Swapping) -> None:
    """Two of three prompts repeat another whole; the pool that needs no swap is named."""
    (found,) = swapping.found(swapping.prompts(0, 100, 100, n=2))

    assert found.code == "swap_may_spoil_text"
    assert found.severity == "warning"
    assert found.message == (
        "3 blocks were swapped in with prefix caching on, and 2 prompts repeat an earlier"
        " one to its last token: vLLM's v0 can copy a request that comes back over a"
        " block that another with the same prompt is writing, and text comes out wrong"
    )
    assert found.advice.startswith(
        "leave --enable-prefix-caching out, or see that nothing is swapped: 39 blocks"
    )
    assert found.advice.endswith("; vLLM's V1 does not swap")


def test_forced_swapping_of_single_samples_can_be_left_out(swapping: Swapping) -> None:
    """Requests with n = 1 are swapped only because of the flag."""
    (found,) = swapping.found(
        swapping.prompts(0, 100), config={"preemption_mode": "swap"}
    )

    assert "1 prompt repeats an earlier one" in found.message
    assert found.advice.startswith("leave --preemption-mode swap out")


def test_flag_alone_does_not_help_several_samples(swapping: Swapping) -> None:
    """Requests with n > 1 are swapped without the flag as well."""
    (found,) = swapping.found(
        swapping.prompts(0, 100, n=2), config={"preemption_mode": "swap"}
    )

    assert found.advice.startswith("leave --enable-prefix-caching out")


def test_samples_that_were_not_preempted_need_no_other_remedy(swapping: Swapping) -> None:
    """Only requests that were preempted count among those that are swapped anyway."""
    requests = swapping.prompts(0, 100)
    requests += swapping.prompts(0, n=2, num_preemptions=0)

    (found,) = swapping.found(requests, config={"preemption_mode": "swap"})

    assert found.advice.startswith("leave --preemption-mode swap out")


def test_unknown_prompts_may_be_equal(swapping: Swapping) -> None:
    """Where the trace does not say, equal prompts cannot be ruled out."""
    (found,) = swapping.found(swapping.prompts(0, 0), trace={"has_sharing": False})

    assert "the trace does not say which prompts are equal" in found.message


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 0},
        {"policy": "v1"},
        {"config": {"enable_prefix_caching": False}},
        {"config": {"block_size": 20}},  # prompts end with a block
    ],
)
def test_text_is_safe_otherwise(swapping: Swapping, changes: dict[str, Any]) -> None:
    """Without swaps, v0, caching or a last block partly filled nothing is overwritten."""
    assert swapping.found(swapping.prompts(0, 100), **changes) == []


def test_prompts_that_differ_cannot_be_overwritten(swapping: Swapping) -> None:
    """A common beginning of 99 of 100 tokens shares no block that is still written."""
    assert swapping.found(swapping.prompts(0, 99, 99)) == []
