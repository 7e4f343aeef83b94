"""Tests for :mod:`results.findings.prefix_cache` and ``hits``."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.finding import Finding
from results.findings.prefix_cache import find_prefix_cache
from results.findings.run_view import RunView
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, Outcome

MakeView = Callable[..., RunView]
Make = Callable[..., Any]

ON = {"enable_prefix_caching": True}
S = 1_000_000_000


class Rows:
    """Makes the rows of runs.

    Args:
        make_request: The fixture.
        make_step: The fixture.
        make_view: The fixture.
    """

    def __init__(
        self,
        make_request: Callable[..., RequestRecord],
        make_step: Callable[..., StepRecord],
        make_view: MakeView,
    ) -> None:
        self.make_request, self.make_step = make_request, make_step
        self.make_view = make_view

    def prompts(self, *shared: int, tokens: int = 100, **more: Any) -> list[Any]:
        """Return a request for each number of shared tokens."""
        return [
            self.make_request(
                request_id=i, num_prompt_tokens=tokens, num_shared_tokens=s, **more
            )
            for i, s in enumerate(shared)
        ]

    def prefill(self, num_tokens: int, duration_ns: int = S, **more: Any) -> StepRecord:
        """Return a step that prefills and nothing else."""
        step: StepRecord = self.make_step(
            end_ns=duration_ns,
            num_prefill_tokens=num_tokens,
            num_prefill_seqs=1,
            num_decode_seqs=0,
            num_context_tokens=0,
            **more,
        )
        return step

    def decode(self, duration_ns: int, **more: Any) -> StepRecord:
        """Return a step that decodes one sequence."""
        step: StepRecord = self.make_step(end_ns=duration_ns, **more)
        return step


@pytest.fixture
def rows(make_request: Make, make_step: Make, make_view: MakeView) -> Rows:
    """Return a maker of rows."""
    return Rows(make_request, make_step, make_view)


def only(found: list[Finding], code: str) -> Finding:
    """Return the one finding there is."""
    assert [finding.code for finding in found] == [code]
    return found[0]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("sharing", [True, False])
def test_run_without_rows_has_no_findings(
    make_view: MakeView, caching: bool, sharing: bool
) -> None:
    """A run that ended before anything ran says nothing of its cache."""
    view = make_view(
        [],
        [],
        config={"enable_prefix_caching": caching},
        trace={"has_sharing": sharing},
        outcome=Outcome(ending=Ending.KILLED),
    )

    assert find_prefix_cache(view) == []


def test_requests_that_never_ran_do_not_count(rows: Rows) -> None:
    """Prompts that were refused or never came tell nothing of the cache."""
    refused = rows.prompts(*[90] * 30, first_scheduled_ns=None)

    for config in (ON, {}):
        for trace in ({"has_sharing": True}, {"has_sharing": False}):
            view = rows.make_view(refused, [], config=config, trace=trace)

            assert find_prefix_cache(view) == []


def test_rows_that_do_not_say_what_is_shared_do_not_count(
    rows: Rows, make_request: Make
) -> None:
    """Of prompts whose row has no number of shared tokens nothing is said."""
    requests = [make_request(request_id=i, num_cached_tokens=0) for i in range(30)]

    view = rows.make_view(requests, [rows.prefill(3000)], config=ON)

    assert find_prefix_cache(view) == []


# -- traces that do not say what prompts share -------------------------------------------


def test_unknown_sharing_is_said_to_be_unknown(rows: Rows) -> None:
    """With caching on, hits of a trace without content are not called 0."""
    requests = [rows.make_request(request_id=i) for i in range(3)]
    view = rows.make_view(requests, [], config=ON, trace={"has_sharing": False})

    found = only(find_prefix_cache(view), "no_sharing_information")

    assert found.severity == "info"
    assert "which of its 3 prompts begin alike" in found.message
    assert "docs/traces.md" in found.advice


def test_unknown_sharing_does_not_matter_without_caching(rows: Rows) -> None:
    """With caching off nobody asks for hits."""
    view = rows.make_view([rows.make_request()], [], trace={"has_sharing": False})

    assert find_prefix_cache(view) == []


# -- caching that cannot find anything ---------------------------------------------------


def test_prompts_that_share_nothing_leave_nothing_to_find(rows: Rows) -> None:
    """Caching on and 19 of 2,000 tokens shared is as good as none."""
    requests = rows.prompts(*[0] * 19, 19)
    view = rows.make_view(requests, [rows.prefill(2000)], config=ON)

    found = only(find_prefix_cache(view), "nothing_shared")

    assert found.severity == "info"
    assert found.message.startswith("the 20 prompts hardly begin alike: 0.95 % of their")
    assert "8.55 requests/s with it, 8.71 without" in found.advice


@pytest.mark.parametrize(
    ("num_prompts", "shared", "changes"),
    [
        (20, 20, {}),  # 1 % shared
        (19, 0, {}),
        (20, 0, {"outcome": Outcome(ending=Ending.INTERRUPTED)}),
        (20, 0, {"config": {"enable_prefix_caching": False}}),
    ],
)
def test_nothing_shared_needs_a_whole_run_of_prompts_unlike_each_other(
    rows: Rows, num_prompts: int, shared: int, changes: dict[str, Any]
) -> None:
    """Some sharing, few prompts, a part of a trace, or caching off say nothing."""
    requests = rows.prompts(*[0] * (num_prompts - 1), shared)
    view = rows.make_view(requests, [rows.prefill(2000)], **{"config": ON, **changes})

    assert "nothing_shared" not in [f.code for f in find_prefix_cache(view)]


def test_recomputation_may_use_the_cache_alone(rows: Rows) -> None:
    """Where nothing is shared but preempted requests find their blocks, caching helps."""
    requests = rows.prompts(*[0] * 20, num_recompute_cached_tokens=1)
    view = rows.make_view(requests, [rows.prefill(2000)], config=ON)

    assert find_prefix_cache(view) == []


# -- caching that cannot pay -------------------------------------------------------------


def pays_little(rows: Rows, decode_ns: int, **changes: Any) -> list[Finding]:
    """Findings where 48 of 100 tokens are shared and a token's prefill takes 1 µs."""
    requests = rows.prompts(0, *[48] * 19)
    steps = [rows.prefill(2000, 2_000_000), rows.decode(decode_ns)]
    return find_prefix_cache(rows.make_view(requests, steps, **{"config": ON, **changes}))


