"""Tests for :mod:`results.findings.decode`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from results.findings.decode import find_decode
from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, Outcome

MakeView = Callable[..., RunView]
Make = Callable[..., Any]

SEQ_NS = 100_000
TOKEN_NS = 100
NUM_STEPS = 1000


class Decoding:
    """Makes runs of decode steps of known cost, over 20 requests of which 2 are long.

    A step takes ``fixed_ns``, ``SEQ_NS`` a sequence and ``TOKEN_NS`` a context token.
    """

    def __init__(
        self,
        make_request: Callable[..., RequestRecord],
        make_step: Callable[..., StepRecord],
        make_view: MakeView,
    ) -> None:
        self.make_request, self.make_step = make_request, make_step
        self.make_view = make_view

    def requests(
        self, prompts: list[int] | None = None, num_output_tokens: int = 11, **more: Any
    ) -> list[RequestRecord]:
        """Return requests; without prompts 18 of 100 tokens and 2 of 10,000.

        They run through all steps, so that there are none without the long ones.
        """
        fields = {"first_token_ns": 0, "finished_ns": None} | more
        return [
            self.make_request(
                request_id=i,
                num_prompt_tokens=prompt,
                num_output_tokens=num_output_tokens,
                max_sample_tokens=num_output_tokens,
                **fields,
            )
            for i, prompt in enumerate(prompts or [100] * 18 + [10_000] * 2)
        ]

    def steps(self, fixed_ns: int = 1_000_000, num_stretches: int = 20) -> list[Any]:
        """Return stretches of a thousand steps, one after the other."""
        rows, now = [], 0
        for i in range(num_stretches):
            seqs, context = 1 + i % 3, 20_000 + 1_000 * i
            first = fixed_ns + SEQ_NS * seqs + TOKEN_NS * context
            last = first + TOKEN_NS * seqs * (NUM_STEPS - 1)
            end = now + NUM_STEPS * (first + last) // 2
            rows.append(
                self.make_step(
                    start_ns=now,
                    end_ns=end,
                    num_steps=NUM_STEPS,
                    first_step_ns=first,
                    last_step_ns=last,
                    num_decode_seqs=seqs,
                    num_context_tokens=context,
                )
            )
            now = end
        return rows

    def found(
        self, requests: list[Any] | None = None, steps: list[Any] | None = None
    ) -> list[Finding]:
        """Return what is found."""
        return find_decode(
            self.make_view(
                self.requests() if requests is None else requests,
                self.steps() if steps is None else steps,
            )
        )


@pytest.fixture
def decoding(make_request: Make, make_step: Make, make_view: MakeView) -> Decoding:
    """Return a maker of runs."""
    return Decoding(make_request, make_step, make_view)


def num_read(steps: list[StepRecord]) -> int:
    """Count the context tokens step by step."""
    return sum(
        step.num_context_tokens + k * step.num_decode_seqs
        for step in steps
        for k in range(step.num_steps)
    )


def time_ns(steps: list[StepRecord]) -> int:
    """Add up the time of steps."""
    return sum(step.end_ns - step.start_ns for step in steps)


def test_run_without_rows_has_no_findings(make_view: MakeView) -> None:
    """Nothing is said of decodes that never were."""
    ended = Outcome(ending=Ending.DIED, kind="vllm_assertion")

    assert find_decode(make_view([], [], outcome=ended)) == []


def test_few_long_sequences_are_named_with_what_they_cost(decoding: Decoding) -> None:
    """Contexts take three quarters of the time, and the long two are nearly all of it."""
    steps = decoding.steps()
    reading = TOKEN_NS * num_read(steps) / time_ns(steps)

    (found,) = decoding.found(steps=steps)

    # each decodes ten tokens: 10 * 10,000 + 55 against 10 * 100 + 55 context tokens
    of_long = 2 * 100_055 / (2 * 100_055 + 18 * 1_055)
    assert found.code == "long_sequences"
    assert found.severity == "warning"
    assert found.message == (
        "2 of 20 requests, those of 10,011 tokens and more, account for"
        f" {100 * of_long:.0f} % of the contexts that decodes read, and reading takes"
        f" {100 * reading:.0f} % of the time of steps that only decode; copy-on-write is"
        " not the cause (0 blocks copied)"
    )
    assert (f"{100 * of_long:.0f}", f"{100 * reading:.0f}") == ("91", "72")
    assert found.advice == (
        "send prompts of 10,000 tokens and more to a deployment of their own, or refuse"
        " them with --max-model-len 111, which is enough for the others"
    )


@pytest.mark.parametrize(("factor", "is_found"), [(0.99, True), (1.01, False)])
def test_contexts_must_take_half_of_the_decode_time(
    decoding: Decoding, factor: float, is_found: bool
) -> None:
    """With a little more time for all else there is nothing to say."""
    free = decoding.steps(fixed_ns=0)
    of_all_else = 2 * TOKEN_NS * num_read(free) - time_ns(free)
    fixed_ns = round(factor * of_all_else / (NUM_STEPS * len(free)))

    assert bool(decoding.found(steps=decoding.steps(fixed_ns))) == is_found


@pytest.mark.parametrize(("prompt", "is_found"), [(908, True), (907, False)])
def test_longest_must_account_for_half_of_the_contexts(
    decoding: Decoding, prompt: int, is_found: bool
) -> None:
    """One decode each reads 909 twice against 101 for each of 18: half of all."""
    requests = decoding.requests([100] * 18 + [prompt] * 2, num_output_tokens=2)

    assert bool(decoding.found(requests)) == is_found


def test_samples_of_a_request_all_read_its_prompt(decoding: Decoding) -> None:
    """907 tokens are not enough for one sample of two tokens, and are for two samples."""
    requests = decoding.requests([100] * 18 + [907] * 2, num_output_tokens=2)
    for request in requests[18:]:
        request.n, request.num_output_tokens = 2, 4

    assert len(decoding.found(requests)) == 1


def test_time_in_prefills_makes_it_a_remark(decoding: Decoding) -> None:
    """Where decodes are less than half of the run, nothing much is lost."""
    steps = decoding.steps()
    prefill = decoding.make_step(
        start_ns=steps[-1].end_ns,
        end_ns=2 * steps[-1].end_ns,
        num_prefill_tokens=9_000,
        num_prefill_seqs=1,
        num_decode_seqs=0,
    )

    (found,) = decoding.found(steps=[*steps, prefill])

    assert found.severity == "info"


def test_steps_beside_the_long_ones_are_compared_with_the_others(
    decoding: Decoding,
) -> None:
    """The long two run during the second half, whose steps are the longer ones."""
    steps = decoding.steps()
    requests = decoding.requests()
    for request in requests[18:]:
        request.first_token_ns = steps[10].start_ns
        request.finished_ns = steps[-1].end_ns
    early, late = (time_ns(half) / 10_000 / 1e6 for half in (steps[:10], steps[10:]))

    (found,) = decoding.found(requests, steps)

    assert f": {late:.3g} ms a step while one of them runs, {early:.3g} otherwise" in (
        found.message
    )
    assert early < late


def test_request_that_never_finished_counts_as_running(decoding: Decoding) -> None:
    """Long ones that were still running at the end ran through the whole second half."""
    steps = decoding.steps()
    requests = decoding.requests()
    for request in requests[18:]:
        request.first_token_ns, request.finished_ns = steps[10].start_ns, None

    (found,) = decoding.found(requests, steps)

    assert "while one of them runs" in found.message


def test_steps_after_the_long_ones_are_among_the_others(decoding: Decoding) -> None:
    """The long two run in the longer second half, up to its last stretch."""
    steps = decoding.steps()
    requests = decoding.requests()
    for request in requests[18:]:
        request.first_token_ns = steps[10].start_ns
        request.finished_ns = steps[19].start_ns
    beside = time_ns(steps[10:19]) / 9_000 / 1e6
    otherwise = (time_ns(steps[:10]) + time_ns(steps[19:])) / 11_000 / 1e6

    (found,) = decoding.found(requests, steps)

    assert f": {beside:.3g} ms a step while one of them runs, {otherwise:.3g} oth" in (
        found.message
    )


def test_few_steps_without_the_long_ones_are_no_comparison(decoding: Decoding) -> None:
    """Where long ones nearly always run, no mean of the other steps is given."""
    steps = decoding.steps(num_stretches=101)
    requests = decoding.requests()
    for request in requests[18:]:
        request.first_token_ns = steps[1].start_ns
        request.finished_ns = steps[-1].end_ns

    (found,) = decoding.found(requests, steps)

    assert "while one of them runs" not in found.message


def test_steps_that_are_no_longer_beside_the_long_ones_show_nothing(
    decoding: Decoding,
) -> None:
    """Long ones in the first half, whose steps are shorter, are not compared."""
    steps = decoding.steps()
    requests = decoding.requests()
    for request in requests[18:]:
        request.finished_ns = steps[10].start_ns

    (found,) = decoding.found(requests, steps)

    assert "while one of them runs" not in found.message


def test_steps_that_also_prefill_are_left_out(decoding: Decoding) -> None:
    """A chunk of a prompt makes a step long, which contexts did not."""
    steps = decoding.steps()
    (plain,) = decoding.found(steps=steps)
    mixed = [
        decoding.make_step(
            start_ns=steps[-1].end_ns + i * 1000,
            end_ns=steps[-1].end_ns + (i + 1) * 1000,
            first_step_ns=1000,
            last_step_ns=1000,
            num_prefill_tokens=500,
            num_prefill_seqs=1,
            num_context_tokens=90_000 - i,
        )
        for i in range(100)
    ]

    (found,) = decoding.found(steps=[*steps, *mixed])

    assert found == plain


def test_copies_are_mentioned_only_where_they_are_few(decoding: Decoding) -> None:
    """Copies of a hundredth of what is read might be a cause, and are not cleared."""
    steps = decoding.steps()
    few = num_read(steps) // (100 * 2 * 16)
    steps[0].num_copy_on_write = few
    (cleared,) = decoding.found(steps=steps)
    steps[0].num_copy_on_write = few + 1
    (suspect,) = decoding.found(steps=steps)

    assert f"copy-on-write is not the cause ({few:,} blocks copied)" in cleared.message
    assert "copy-on-write" not in suspect.message


def test_long_outputs_are_not_sent_away_by_their_prompts(decoding: Decoding) -> None:
    """Where prompts do not tell the long requests, outputs are to be limited."""
    requests = decoding.requests([100] * 20)
    for request in requests[18:]:
        request.num_output_tokens = request.max_sample_tokens = 5_000

    (found,) = decoding.found(requests)

    assert found.advice.startswith(
        "limit the outputs of the longest, or cut them with --max-model-len 111"
    )


def test_line_is_drawn_between_the_prompts(decoding: Decoding) -> None:
    """Of long prompts the shortest, and of the others the longest, set the limits."""
    prompts = [100] * 16 + [150, 200, 10_000, 12_000]

    (found,) = decoding.found(decoding.requests(prompts))

    assert found.advice.startswith("send prompts of 10,000 tokens and more to")
    assert "--max-model-len 211," in found.advice


def test_prompts_that_are_no_longer_than_others_draw_no_line(decoding: Decoding) -> None:
    """One of the longest has a prompt as long as another request's."""
    requests = decoding.requests([100] * 16 + [150, 200, 200, 12_000])
    requests[18].num_output_tokens = requests[18].max_sample_tokens = 9_000

    (found,) = decoding.found(requests)

    assert found.advice.startswith("limit the outputs of the longest")


