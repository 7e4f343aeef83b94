"""Tests for :mod:`results.findings.sizing`: sentences, figures and thresholds."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.findings.sizing import find_sizing
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]
View = Callable[..., RunView]

S = 1_000_000_000


@pytest.fixture
def view(make_request: MakeRequest, make_view: MakeView) -> View:
    """Return a maker of views: so many requests, 10 blocks of 1 GiB, few waits."""

    def make(
        steps: list[StepRecord],
        requests: list[RequestRecord] | int = 20,
        outcome: Outcome | None = None,
        **knobs: Any,
    ) -> RunView:
        if isinstance(requests, int):
            requests = [
                make_request(request_id=i, first_scheduled_ns=0) for i in range(requests)
            ]
        given = {"block_bytes": 2**30, "max_model_len": 16}
        given |= {"source_of_num_gpu_blocks": "estimated"}
        return make_view(
            requests, steps, config=given | knobs, outcome=outcome or Outcome()
        )

    return make


def only(found: list[Finding]) -> Finding:
    """Return the one finding there is."""
    (finding,) = found
    return finding


# -- the pool ----------------------------------------------------------------------------


def test_kv_cache_oversized(make_step: MakeStep, view: View) -> None:
    """4 of 10 blocks and a fifth more would do: 5 GiB less of the GPU's 80."""
    steps = [make_step(), make_step(num_used_blocks=3, num_used_blocks_end=3)]

    oversized = only(find_sizing(view(steps)))

    assert oversized.code == "kv_cache_oversized"
    assert oversized.severity == "info"
    assert oversized.message == (
        "at most 4 of 10 blocks were ever in use, 40 %: 6.0 GiB of each GPU held nothing"
    )
    assert oversized.advice == (
        "--gpu-memory-utilization 0.84 would do, for this load without prefix caching,"
        " and leave a fifth to spare"
    )


@pytest.mark.parametrize(
    ("knobs", "advice"),
    [
        (
            {"source_of_num_gpu_blocks": "override"},
            "--num-gpu-blocks-override 5 would do, for this load",
        ),
        (
            {"source_of_num_gpu_blocks": "kv_cache_gib", "block_bytes": 1.05 * 2**30},
            "--kv-cache-gib 5.3 would do, for this load",
        ),
        (
            {"max_model_len": 100},
            "--gpu-memory-utilization 0.87 would do, for this load without prefix"
            " caching; vLLM does not start with less than --max-model-len (100) needs",
        ),
    ],
)
def test_smaller_pool_is_named_by_the_knob_that_set_it(
    knobs: dict[str, Any], advice: str, make_step: MakeStep, view: View
) -> None:
    """Blocks and GiB where these were given; never less than vLLM starts with."""
    oversized = only(find_sizing(view([make_step()], **knobs)))

    assert oversized.advice.startswith(advice)


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": 19},
        {"outcome": Outcome(ending=Ending.INTERRUPTED)},
        {"max_model_len": 160},
        {"block_bytes": 2**20},
        {"gpu_memory_gib": None},
    ],
)
def test_pool_is_not_called_too_large_without_need(
    changes: dict[str, Any], make_step: MakeStep, view: View
) -> None:
    """Few requests, half a run, a long model, a hundredth of a GPU, an unknown one."""
    assert find_sizing(view([make_step()], **changes)) == []


def test_half_of_the_pool_is_not_too_little(make_step: MakeStep, view: View) -> None:
    """Half at the start of a stretch or at its end is enough."""
    assert find_sizing(view([make_step(num_used_blocks=5)])) == []
    assert find_sizing(view([make_step(num_used_blocks_end=5)])) == []