def test_hits_that_save_no_time_cannot_pay(rows: Rows) -> None:
    """Finding 912 tokens of 1 µs each is nothing in 98 ms of steps."""
    found = only(pays_little(rows, 96_000_000), "caching_cannot_pay")

    assert found.severity == "info"
    assert found.message == (
        "45.6 % of the prompt tokens began an earlier prompt as well, but computing"
        " prompts takes so little that finding them all saves about 0.93 % of the time"
        " of all steps and 0.05 ms of a time to first token"
    )
    assert found.advice.startswith("leave --enable-prefix-caching out")


@pytest.mark.parametrize(
    ("decode_ns", "changes"),
    [
        (88_000_000, {}),  # 912 of 90,000 µs: 1.01 %
        (96_000_000, {"outcome": Outcome(ending=Ending.INTERRUPTED)}),
        (96_000_000, {"config": ON | {"num_gpu_blocks": 4}}),  # 60 tokens, 1 sequence
    ],
)
def test_hits_that_save_time_or_blocks_pay(
    rows: Rows, decode_ns: int, changes: dict[str, Any]
) -> None:
    """One percent of the time, a part of a trace, or a pool that is full say nothing."""
    assert pays_little(rows, decode_ns, **changes) == []


def test_pool_that_just_holds_the_traffic_unshared_is_enough(rows: Rows) -> None:
    """60 tokens in blocks of 16 and one block more for the sequence need 4.75 blocks."""
    config = ON | {"num_gpu_blocks": 5}

    assert len(pays_little(rows, 96_000_000, config=config)) == 1


def test_pool_is_judged_by_the_end_of_a_stretch_and_without_the_watermark(
    rows: Rows,
) -> None:
    """Two sequences of 60 tokens grow by 20: 160 tokens and two blocks are 12."""
    requests = rows.prompts(0, *[48] * 19)
    decode = rows.decode(
        96_000_000, num_decode_seqs=2, num_context_tokens=120, num_steps=21
    )

    def found(num_gpu_blocks: int) -> list[Finding]:
        config = ON | {"num_gpu_blocks": num_gpu_blocks, "watermark": 0.1}
        steps = [rows.prefill(2000, 2_000_000), decode]
        return find_prefix_cache(rows.make_view(requests, steps, config=config))

    assert found(12) == []  # 1 block is kept free
    assert len(found(13)) == 1