def test_one_long_request_among_equal_ones_is_found(decoding: Decoding) -> None:
    """Where a tenth would take in most requests, only the longer ones are long."""
    (found,) = decoding.found(decoding.requests([100] * 19 + [40_000]))

    assert found.message.startswith("1 of 20 requests, those of 40,011 tokens and more")


@pytest.mark.parametrize(("num_long", "is_found"), [(4, True), (5, False)])
def test_a_fifth_may_be_equally_long(
    decoding: Decoding, num_long: int, is_found: bool
) -> None:
    """Four of 20 are still the longest; with five, that length is usual."""
    prompts = [100] * (20 - num_long) + [10_000] * num_long

    assert bool(decoding.found(decoding.requests(prompts))) == is_found


@pytest.mark.parametrize(
    "prompts",
    [
        [10_000] * 20,  # all alike
        [100] * 17 + [10_000] * 2,  # 19 requests
        [10_000 + i for i in range(20)],  # all about as long
    ],
)
def test_long_traffic_without_longest_requests_is_healthy(
    decoding: Decoding, prompts: list[int]
) -> None:
    """Requests that are all long, or too few, have no few long ones among them."""
    assert decoding.found(decoding.requests(prompts)) == []


def test_requests_that_never_ran_are_no_long_ones(decoding: Decoding) -> None:
    """Longer prompts that were refused slowed nobody down, and do not count."""
    refused = decoding.requests([50_000] * 5, first_scheduled_ns=None)

    (found,) = decoding.found(decoding.requests() + refused)

    assert found.message.startswith("2 of 20 requests, those of 10,011 tokens and more")