def test_refused_requests_need_the_pool(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """What did not fit would have used more than what ran."""
    rows = [make_request(request_id=i, first_scheduled_ns=0) for i in range(20)]
    rows[0].status, rows[0].reason = RequestStatus.REJECTED, "exceeds_kv_capacity"

    assert find_sizing(view([make_step()], rows)) == []


@pytest.mark.parametrize(("num_hits", "is_found"), [(0, True), (16, False)])
def test_cached_blocks_count_where_they_were_hit(
    num_hits: int,
    is_found: bool,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: View,
) -> None:
    """A cache that nothing was found in is no use of memory."""
    rows = [
        make_request(request_id=i, first_scheduled_ns=0, num_cached_tokens=num_hits)
        for i in range(20)
    ]
    step = make_step(num_cached_blocks=0, num_cached_blocks_end=1)

    found = find_sizing(view([step], rows, enable_prefix_caching=True))

    assert [f.code for f in found] == ["kv_cache_oversized"] * is_found


def test_hits_are_spoken_of_as_cached(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Used and cached together are what the pool held."""
    rows = [
        make_request(request_id=i, first_scheduled_ns=0, num_cached_tokens=16)
        for i in range(20)
    ]
    step = make_step(num_used_blocks_end=2, num_used_blocks=2, num_cached_blocks=1)

    oversized = only(find_sizing(view([step], rows, enable_prefix_caching=True)))

    assert "at most 3 of 10 blocks were ever in use or cached, 30 %" in oversized.message
    assert oversized.advice.endswith(
        "would do, for this load, and leave a fifth to spare"
    )


# -- other limits ------------------------------------------------------------------------


def kept_out(make_step: MakeStep, share: int = 20, **changes: int) -> list[StepRecord]:
    """Return steps of which in so many of a hundred three wait beside eight running."""
    fields = {"num_waiting": 3, "num_running": 8, "num_decode_seqs": 8} | changes
    return [
        make_step(end_ns=100 - share),
        make_step(start_ns=100 - share, end_ns=100, **fields),
    ]


@pytest.mark.parametrize(
    ("num_waiting", "advice"),
    [
        (3, "--max-num-seqs 11, which takes about 55 % of the blocks at most"),
        (30, "--max-num-seqs 15, which takes about 75 % of the blocks at most"),
    ],
)
def test_too_few_sequences(
    num_waiting: int, advice: str, make_step: MakeStep, view: View
) -> None:
    """As many more are advised as came, or as fill three quarters of the pool."""
    steps = kept_out(make_step, num_waiting=num_waiting)

    bound = only(find_sizing(view(steps, max_num_seqs=8)))

    assert bound.code == "not_kv_bound"
    assert bound.severity == "warning"
    assert bound.message == (
        "requests waited 20 % of the time with 40 % of the blocks in use at most:"
        " max_num_seqs (8) kept them out"
    )
    assert bound.advice == advice


def test_more_sequences_need_as_many_tokens(make_step: MakeStep, view: View) -> None:
    """Fewer tokens a step than sequences, and vLLM does not start."""
    steps = kept_out(make_step)

    bound = only(find_sizing(view(steps, max_num_seqs=8, max_num_batched_tokens=10)))

    assert bound.advice.startswith("--max-num-seqs 11 --max-num-batched-tokens 11, ")


def test_group_that_no_longer_fits_is_kept_out_by_sequences(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Beside 6 sequences of 8 a group of four has to wait; two more groups are 20."""
    rows = [
        make_request(request_id=i, first_scheduled_ns=0, n=4 - i % 2) for i in range(20)
    ]
    steps = kept_out(make_step, num_running=2, num_decode_seqs=6)

    bound = only(find_sizing(view(steps, rows, max_num_seqs=8)))

    assert bound.message.endswith("max_num_seqs (8) kept them out")
    assert bound.advice.startswith("--max-num-seqs 15")


def test_usage_and_demand_are_those_of_the_fullest_moment(
    make_step: MakeStep, view: View
) -> None:
    """An emptier one beside it changes nothing."""
    first, fullest = kept_out(make_step, share=60)
    emptier = {"num_used_blocks": 3, "num_used_blocks_end": 3, "num_waiting": 2}
    last = make_step(start_ns=100, end_ns=120, num_running=8, **emptier)

    bound = only(find_sizing(view([first, fullest, last], max_num_seqs=8)))

    assert "with 40 % of the blocks in use at most" in bound.message
    assert bound.advice.startswith("--max-num-seqs 11,")


def test_one_sequence_is_too_few(make_step: MakeStep, view: View) -> None:
    """Three quarters of the pool would be less than two, and two are advised."""
    steps = kept_out(make_step, num_running=1, num_decode_seqs=1)

    bound = only(find_sizing(view(steps, max_num_seqs=1)))

    assert bound.advice.startswith("--max-num-seqs 2,")


@pytest.mark.parametrize(("given", "advised"), [(512, 2048), (1024, 2048), (2048, 4096)])
def test_too_few_tokens(
    given: int, advised: int, make_step: MakeStep, view: View
) -> None:
    """With chunks, more tokens let more prompts in, at a price that is named."""
    steps = kept_out(make_step, num_prefill_tokens=500)
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": given}

    bound = only(find_sizing(view(steps, **chunked)))

    assert bound.message.endswith(f"max_num_batched_tokens ({given:,}) kept them out")
    assert bound.advice == (
        f"--max-num-batched-tokens {advised} shortens the queue, and lengthens the time"
        " between tokens"
    )


def test_hits_take_tokens_too(make_step: MakeStep, view: View) -> None:
    """What the cache holds lowers no budget, so a step of hits is full as well."""
    steps = kept_out(make_step, num_prefill_tokens=1, num_cached_tokens=500)

    bound = only(find_sizing(view(steps, enable_chunked_prefill=True)))

    assert bound.message.endswith("max_num_batched_tokens (4,096) kept them out")


def test_whole_prompts_are_limited_by_the_gpu(make_step: MakeStep, view: View) -> None:
    """Prefills alone fill the GPU, however many are in a step."""
    steps = kept_out(make_step, num_prefill_tokens=4000, num_decode_seqs=0)

    bound = only(find_sizing(view(steps)))

    assert bound.message.endswith(
        "the GPU was busy with the prompts before them, up to 4,096 tokens a step"
    )
    assert bound.advice.startswith("--tensor-parallel-size or a larger GPU;")


def test_prompts_of_a_growing_queue_are_said_once(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """``overloaded`` names the GPU already; and the pool is not too large either."""
    rows = [
        make_request(request_id=i, arrival_ns=i * S, first_scheduled_ns=3 * i * S)
        for i in range(20)
    ]
    fields = {"num_waiting": 3, "num_prefill_tokens": 4000, "num_decode_seqs": 0}

    assert find_sizing(view([make_step(end_ns=90 * S, **fields)], rows)) == []


def test_neither_limit(make_step: MakeStep, view: View) -> None:
    """Where neither sequences nor tokens were used up, that is what is said."""
    bound = only(find_sizing(view(kept_out(make_step), max_num_seqs=9)))

    assert bound.message.endswith(
        "neither max_num_seqs nor the tokens of a step kept them out"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 19},
        {"num_waiting": 0},
        {"num_used_blocks_end": 5},
        {"num_head_blocks": 7, "num_room_blocks": 6},
    ],
)
def test_short_waits_and_waits_for_blocks_are_not_unbound(
    changes: dict[str, int], make_step: MakeStep, view: View
) -> None:
    """Less than a fifth of the time, nobody waiting, half the pool, or too few blocks."""
    found = find_sizing(view(kept_out(make_step, **changes), max_num_seqs=8))

    assert "not_kv_bound" not in {finding.code for finding in found}


# -- waiting for a place -----------------------------------------------------------------


def queue(
    make_request: MakeRequest, queue_s: float = 3, **changes: int
) -> list[RequestRecord]:
    """Return four requests that wait so long, and 4 seconds for their first token."""
    return [
        make_request(
            request_id=i,
            first_scheduled_ns=round(queue_s * S),
            first_token_ns=4 * S,
            finished_ns=5 * S,
            **changes,
        )
        for i in range(4)
    ]


def full(make_step: MakeStep, **changes: int) -> StepRecord:
    """Return a step in which four wait for 5 of 10 blocks."""
    fields = {"num_waiting": 4, "num_head_blocks": 5, "num_used_blocks_end": 8}
    return make_step(**({"end_ns": 3 * S} | fields | changes))


def test_queue_dominates_ttft(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Who waits for blocks is not helped by the cache, and the sentence says it."""
    rows = queue(make_request, num_demand_blocks=5)

    waits = only(find_sizing(view([full(make_step)], rows)))

    assert waits.code == "queue_dominates_ttft"
    assert waits.severity == "info"
    assert waits.message == (
        "of 4.00 s to the first token 3.00 s went by waiting for blocks, on average; hits"
        " and faster prefills shorten only the rest"
    )
    assert waits.advice == (
        "22 blocks, 12.0 GiB more on each GPU (--tensor-parallel-size or a larger GPU),"
        " enough for all that could have run at once"
    )


def test_queue_is_shown_beside_hits(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """A high hit rate does not make a queue shorter. Source: vLLM issue 8223."""
    rows = queue(make_request, num_cached_tokens=96)

    waits = only(find_sizing(view([full(make_step)], rows, enable_prefix_caching=True)))

    assert waits.message.endswith(
        "on average; 96 % of prompt tokens were hits, and hits and faster prefills"
        " shorten only the rest"
    )


@pytest.mark.parametrize(
    ("num_demand_blocks", "advice"),
    [
        (1, "--max-num-seqs 8, as many as were there at once"),
        (5, "a larger pool, and then a higher --max-num-seqs"),
    ],
)
def test_queue_for_sequences(
    num_demand_blocks: int,
    advice: str,
    make_request: MakeRequest,
    make_step: MakeStep,
    view: View,
) -> None:
    """In a pool well filled ``max_num_seqs`` is a limit that may be raised, or not."""
    shape = {"num_demand_blocks": num_demand_blocks, "num_requested_tokens": 1}
    step = full(make_step, num_head_blocks=0, num_running=4)

    waits = only(find_sizing(view([step], queue(make_request, **shape), max_num_seqs=4)))

    assert "went by waiting for one of the 4 places of max_num_seqs" in waits.message
    assert waits.advice == advice


@pytest.mark.parametrize(
    ("queue_s", "changes"),
    [
        (2, {}),
        (3, {"num_head_blocks": 0}),
        (3, {"num_waiting": 1}),
    ],
)
def test_ttft_that_is_computing_is_no_queue(
    queue_s: float,
    changes: dict[str, int],
    make_request: MakeRequest,
    make_step: MakeStep,
    view: View,
) -> None:
    """Half of TTFT, waiting for other prompts, or for less time than they waited."""
    rows = queue(make_request, queue_s)

    assert find_sizing(view([full(make_step, **changes)], rows)) == []


def test_queue_that_grows_is_said_elsewhere(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """``overloaded`` has the seconds already."""
    rows = [
        make_request(
            request_id=i,
            arrival_ns=i * S,
            first_scheduled_ns=3 * i * S,
            first_token_ns=(3 * i + 1) * S,
            finished_ns=(3 * i + 2) * S,
        )
        for i in range(20)
    ]
    step = full(make_step, end_ns=90 * S, num_waiting=10)

    assert find_sizing(view([step], rows)) == []


def test_short_queue_is_not_felt(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Below a tenth of a second it may be most of TTFT."""
    rows = queue(make_request, 0.09)
    for row in rows:
        row.first_token_ns = S // 10

    assert find_sizing(view([full(make_step)], rows)) == []


# -- nothing to say ----------------------------------------------------------------------


def test_nothing_ran(make_request: MakeRequest, view: View) -> None:
    """No rows at all, and requests without a step, are no finding."""
    rejected = make_request(first_scheduled_ns=None, status=RequestStatus.REJECTED)

    assert find_sizing(view([], [])) == []
    assert find_sizing(view([], [rejected])) == []
    assert find_sizing(view([])) == []


def test_healthy_run(make_step: MakeStep, view: View) -> None:
    """A pool that is half full at its fullest, and nobody waiting, are no finding."""
    steps = [make_step(), make_step(start_ns=10, end_ns=20, num_used_blocks_end=6)]

    assert find_sizing(view(steps)) == []
    assert find_sizing(view(steps, enable_prefix_caching=True)) == []