def test_time_that_hits_saved_already_counts(rows: Rows) -> None:
    """Without the 912 hits of 1 µs that were found steps had taken 912 µs more."""
    requests = rows.prompts(0, *[48] * 19)
    for request in requests[1:]:
        request.num_cached_tokens = 48
    # 912 of 91,200 µs; without the hits that were found it would be 912 of 90,288
    steps = [rows.prefill(1088, 1_088_000), rows.decode(89_250_000)]

    found = only(
        find_prefix_cache(rows.make_view(requests, steps, config=ON)),
        "caching_cannot_pay",
    )

    assert "saves about 1.00 %" in found.message


def test_swaps_and_decodes_beside_a_prefill_are_not_its_time(rows: Rows) -> None:
    """Of 10 ms for 50 prompt tokens and 50 decodes, 8 wait for swaps: 20 µs a token."""
    requests = rows.prompts(0, *[48] * 19)
    mixed = rows.prefill(50, 10_000_000, swap_ns=8_000_000)
    mixed.num_decode_seqs = 50
    long = rows.decode(S, first_step_ns=9_000_000)

    config = ON | {"num_gpu_blocks": 100}
    view = rows.make_view(requests, [mixed, rows.decode(S), long], config=config)

    # 912 tokens of 20 µs are 18 ms of 2 s
    found = only(find_prefix_cache(view), "caching_cannot_pay")
    assert "saves about 0.91 %" in found.message


def test_first_tokens_that_come_sooner_pay(rows: Rows) -> None:
    """Hits worth 10 ms of a time to first token pay, however long decoding takes."""
    requests = rows.prompts(0, *[48] * 19)
    # 20 requests save 912 tokens of 0.22 ms: 10.03 ms each
    steps = [rows.prefill(2000, 440_000_000), rows.decode(100 * S)]

    assert find_prefix_cache(rows.make_view(requests, steps, config=ON)) == []


def test_step_that_a_prompt_takes_anyway_is_not_saved(rows: Rows) -> None:
    """Prefills no longer than a decode step show that hits save nothing."""
    requests = rows.prompts(0, *[48] * 19)
    prefills = [rows.prefill(100, 10_000_000)] * 20

    def found(shortest_ns: int) -> list[Finding]:
        decode = rows.decode(S, first_step_ns=shortest_ns)
        view = rows.make_view(requests, [*prefills, decode], config=ON)
        return find_prefix_cache(view)

    assert "saves about 0.00 %" in only(found(10_000_000), "caching_cannot_pay").message
    assert found(5_000_000) == []


# -- prefixes below a block --------------------------------------------------------------


def test_prefixes_below_a_block_name_the_blocks_that_would_hit(rows: Rows) -> None:
    """12 shared tokens of 100 are no block of 16 and one of 8."""
    requests = rows.prompts(0, *[12] * 9)
    view = rows.make_view(requests, [rows.prefill(1000)], config=ON)

    found = only(find_prefix_cache(view), "prefixes_below_a_block")

    assert found.severity == "warning"
    assert found.message == (
        "prompts begin alike for 12 tokens in the median and 12 in the 90th percentile,"
        " too few for whole blocks of 16 that a prefill could skip (never its last): 0 %"
        " of prompt tokens were hits"
    )
    assert found.advice == "--block-size 8 could find 7.2 % of prompt tokens"


def test_every_smaller_block_size_that_would_hit_is_named(rows: Rows) -> None:
    """24 shared tokens of 100 are no block of 32, one of 16 and three of 8."""
    requests = rows.prompts(0, *[24] * 9)
    config = ON | {"block_size": 32}

    (found,) = find_prefix_cache(
        rows.make_view(requests, [rows.prefill(1000)], config=config)
    )

    assert found.advice == (
        "--block-size 16 could find 14.4 %, 8 could find 21.6 % of prompt tokens"
    )


def test_hybrid_models_have_blocks_too_large_for_their_prompts(rows: Rows) -> None:
    """Equal prompts of 500 tokens never fill a block of 528 (vLLM issue 40696)."""
    requests = rows.prompts(0, *[500] * 9, tokens=500)
    config = ON | {"block_size": 528}

    (found,) = find_prefix_cache(
        rows.make_view(requests, [rows.prefill(5000)], config=config)
    )

    assert found.code == "prefixes_below_a_block"
    assert "whole blocks of 528" in found.message


def test_prefixes_below_the_smallest_block_have_no_remedy(rows: Rows) -> None:
    """7 shared tokens fill no block that there is, and the advice does not pretend."""
    requests = rows.prompts(0, *[7] * 9)
    view = rows.make_view(requests, [rows.prefill(1000)], config=ON)

    (found,) = find_prefix_cache(view)

    assert found.code == "prefixes_below_a_block"
    assert found.advice.startswith("leave --enable-prefix-caching out: even blocks of 8")