# -- when rows do not tell ---------------------------------------------------------------


def test_few_steps_do_not_tell(decoding: Decoding) -> None:
    """Nine stretches give 18 step times, ten give 20."""
    assert decoding.found(steps=decoding.steps(num_stretches=9)) == []
    assert len(decoding.found(steps=decoding.steps(num_stretches=10))) == 1


def test_contexts_that_follow_from_the_sequences_do_not_tell(decoding: Decoding) -> None:
    """Where each sequence has the same length, its cost may be that of a sequence."""
    steps = decoding.steps()
    for step in steps:
        step.num_steps, step.num_context_tokens = 1, 9_000 * step.num_decode_seqs
        step.first_step_ns = step.last_step_ns = 900_000 * step.num_decode_seqs + 1000
        step.end_ns = step.start_ns + step.first_step_ns

    assert decoding.found(steps=steps) == []


def test_one_number_of_sequences_tells_enough(decoding: Decoding) -> None:
    """Contexts that grow beside a fixed number of sequences show what they cost."""
    steps = decoding.steps(num_stretches=60)[::3]
    assert {step.num_decode_seqs for step in steps} == {1}

    assert len(decoding.found(steps=steps)) == 1


def test_noise_is_not_taken_for_reading(decoding: Decoding) -> None:
    """Where something else than contexts decides what a step takes, nothing is said."""
    rng = np.random.default_rng(0)
    steps = decoding.steps()
    for step in steps:
        step.first_step_ns += int(rng.normal(0, 2_000_000))
        step.last_step_ns += int(rng.normal(0, 2_000_000))

    assert decoding.found(steps=steps) == []


@pytest.mark.parametrize(
    "copies",
    [
        {"num_swap_in_blocks": 1},
        {"num_swap_out_blocks": 1},
        {"num_swap_in_blocks": 1, "num_swap_out_blocks": 1},
        {"num_copy_on_write": 1},
        {"num_swap_out_blocks": 1, "num_copy_on_write": 1},
    ],
)
def test_first_steps_that_copy_blocks_are_left_out(
    decoding: Decoding, copies: dict[str, int]
) -> None:
    """Copies make first steps long, and do not hide what contexts cost."""
    steps = decoding.steps(num_stretches=40)
    (plain,) = decoding.found(steps=steps)
    for step in steps[:20]:
        step.swap_ns = 900_000_000
        step.first_step_ns += step.swap_ns
        step.end_ns += step.swap_ns
        for name, number in copies.items():
            setattr(step, name, number)

    (found,) = decoding.found(steps=steps)

    assert found.message.split(";")[0] == plain.message.split(";")[0]
