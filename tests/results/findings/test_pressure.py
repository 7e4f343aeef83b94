"""Tests for :mod:`results.findings.pressure`: sentences, figures and thresholds."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.finding import Finding
from results.findings.pressure import find_pressure
from results.findings.run_view import RunView
from results.record import RequestRecord, RequestStatus, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]

S = 1_000_000_000
MORE_BLOCKS = (
    "18 blocks, 8.0 GiB more on each GPU (--tensor-parallel-size or a larger GPU), enough"
    " for all that could have run at once"
)
"""For four requests of four blocks, and the one more without which nobody grows."""


@pytest.fixture
def four(make_request: MakeRequest) -> list[RequestRecord]:
    """Return four requests that hold 4 blocks each, 2 of them for their output."""
    return [
        make_request(request_id=i, num_requested_tokens=32, num_demand_blocks=4)
        for i in range(4)
    ]


@pytest.fixture
def view(make_view: MakeView) -> MakeView:
    """Return a maker of views in which each of the 10 blocks takes 1 GiB."""

    def make(
        requests: list[RequestRecord], steps: list[StepRecord], **knobs: Any
    ) -> RunView:
        return make_view(requests, steps, config={"block_bytes": 2**30} | knobs)

    return make


def only(found: list[Finding]) -> Finding:
    """Return the one finding there is."""
    (finding,) = found
    return finding


# -- preemptions -------------------------------------------------------------------------


def test_swap_storm(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """A tenth of the time is a storm; the sentence has its cost, the advice both ways."""
    step = make_step(end_ns=100, swap_ns=10, num_swap_out_blocks=4, num_swap_in_blocks=3)

    storm = only(find_pressure(view(four, [step])))

    assert storm.code == "swap_storm"
    assert storm.severity == "warning"
    assert storm.message == (
        "10 % of the time of steps went into waiting for swaps: 4 blocks out and 3 in,"
        " 7.0 GiB"
    )
    assert storm.advice == (
        f"{MORE_BLOCKS}; or --max-num-seqs 2, as many as the pool holds with 75 % of"
        " their output, at the price of a longer queue"
    )


def test_recompute_storm(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """A tenth of the time is a storm; recomputed tokens are a share of all prefilled."""
    step = make_step(num_prefill_tokens=40, num_recomputed_tokens=10, num_decode_seqs=60)

    storm = only(find_pressure(view(four, [step])))

    assert storm.code == "recompute_storm"
    assert storm.severity == "warning"
    assert storm.message == (
        "10 % of the time of steps went into computing again what preemptions had thrown"
        " away: 10 tokens, 25 % of all that were prefilled"
    )
    assert storm.advice.startswith(MORE_BLOCKS)
    assert "--max-num-seqs 2, as many as the pool holds with 75 %" in storm.advice


@pytest.mark.parametrize(
    "step",
    [
        {"end_ns": 100, "swap_ns": 9},
        {"num_prefill_tokens": 40, "num_recomputed_tokens": 9, "num_decode_seqs": 60},
    ],
)
def test_less_than_a_tenth_is_no_storm(
    step: dict[str, int], four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Nine in a hundred are the price of a full pool."""
    assert find_pressure(view(four, [make_step(**step)])) == []