def test_prefixes_that_save_no_time_are_no_warning(rows: Rows) -> None:
    """Short prefixes of long answers are explained, and smaller blocks not advised."""
    requests = rows.prompts(0, *[12] * 9)
    steps = [rows.prefill(1000, 1_000_000), rows.decode(99_000_000)]

    (found,) = find_prefix_cache(rows.make_view(requests, steps, config=ON))

    assert (found.code, found.severity) == ("prefixes_below_a_block", "info")
    assert found.advice == (
        "leave --enable-prefix-caching out: finding all that prompts share would save"
        " about 0.11 % of the time of all steps and 0.01 ms of a time to first token"
    )


def test_last_block_of_a_prompt_is_never_found(rows: Rows) -> None:
    """Equal prompts of one block share it and still compute it, each time."""
    requests = rows.prompts(0, *[16] * 9, tokens=16)
    view = rows.make_view(requests, [rows.prefill(160)], config=ON)

    found = only(find_prefix_cache(view), "prefixes_below_a_block")

    assert found.advice == "--block-size 8 could find 45 % of prompt tokens"


def test_one_whole_block_in_a_hundred_is_enough(rows: Rows) -> None:
    """16 findable of 1,600 tokens are a percent: hits are possible, if few."""
    shared = [0, *[12] * 14, 16]
    view = rows.make_view(rows.prompts(*shared), [rows.prefill(1600)], config=ON)

    assert find_prefix_cache(view) == []


def test_hits_that_were_had_all_the_same_are_not_denied(rows: Rows) -> None:
    """When requests ran in another order than the trace's, there may be more hits."""
    requests = rows.prompts(0, *[12] * 9)
    requests[0].num_cached_tokens = 16
    view = rows.make_view(requests, [rows.prefill(1000)], config=ON)

    assert find_prefix_cache(view) == []


# -- prefixes evicted --------------------------------------------------------------------


def evicted(rows: Rows, regretted: int, found: int = 0, **config: Any) -> list[Finding]:
    """Findings of ten prompts, nine sharing 96 of 100 tokens, ``found`` of them hit."""
    requests = rows.prompts(0, *[99] * 9)
    requests[1].num_cached_tokens = found
    step = rows.prefill(1000, num_evictions=120, num_regretted_evictions=regretted)
    return find_prefix_cache(rows.make_view(requests, [step], config=ON | config))


def test_evictions_that_cost_hits_are_counted(rows: Rows) -> None:
    """Nothing found where 864 tokens could have been, for 50 blocks needed again."""
    found = only(evicted(rows, 50, 64), "prefixes_evicted")

    assert found.severity == "warning"
    assert found.message == (
        "6.4 % of prompt tokens were hits where 86.4 % could have been: 50 of 120 evicted"
        " blocks were needed again, 800 tokens that were computed once more"
    )
    assert found.advice == (
        "80 blocks, 0.1 GiB more on each GPU (--tensor-parallel-size or a larger GPU):"
        " then nothing would be evicted, and fewer may do"
    )


def test_estimated_pool_names_the_utilization_that_would_do(rows: Rows) -> None:
    """70 blocks of 32 MiB are 2.19 of 80 GiB: 0.9 becomes 0.93."""
    source = {"source_of_num_gpu_blocks": "estimated", "block_bytes": 2**25}
    (found,) = evicted(rows, 50, 64, **source)
    (too_many,) = evicted(rows, 50, 64, **source | {"gpu_memory_gib": 40.0})

    assert found.advice.startswith("--gpu-memory-utilization 0.93 (80 blocks): then")
    assert too_many.advice.startswith("80 blocks, 2.2 GiB more on each GPU (--tensor")


@pytest.mark.parametrize(
    ("fitting", "pool"),
    [
        (None, "a larger pool (--tensor-parallel-size or a larger GPU)"),
        (20, "--num-gpu-blocks-override 20 (about all that fits)"),
    ],
)
def test_more_than_eight_gpus_hold_is_no_size(
    rows: Rows, fitting: int | None, pool: str
) -> None:
    """70 GiB more are not asked of GPUs of 8 GiB; of 9 GiB they are."""
    knobs = {"block_bytes": 2**30, "source_of_num_gpu_blocks": "override"}
    knobs |= {"num_fitting_gpu_blocks": fitting, "gpu_memory_gib": 8.0}
    (beyond,) = evicted(rows, 50, 64, **knobs)
    (within,) = evicted(rows, 50, 64, **knobs | {"gpu_memory_gib": 9.0})

    assert beyond.advice == (
        f"{pool} finds more, but 8 such GPUs would not hold all that was cached"
    )
    assert within.advice.startswith("80 blocks, 70.0 GiB more on each GPU")