def test_preemption_thrash(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Requests preempted three times or more are named, and the worst is counted."""
    for request, times in zip(four, (0, 1, 3, 4), strict=True):
        request.num_preemptions = times

    thrash = only(find_pressure(view(four, [make_step()], num_cpu_blocks=0)))

    assert thrash.code == "preemption_thrash"
    assert thrash.severity == "warning"
    assert thrash.message == (
        "2 requests (#2, #3) were preempted 3 times or more, #3 4 times; in all there"
        " were 2 preemptions for each request admitted"
    )
    assert thrash.advice == (
        f"{MORE_BLOCKS}; or --max-num-seqs 2, as many as the pool holds at full length,"
        " at the price of a longer queue"
    )


def test_storm_names_who_thrashed(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Where much time was lost, one finding says both."""
    four[3].num_preemptions = 3
    step = make_step(end_ns=100, swap_ns=10)

    storm = only(find_pressure(view(four, [step], num_cpu_blocks=0)))

    assert storm.code == "swap_storm"
    assert storm.message.endswith(
        "; 1 request (#3) was preempted 3 times or more, #3 3 times"
    )


@pytest.mark.parametrize(("num_requests", "is_found"), [(100, True), (101, False)])
def test_one_unlucky_request_of_many_is_no_thrash(
    num_requests: int,
    is_found: bool,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """One in a hundred is; one in a hundred and one is not."""
    rows = [make_request(request_id=i) for i in range(num_requests)]
    rows[7].num_preemptions = 3

    found = find_pressure(view(rows, [make_step()], num_cpu_blocks=0))

    assert [f.code for f in found] == ["preemption_thrash"] * is_found


def test_two_preemptions_each_are_no_thrash(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Nobody was preempted three times, so nobody is named."""
    for request in four:
        request.num_preemptions = 2

    assert find_pressure(view(four, [make_step()], num_cpu_blocks=0)) == []


# -- swap space --------------------------------------------------------------------------


def test_swap_stayed_empty(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Preemptions of single sequences leave the swap space to be given back."""
    four[0].num_preemptions = 2

    empty = only(find_pressure(view(four, [make_step()])))

    assert empty.code == "swap_stayed_empty"
    assert empty.severity == "info"
    assert empty.message == (
        "2 preemptions left 5.0 GiB of swap space empty: vLLM's v0 swaps only groups of"
        " n > 1 and recomputes the others, and there were only others"
    )
    assert empty.advice == (
        "--swap-space 0 frees 5.0 GiB of host memory for each GPU, as long as no request"
        " has n > 1"
    )


def test_one_preemption_is_one(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """The sentence says so in the singular."""
    empty = only(find_pressure(view([make_request(num_preemptions=1)], [make_step()])))

    assert empty.message.startswith("1 preemption left 5.0 GiB")


@pytest.mark.parametrize(
    ("request_of", "knobs"),
    [
        ({"num_preemptions": 0}, {}),
        ({"num_preemptions": 1, "n": 2}, {}),
        ({"num_preemptions": 1}, {"preemption_mode": "swap"}),
        ({"num_preemptions": 1}, {"num_cpu_blocks": 0}),
    ],
)
def test_swap_space_with_a_use_or_without_a_test_is_left_alone(
    request_of: dict[str, int],
    knobs: dict[str, Any],
    make_request: MakeRequest,
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """Nothing preempted, groups, forced swapping, and no swap space: no finding."""
    rows = [make_request(**request_of)]

    assert find_pressure(view(rows, [make_step()], **knobs)) == []


def test_swap_space_size(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """The peak and a fifth more, in whole GiB, is what would do."""
    steps = [make_step(num_used_cpu_blocks=3), make_step(num_used_cpu_blocks=1)]

    size = only(find_pressure(view(four, steps, num_cpu_blocks=6)))

    assert size.code == "swap_space_size"
    assert size.severity == "info"
    assert size.message == (
        "at most 3 of 6 CPU blocks were in use, 3.0 of 6.0 GiB of swap space"
    )
    assert size.advice == (
        "--swap-space 4 would do for this load; it is per GPU, and vLLM's engine ends"
        " where it is too small"
    )


def test_swap_space_that_is_needed_is_left_alone(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """To save 1 of 5 GiB is no matter; and where a group was refused, nothing is."""
    steps = [make_step(num_used_cpu_blocks=3)]
    assert find_pressure(view(four, steps)) == []

    four[0].status, four[0].reason = RequestStatus.ABORTED, "no_cpu_blocks"
    assert find_pressure(view(four, steps, num_cpu_blocks=99)) == []


CHUNKED = {"enable_chunked_prefill": True, "max_num_batched_tokens": 512}


def test_swapped_overtaken(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Admissions beside swapped groups are counted, from one in twenty on."""
    steps = [make_step(num_admitted=19), make_step(num_admitted=1, num_swapped=2)]

    overtaken = only(find_pressure(view(four, steps, **CHUNKED)))

    assert overtaken.code == "swapped_overtaken"
    assert overtaken.severity == "warning"
    assert overtaken.message == (
        "1 of 20 admissions went past requests that were swapped out, up to 2 at once:"
        " chunked prefill admits new ones all the same (vLLM issue 5578)"
    )
    assert overtaken.advice == (
        "without chunked prefill, which needs --max-num-batched-tokens 4096, those"
        " swapped out come first; or --max-num-seqs 2, as many as the pool holds at full"
        " length"
    )


@pytest.mark.parametrize(("num_others", "knobs"), [(20, CHUNKED), (19, {}), (0, CHUNKED)])
def test_few_admissions_or_whole_prompts_overtake_nobody(
    num_others: int,
    knobs: dict[str, Any],
    four: list[RequestRecord],
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """One in 21, any without chunked prefill, and none at all are no finding."""
    past = make_step(num_admitted=1 if num_others else 0, num_swapped=2)
    steps = [make_step(num_admitted=num_others), past]

    assert find_pressure(view(four, steps, **knobs)) == []


# -- the watermark -----------------------------------------------------------------------


def waiting(make_step: MakeStep, share: int = 5, **changes: int) -> list[StepRecord]:
    """Return steps of which so many in a hundred lack 2 blocks of the 3 they need."""
    refused = {"num_head_blocks": 3, "num_room_blocks": 1, "num_used_blocks": 7}
    fields = refused | {"num_used_blocks_end": 7} | changes
    return [
        make_step(end_ns=(100 - share) * S),
        make_step(start_ns=(100 - share) * S, end_ns=100 * S, **fields),
    ]


def test_watermark_waiting(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """A candidate that the kept blocks would have sufficed for waited for them alone."""
    kept = only(find_pressure(view(four, waiting(make_step), watermark=0.2)))

    assert kept.code == "watermark_waiting"
    assert kept.severity == "info"
    assert kept.message == (
        "5 % of the time the first in the queue waited only for what the watermark keeps"
        " free, 2 of 10 blocks"
    )
    assert kept.advice == "--watermark 0.01, which vLLM's v0 has built in"


def test_watermark_of_vllm_itself_is_not_to_be_lowered(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """There is no option, so that only more blocks remain."""
    for request in four:
        request.num_demand_blocks = 40
    steps = waiting(make_step, num_head_blocks=2)
    pool = {"num_gpu_blocks": 100, "watermark": 0.01}

    kept = only(find_pressure(view(four, steps, **pool)))

    assert kept.message.endswith("keeps free, 1 of 100 blocks")
    assert kept.advice.startswith("vLLM's v0 has no option for it, and what is kept free")
    assert "; 163 blocks, 63.0 GiB more on each GPU (" in kept.advice
    assert kept.advice.endswith("enough for all that could have run at once")


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 4},
        {"num_head_blocks": 4},
        {"num_used_blocks_end": 8},
        {"num_head_blocks": 0},
        {
            "num_head_blocks": 2,
            "num_used_blocks": 9,
            "num_used_blocks_end": 9,
            "num_room_blocks": 0,
        },
    ],
)
def test_waiting_that_the_watermark_does_not_explain(
    changes: dict[str, int],
    four: list[RequestRecord],
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """Too short, needing more than is kept, or more by its end: no finding."""
    assert find_pressure(view(four, waiting(make_step, **changes), watermark=0.2)) == []


def test_below_the_watermark_what_is_free_still_counts(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Without any room, one block needed and one free, the watermark is what lacks."""
    full = {"num_used_blocks": 9, "num_used_blocks_end": 9, "num_room_blocks": 0}
    steps = waiting(make_step, num_head_blocks=1, **full)

    found = find_pressure(view(four, steps, watermark=0.2))

    assert only(found).code == "watermark_waiting"


@pytest.mark.parametrize(("num_requests", "is_found"), [(100, True), (99, False)])
def test_watermark_is_not_spoken_of_beside_preemptions(
    num_requests: int,
    is_found: bool,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """Whoever admits too many should not admit more; one in a hundred is not many."""
    rows = [make_request(request_id=i, first_scheduled_ns=0) for i in range(num_requests)]
    rows[0].num_preemptions = 1

    found = find_pressure(view(rows, waiting(make_step), watermark=0.2, num_cpu_blocks=0))

    assert [f.code for f in found] == ["watermark_waiting"] * is_found


@pytest.mark.parametrize(("watermark", "is_found"), [(0.2, True), (0.01, False)])
def test_watermark_of_vllm_is_no_matter_where_the_queue_grows(
    watermark: float,
    is_found: bool,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """A fifth of the pool still is."""
    rows = [
        make_request(request_id=i, arrival_ns=i * S, first_scheduled_ns=3 * i * S)
        for i in range(20)
    ]
    steps = waiting(make_step, num_head_blocks=2, num_room_blocks=1)
    pool = {"num_gpu_blocks": 100, "watermark": watermark}

    found = find_pressure(view(rows, steps, **pool))

    assert [f.code for f in found] == ["watermark_waiting"] * is_found


# -- head of line ------------------------------------------------------------------------


def line(make_request: MakeRequest, num_small: int, wait_s: float) -> list[RequestRecord]:
    """Return one prompt of 10 blocks and small ones of 1, all waiting as long."""
    prompts = [160] + [16] * num_small
    return [
        make_request(
            request_id=i,
            num_prompt_tokens=num_tokens,
            num_demand_blocks=num_tokens // 16,
            first_scheduled_ns=round(wait_s * S),
        )
        for i, num_tokens in enumerate(prompts)
    ]


def blocked(make_step: MakeStep, seconds: float, end_s: float = 9) -> list[StepRecord]:
    """Return steps: in the first 10 blocks were needed, 5 were there; then none were."""
    refused = {"num_head_blocks": 10, "num_room_blocks": 5}
    return [
        make_step(end_ns=round(seconds * S), **refused),
        make_step(start_ns=round(seconds * S), end_ns=round(end_s * S)),
    ]


def test_head_of_line(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """Those that would have fitted are counted; who was in their way can be sent away."""
    rows = line(make_request, num_small=4, wait_s=4)

    held_up = only(find_pressure(view(rows, blocked(make_step, 4))))

    assert held_up.code == "head_of_line"
    assert held_up.severity == "warning"
    assert held_up.message == (
        "4 requests waited 4.0 s on average behind one for which there were too few"
        " blocks, while there were enough for them: 80 % of all waiting; the largest need"
        " was 10 blocks"
    )
    assert held_up.advice == (
        "prompts of 160 tokens or more, 20 % of all, sent elsewhere; or 16 blocks, 6.0"
        " GiB more on each GPU (--tensor-parallel-size or a larger GPU), enough for all"
        " that could have run at once"
    )


def test_large_prompts_that_are_the_traffic_are_not_sent_away(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """One of four is too many to go elsewhere; what is left are more blocks."""
    rows = line(make_request, num_small=3, wait_s=4)

    held_up = only(find_pressure(view(rows, blocked(make_step, 4))))

    assert held_up.advice.startswith("15 blocks, 5.0 GiB more")


def test_prompts_that_are_all_alike_are_not_sent_away(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """They wait behind one that has grown and was preempted."""
    rows = line(make_request, num_small=3, wait_s=4)[1:]

    held_up = only(find_pressure(view(rows, blocked(make_step, 4))))

    assert held_up.advice == ("a larger pool (--tensor-parallel-size or a larger GPU)")


def test_waiting_that_goes_on_counts_to_the_end(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """Of 4 s that four waited, and 9 s by another, 16 are 64 %; with 63 s more, 18 %."""
    rows = line(make_request, num_small=4, wait_s=4)
    rows[0].first_scheduled_ns = rows[0].finished_ns = None
    rows[0].status = RequestStatus.FAILED

    ends_soon = only(find_pressure(view(rows, blocked(make_step, 4, end_s=9))))

    assert "64 % of all waiting" in ends_soon.message
    assert find_pressure(view(rows, blocked(make_step, 4, end_s=72))) == []


def test_waiting_begins_with_the_arrival(
    make_request: MakeRequest, make_step: MakeStep, view: MakeView
) -> None:
    """Who arrives after 30 s and is admitted at once has not waited."""
    rows = line(make_request, num_small=4, wait_s=4)
    late = {"arrival_ns": 30 * S, "first_scheduled_ns": 30 * S, "finished_ns": 31 * S}
    rows += [make_request(request_id=i, **late) for i in range(5, 9)]

    held_up = only(find_pressure(view(rows, blocked(make_step, 4))))

    assert "80 % of all waiting" in held_up.message


@pytest.mark.parametrize(("blocked_s", "wait_s"), [(0.99, 1), (1, 3.3)])
def test_short_or_rare_blocking_is_no_finding(
    blocked_s: float,
    wait_s: float,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: MakeView,
) -> None:
    """Below a second each, or below a quarter of all waiting."""
    rows = line(make_request, num_small=4, wait_s=wait_s)

    assert find_pressure(view(rows, blocked(make_step, blocked_s))) == []


# -- nothing to say ----------------------------------------------------------------------


def test_nothing_ran(make_request: MakeRequest, view: MakeView) -> None:
    """No rows at all, and a request that never got anywhere, are no finding."""
    rejected = make_request(first_scheduled_ns=None, status=RequestStatus.REJECTED)

    assert find_pressure(view([], [])) == []
    assert find_pressure(view([rejected], [])) == []
    assert find_pressure(view([make_request()], [])) == []


def test_healthy_run(
    four: list[RequestRecord], make_step: MakeStep, view: MakeView
) -> None:
    """Steps without preemption and without waiting are no finding."""
    steps = [
        make_step(num_prefill_tokens=50, num_decode_seqs=0, num_admitted=4),
        make_step(start_ns=10, end_ns=20, num_used_blocks=10, num_used_blocks_end=10),
    ]

    assert find_pressure(view(four, steps)) == []
    assert find_pressure(view(four, steps, enable_prefix_caching=True)) == []