@pytest.mark.parametrize(
    ("regretted", "found"),
    [
        (50, 780),  # 84 of 1,000 tokens missed
        (26, 0),  # 416 of the 864 tokens missed
    ],
)
def test_few_missed_hits_and_other_causes_are_not_blamed(
    rows: Rows, regretted: int, found: int
) -> None:
    """Less than a tenth missed, or evictions for less than half of it, is no finding."""
    assert evicted(rows, regretted, found) == []


def test_missed_hits_that_cost_no_time_are_no_warning(rows: Rows) -> None:
    """80 tokens missed of 1,000 that take a ninth of a second in ten are a remark."""
    requests = rows.prompts(0, *[99] * 9)
    requests[1].num_cached_tokens = 764
    steps = [
        rows.prefill(1000, 90_000_000, num_evictions=9, num_regretted_evictions=7),
        rows.decode(910_000_000),
    ]

    (found,) = find_prefix_cache(rows.make_view(requests, steps, config=ON))

    assert (found.code, found.severity) == ("prefixes_evicted", "info")


def test_misses_at_the_threshold_are_blamed(rows: Rows) -> None:
    """A tenth of the tokens missed, half of them for evictions, is a finding."""
    assert len(evicted(rows, 4, 764)) == 1
    assert len(evicted(rows, 27, 0)) == 1


def test_all_hits_had_is_healthy(rows: Rows) -> None:
    """Evictions that nobody regrets are what a cache is for."""
    assert evicted(rows, 0, 864) == []


# -- caching that is off -----------------------------------------------------------------


def test_caching_would_find_what_prompts_share(rows: Rows) -> None:
    """Whole blocks count: 48 of 60 shared tokens, for nine of ten prompts."""
    steps = [rows.prefill(1000), rows.decode(3 * S)]

    found = only(
        find_prefix_cache(rows.make_view(rows.prompts(0, *[60] * 9), steps)),
        "prefix_caching_would_help",
    )

    assert found.severity == "info"
    assert found.message == (
        "prompts begin alike: up to 43.2 % of their 1,000 tokens could be hits, and"
        " computing prompts takes 25 % of the time of all steps"
    )
    assert found.advice == "--enable-prefix-caching"


def test_caching_is_advised_with_the_chunks_there_were(rows: Rows) -> None:
    """Beside it vLLM chunks only if told to, and whole prompts take other memory."""
    chunked = {"enable_chunked_prefill": True}
    view = rows.make_view(
        rows.prompts(0, *[60] * 9), [rows.prefill(1000)], config=chunked
    )

    assert only(find_prefix_cache(view), "prefix_caching_would_help").advice == (
        "--enable-prefix-caching --enable-chunked-prefill (vLLM's v0 does not chunk by"
        " itself then)"
    )


@pytest.mark.parametrize(("num_shared", "is_found"), [(12, False), (13, True)])
def test_a_tenth_of_the_prompts_is_worth_caching(
    rows: Rows, num_shared: int, is_found: bool
) -> None:
    """16 of 100 tokens for 13 of 20 prompts are 10.4 %, for 12 of them 9.6 %."""
    shared = [0] * (20 - num_shared) + [16] * num_shared
    view = rows.make_view(rows.prompts(*shared), [rows.prefill(2000)])

    assert bool(find_prefix_cache(view)) == is_found


def test_prompts_that_take_no_time_need_no_caching(rows: Rows) -> None:
    """What :func:`pays_little` calls not worth it on is not recommended off."""
    off = {"enable_prefix_caching": False}

    assert pays_little(rows, 96_000_000, config=off) == []
    assert len(pays_little(rows, 79_000_000, config=off)) == 1


def test_caching_beside_swaps_comes_with_a_warning(rows: Rows) -> None:
    """Where equal prompts are swapped, the advice names what would go wrong."""
    step = rows.prefill(1000, num_swap_in_blocks=3)
    equal, alike = rows.prompts(0, *[100] * 9), rows.prompts(0, *[99] * 9)

    (swapped,) = find_prefix_cache(rows.make_view(equal, [step]))
    (differ,) = find_prefix_cache(rows.make_view(alike, [step]))
    (plain,) = find_prefix_cache(rows.make_view(equal, [rows.prefill(1000)]))

    assert "once nothing is swapped" in swapped.advice
    assert differ.advice == plain.advice == "--enable-prefix-caching"
