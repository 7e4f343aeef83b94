"""What the rules say of runs of policy v1: other limits, other flags, no swaps."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.decode import find_decode
from results.findings.dismissed import find_dismissed
from results.findings.ending import find_ending
from results.findings.finding import Finding
from results.findings.fit import fitting_seqs, num_blocks_for_all
from results.findings.place import waits_for_seqs
from results.findings.prefix_cache import find_prefix_cache
from results.findings.pressure import find_pressure
from results.findings.run_view import RunView
from results.findings.service_level import find_service_level
from results.findings.sizing import find_sizing
from results.findings.stall import find_stalls
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeView = Callable[..., RunView]
View = Callable[..., RunView]

S = 1_000_000_000
MS = 1_000_000


@pytest.fixture
def view(make_request: MakeRequest, make_view: MakeView) -> View:
    """Return a maker of views of vLLM 0.32: 10 blocks of 1 GiB, caching on, no tier."""

    def make(
        steps: list[StepRecord],
        requests: list[RequestRecord] | int = 20,
        outcome: Outcome | None = None,
        policy: str = "v1",
        slo: dict[str, float] | None = None,
        **knobs: Any,
    ) -> RunView:
        if isinstance(requests, int):
            requests = [
                make_request(request_id=i, first_scheduled_ns=0, num_shared_tokens=0)
                for i in range(requests)
            ]
        given = {"vllm_version": "0.32.0", "watermark": 0.0, "num_cpu_blocks": 0}
        given |= {"enable_prefix_caching": True, "enable_chunked_prefill": True}
        given |= {"block_bytes": 2**30, "source_of_num_gpu_blocks": "override"}
        given |= {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
        return make_view(
            requests,
            steps,
            policy=policy,
            config=given | {"num_fitting_gpu_blocks": 1000, "swap_space": None} | knobs,
            outcome=outcome or Outcome(),
            slo=slo,
        )

    return make


def only(found: list[Finding]) -> Finding:
    """Return the one finding there is."""
    (finding,) = found
    return finding


# -- the pool ----------------------------------------------------------------------------


def test_block_0_is_nobodys(make_step: MakeStep, view: View) -> None:
    """4 of 9 blocks were in use, and 5 with block 0 make 6."""
    oversized = only(find_sizing(view([make_step()], max_model_len=16)))

    assert oversized.code == "kv_cache_oversized"
    assert oversized.message.startswith("at most 4 of 9 blocks were ever in use, 44.4 %")
    assert oversized.advice.startswith("--num-gpu-blocks-override 6 would do")
    assert oversized.advice.endswith("leave a fifth to spare")


def test_half_of_what_can_be_held_is_not_too_little(
    make_step: MakeStep, view: View
) -> None:
    """5 of 9 blocks are more than half where 5 of 11 are not."""
    step = make_step(num_used_blocks=5, num_used_blocks_end=5)

    assert find_sizing(view([step], max_model_len=16)) == []
    assert find_sizing(view([step], max_model_len=16, num_gpu_blocks=12)) != []


def test_longest_sequence_holds_its_window(make_step: MakeStep, view: View) -> None:
    """A window of 64 and two batches of 32 tokens in flight are 8 blocks and one more."""
    window = {"sliding_window": 64, "max_num_batched_tokens": 32, "max_num_seqs": 32}
    window |= {"num_gpu_blocks": 50}

    ahead = only(find_sizing(view([make_step()], **window, async_scheduling=True)))
    in_turn = only(find_sizing(view([make_step()], **window, async_scheduling=False)))

    assert ahead.advice.startswith("--num-gpu-blocks-override 10 would do")
    assert in_turn.advice.startswith("--num-gpu-blocks-override 8 would do")


def test_larger_pool_has_room_for_block_0(make_request: MakeRequest, view: View) -> None:
    """A request of 12 blocks needs 13, and no watermark besides."""
    request = make_request(
        num_prompt_tokens=180,
        num_output_tokens=0,
        max_sample_tokens=0,
        num_demand_blocks=12,
        first_scheduled_ns=None,
        status=RequestStatus.REJECTED,
        reason="exceeds_kv_capacity",
    )

    found = only(find_dismissed(view([], [request], watermark=0.5)))

    assert found.code == "exceeds_kv_capacity"
    assert (
        "needs 13 blocks at its full length, block 0 included, 13.0 GiB" in found.message
    )
    assert found.advice.startswith("--num-gpu-blocks-override 13 (")


def test_watermark_keeps_nobody_out_for_good(
    make_request: MakeRequest, view: View
) -> None:
    """A request of 10 blocks is too large for a pool of 10, as one is set aside."""
    request = make_request(
        num_prompt_tokens=160,
        num_output_tokens=0,
        max_sample_tokens=0,
        num_demand_blocks=10,
        first_scheduled_ns=None,
        status=RequestStatus.REJECTED,
        reason="exceeds_kv_capacity",
    )

    found = only(find_dismissed(view([], [request], watermark=0.5)))

    assert found.code == "exceeds_kv_capacity"
    assert "needs 11 blocks" in found.message


# -- how many fit ------------------------------------------------------------------------


def test_pool_for_all_holds_them_and_block_0(
    make_request: MakeRequest, view: View
) -> None:
    """Three requests of 7 blocks need 21 and one; v0 keeps one more for growth."""
    requests = [make_request(num_demand_blocks=7) for _ in range(3)]

    assert num_blocks_for_all(view([], requests)) == 22
    assert num_blocks_for_all(view([], requests, policy="v0")) == 22
    assert num_blocks_for_all(view([], requests, watermark=0.5)) == 44


def test_samples_share_their_prompt_by_caching_alone(
    make_request: MakeRequest, view: View
) -> None:
    """Without it each of three samples has the six full blocks of the prompt itself."""
    requests = [make_request(n=3, num_prompt_tokens=100, num_demand_blocks=9)]

    assert num_blocks_for_all(view([], requests)) == 10
    assert num_blocks_for_all(view([], requests, enable_prefix_caching=False)) == 22


def test_windows_bound_what_is_held(make_request: MakeRequest, view: View) -> None:
    """A window of 64 tokens is four blocks and one that it may begin in."""
    requests = [
        make_request(num_demand_blocks=100, num_requested_tokens=160) for _ in range(2)
    ]

    assert num_blocks_for_all(view([], requests, sliding_window=64)) == 11
    assert (
        fitting_seqs(view([], requests, sliding_window=64, num_gpu_blocks=51), 0.5) == 10
    )


def test_each_sample_takes_a_place_of_its_own(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """With 7 of 8 places taken one of three samples is admitted; v0 takes all or none."""
    requests = [make_request(n=3)]
    steps = [make_step(num_running=7, num_decode_seqs=7)]

    assert not waits_for_seqs(view(steps, requests, max_num_seqs=8)).any()
    assert waits_for_seqs(view(steps, requests, max_num_seqs=7)).all()
    assert waits_for_seqs(view(steps, requests, max_num_seqs=8, policy="v0")).all()


# -- pressure ----------------------------------------------------------------------------


def test_thrash_names_what_v1_has(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """A pool, fewer sequences, or since 0.24 a watermark; never swap space."""
    requests = [
        make_request(num_preemptions=3, num_demand_blocks=3, num_requested_tokens=32, n=1)
        for _ in range(4)
    ]
    steps = [make_step(num_preempted_recompute=12)]

    now = only(find_pressure(view(steps, requests)))
    before = only(find_pressure(view(steps, requests, vllm_version="0.23.0")))

    assert now.code == before.code == "preemption_thrash"
    assert now.advice == (
        "--num-gpu-blocks-override 13 (about 1,000 blocks fit on this GPU), enough for"
        " all that could have run at once; or --max-num-seqs 3, as many as the pool holds"
        " at full length, at the price of a longer queue; or --watermark 0.25, which"
        " leaves those who run room to grow"
    )
    assert before.advice == now.advice.split("; or --watermark")[0]


def test_waiting_for_stores_is_no_swap_storm(make_step: MakeStep, view: View) -> None:
    """v1 does not swap, however long it waited for copies."""
    steps = [make_step(swap_ns=5)]

    assert find_pressure(view(steps, num_cpu_blocks=5)) == []
    assert only(find_pressure(view(steps, policy="v0"))).code == "swap_storm"


def test_tier_is_no_swap_space(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Neither empty nor half full CPU blocks are called swap space."""
    requests = [make_request(num_preemptions=1) for _ in range(200)]

    for used in (0, 1):
        run = view([make_step(num_used_cpu_blocks=used)], requests, num_cpu_blocks=50)
        assert find_pressure(run) == []


def test_watermark_may_go_down_to_nothing(make_step: MakeStep, view: View) -> None:
    """v1 keeps nothing free unless it is told to; 0.5 % are still more than that."""
    used = {"num_used_blocks": 90, "num_used_blocks_end": 90}
    step = make_step(num_head_blocks=1, num_room_blocks=0, **used)
    kept = {"num_gpu_blocks": 201, "watermark": 0.5}

    waiting = only(find_pressure(view([step], **kept)))

    assert waiting.code == "watermark_waiting"
    assert waiting.advice == "--watermark 0, which is vLLM's default"
    assert find_pressure(view([step], num_gpu_blocks=201)) == []


# -- other limits ------------------------------------------------------------------------


def test_tokens_of_a_step_grow_up_to_the_default(make_step: MakeStep, view: View) -> None:
    """From 512 to 8,192; there the GPU itself is busy, and more are no remedy."""
    fields = {"num_waiting": 3, "num_prefill_tokens": 100, "num_prefill_seqs": 2}
    small = {"max_num_batched_tokens": 512, "max_num_seqs": 256}

    few = find_sizing(view([make_step(**fields)], **small))[0]
    many = find_sizing(view([make_step(**fields)]))[0]

    assert few.code == many.code == "not_kv_bound"
    assert few.advice.startswith("--max-num-batched-tokens 8192 shortens the queue")
    assert many.advice.startswith("--tensor-parallel-size or a larger GPU")


def test_other_limits_are_those_of_v1(make_step: MakeStep, view: View) -> None:
    """Where neither sequences nor tokens kept them out, nobody was swapped out."""
    found = find_sizing(view([make_step(num_waiting=3)]))[0]

    assert found.advice.endswith("adapters, priorities, loads from the offload tier")


def test_smaller_chunks_need_fewer_places(make_step: MakeStep, view: View) -> None:
    """As vLLM wants as many tokens a step as sequences, both flags are given."""
    decode = make_step(end_ns=10 * MS, num_decode_seqs=20, num_running=20)
    decode.first_step_ns = decode.last_step_ns = 10 * MS
    decode.gap_ns, decode.gap_count = [10 * MS], [1500]
    prefill = make_step(start_ns=10 * MS, end_ns=510 * MS, num_prefill_seqs=1)
    prefill.num_prefill_tokens, prefill.num_decode_seqs = 8000, 20
    prefill.first_step_ns = prefill.last_step_ns = 500 * MS
    prefill.gap_ns, prefill.gap_count = [500 * MS], [20]

    found = only(find_stalls(view([decode, prefill])))

    assert found.code == "prefills_stall_decodes"
    assert found.advice == (
        "--max-num-batched-tokens 320 --max-num-seqs 320, at the price of later first"
        " tokens"
    )


def test_itl_is_met_with_smaller_chunks(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Chunks are on, so that the flag alone makes them smaller."""
    step = make_step(num_prefill_seqs=1, gap_ns=[S], gap_count=[1])

    missed = only(find_service_level(view([step], slo={"itl_p50_s": 0.5})))

    assert missed.advice == (
        "a faster GPU, or prompts computed in smaller chunks (--max-num-batched-tokens"
        " below 8192)"
    )


# -- what v1 does not say ----------------------------------------------------------------


def test_prefix_caching_stays_on(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Nobody is told to leave out what v1 has on, and what costs nothing."""
    step = make_step(end_ns=S, num_prefill_tokens=2000, num_prefill_seqs=20)
    below = [
        make_request(request_id=i, num_shared_tokens=15, num_cached_tokens=0)
        for i in range(20)
    ]

    nothing = only(find_prefix_cache(view([step])))
    short = only(find_prefix_cache(view([step], below)))

    assert nothing.code == "nothing_shared"
    assert nothing.advice.startswith("none needed: v1 has it on")
    assert short.code == "prefixes_below_a_block"
    assert short.advice == (
        "none needed: even blocks of 16 tokens, the smallest there are, are too large"
    )


def test_caching_that_cannot_pay_is_no_news(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """v0 is told to leave it out; v1 has it on all the same."""
    requests = [make_request(num_shared_tokens=80) for _ in range(20)]
    prefill = make_step(num_prefill_seqs=1, num_prefill_tokens=1, num_context_tokens=0)
    decode = make_step(start_ns=10, end_ns=10 * S, num_context_tokens=0)
    run = [prefill, decode]

    assert find_prefix_cache(view(run, requests)) == []
    assert only(find_prefix_cache(view(run, requests, policy="v0"))).code == (
        "caching_cannot_pay"
    )


def test_switch_is_all_that_caching_needs(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """v1 chunks by itself and does not swap, so the flag stands alone."""
    step = make_step(end_ns=S, num_prefill_tokens=2000, num_prefill_seqs=20)
    requests = [make_request(num_shared_tokens=80) for _ in range(20)]
    run = view([step], requests, enable_prefix_caching=False)

    assert only(find_prefix_cache(run)).advice == "--enable-prefix-caching"


def test_stuck_run_of_v1_needs_no_more_places(
    make_request: MakeRequest, view: View
) -> None:
    """Samples run one by one, so that n = 3 fits into two places."""
    waiting = make_request(
        n=3, status=RequestStatus.FAILED, finished_ns=None, num_output_tokens=0
    )
    stuck = Outcome(ending=Ending.STUCK, holders="1 waiting (#0)")

    v1 = find_ending(view([], [waiting], stuck, max_num_seqs=2))
    v0 = find_ending(view([], [waiting], stuck, max_num_seqs=2, policy="v0"))

    assert only(v1).advice.startswith("--num-gpu-blocks-override")
    assert only(v0).advice.startswith("--max-num-seqs 3")


def test_windows_make_no_sequence_long(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """What makes decodes slow with full attention is not read with a window."""
    requests = [
        make_request(
            request_id=i,
            num_prompt_tokens=30_000 if i == 7 else 100,
            num_output_tokens=100,
        )
        for i in range(20)
    ]
    steps = []
    for i in range(40):
        seqs, context = 1 + i % 3, 1000 * (i * 7 % 13)
        took = 100 + context
        fields = {"start_ns": i * 20_000, "end_ns": i * 20_000 + took}
        fields |= {"first_step_ns": took, "last_step_ns": took}
        fields |= {"num_decode_seqs": seqs, "num_context_tokens": context}
        steps.append(make_step(**fields))

    found = only(find_decode(view(steps, requests)))

    assert found.code == "long_sequences"
    assert "copy-on-write" not in found.message
    assert (
        "copy-on-write" in only(find_decode(view(steps, requests, policy="v0"))).message
    )
    assert find_decode(view(steps, requests, sliding_window=4096)) == []


# -- finer points ------------------------------------------------------------------------


def test_samples_wait_one_by_one(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """8 running and 3 waiting samples want 11 places; v0 counts groups of three."""
    requests = [make_request(n=3, num_demand_blocks=1)]
    step = make_step(num_running=8, num_decode_seqs=8, num_waiting=3)
    full = {"max_num_seqs": 8, "num_gpu_blocks": 100}

    v1 = find_sizing(view([step], requests, **full))[0]
    v0 = find_sizing(view([step], requests, **full, policy="v0"))[0]

    assert v1.advice.startswith("--max-num-seqs 11,")
    assert v0.advice.startswith("--max-num-seqs 33,")


def test_fewer_places_than_samples_are_advice_for_v1(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Two of eight samples fit: v1 runs two at a time, v0 all or none."""
    requests = [
        make_request(
            n=8, num_prompt_tokens=16, num_demand_blocks=25, num_preemptions=3,
            num_requested_tokens=8 * 48,
        )
    ]  # fmt: skip
    steps = [make_step(num_preempted_recompute=3)]

    assert "--max-num-seqs 2," in only(find_pressure(view(steps, requests))).advice
    v0 = find_pressure(view(steps, requests, policy="v0"))
    assert "--max-num-seqs" not in v0[0].advice


def test_window_bounds_what_a_pool_must_hold(
    make_request: MakeRequest, view: View
) -> None:
    """3,200 tokens need the 13 blocks of a window and a step, and block 0."""
    request = make_request(
        num_prompt_tokens=3200,
        num_output_tokens=0,
        max_sample_tokens=0,
        num_demand_blocks=200,
        first_scheduled_ns=None,
        status=RequestStatus.REJECTED,
        reason="exceeds_kv_capacity",
    )
    window = {"sliding_window": 64, "max_num_batched_tokens": 128, "max_num_seqs": 64}

    found = only(find_dismissed(view([], [request], **window)))

    assert "needs 14 blocks at its full length" in found.message


def test_steps_that_waited_for_copies_tell_nothing_of_reading(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """The waits of forced stores would hide what contexts cost; they are left out."""
    requests = [
        make_request(
            request_id=i,
            num_prompt_tokens=30_000 if i == 7 else 100,
            num_output_tokens=100,
        )
        for i in range(20)
    ]
    steps = []
    for i in range(60):
        context, waited = 1000 * (i * 7 % 13), 100_000 if i % 2 else 0
        took = 100 + context + waited
        fields = {"start_ns": i * 200_000, "end_ns": i * 200_000 + took}
        fields |= {"first_step_ns": took, "last_step_ns": took, "swap_ns": waited}
        fields |= {"num_decode_seqs": 1 + i % 3, "num_context_tokens": context}
        steps.append(make_step(**fields))

    assert only(find_decode(view(steps, requests))).code == "long_sequences"


def test_small_watermark_of_v1_is_a_raised_one(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Where the queue grows, 1 % is named to v1, which has 0; to v0 it is its own."""
    used = {"num_used_blocks": 198, "num_used_blocks_end": 198}
    requests, steps = [], []
    for i in range(400):
        begin = i * S
        requests.append(
            make_request(
                request_id=i,
                arrival_ns=begin,
                first_scheduled_ns=3 * begin,
                first_token_ns=3 * begin + 1,
                finished_ns=3 * begin + 2,
            )
        )
        fields = {"start_ns": 3 * begin, "end_ns": 3 * (begin + S), "num_waiting": 9}
        steps.append(make_step(num_head_blocks=1, **fields, **used))
    kept = {"num_gpu_blocks": 200, "watermark": 0.01}

    run, old = view(steps, requests, **kept), view(steps, requests, policy="v0", **kept)

    assert run.is_growing
    assert only(find_pressure(run)).code == "watermark_waiting"
    assert find_pressure(old) == []


def test_block_0_is_not_free(make_step: MakeStep, view: View) -> None:
    """8 of 10 in use leave one, which the watermark kept; 9 leave none to keep."""

    def found(num_used: int) -> list[Finding]:
        used = {"num_used_blocks": num_used, "num_used_blocks_end": num_used}
        step = make_step(num_head_blocks=1, num_room_blocks=0, **used)
        return find_pressure(view([step], watermark=0.2))

    assert only(found(8)).code == "watermark_waiting"
    assert found(9) == []


def test_usage_beside_waiting_is_of_what_can_be_held(
    make_step: MakeStep, view: View
) -> None:
    """4 of 9 blocks are 44.4 %."""
    found = find_sizing(view([make_step(num_waiting=3)]))[0]

    assert "with 44.4 % of the blocks in use at most" in found.message


def test_one_long_prompt_is_not_named_twice(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """Where it held the others up, that is the finding, and not the tokens of a step."""
    fields = {"end_ns": S, "first_step_ns": S, "last_step_ns": S, "num_waiting": 2}
    step = make_step(num_prefill_seqs=1, num_prefill_tokens=8191, **fields)
    requests = [make_request(first_scheduled_ns=S) for _ in range(2)]

    codes = {finding.code for finding in find_sizing(view([step], requests))}
    threshold = {"long_prefill_token_threshold": 64}
    cut = {f.code for f in find_sizing(view([step], requests, **threshold))}

    assert "not_kv_bound" not in codes
    assert "not_kv_bound" in cut


@pytest.mark.parametrize(("num_running", "chunk"), [(20, 320), (400, 400)])
def test_places_stay_for_all_that_ran(
    num_running: int, chunk: int, make_step: MakeStep, view: View
) -> None:
    """A chunk of 320 tokens would do, but 400 sequences ran at once."""
    decode = make_step(end_ns=10 * MS, num_decode_seqs=20, num_running=num_running)
    decode.first_step_ns = decode.last_step_ns = 10 * MS
    decode.gap_ns, decode.gap_count = [10 * MS], [1500]
    prefill = make_step(start_ns=10 * MS, end_ns=510 * MS, num_prefill_seqs=1)
    prefill.num_prefill_tokens, prefill.num_decode_seqs = 8000, 20
    prefill.first_step_ns = prefill.last_step_ns = 500 * MS
    prefill.gap_ns, prefill.gap_count = [500 * MS], [20]

    advice = only(find_stalls(view([decode, prefill]))).advice

    assert f"--max-num-batched-tokens {chunk} --max-num-seqs {chunk}," in advice


def test_several_samples_may_be_chunked(
    make_request: MakeRequest, make_step: MakeStep, view: View
) -> None:
    """What can end vLLM's v0, chunks beside n > 1, is the ordinary case in v1."""
    decode = make_step(end_ns=10 * MS, num_decode_seqs=20, num_running=20)
    decode.first_step_ns = decode.last_step_ns = 10 * MS
    decode.gap_ns, decode.gap_count = [10 * MS], [1500]
    prefill = make_step(start_ns=10 * MS, end_ns=510 * MS, num_prefill_seqs=1)
    prefill.num_prefill_tokens, prefill.num_decode_seqs = 8000, 20
    prefill.first_step_ns = prefill.last_step_ns = 500 * MS
    prefill.gap_ns, prefill.gap_count = [500 * MS], [20]
    run = [decode, prefill], [make_request(n=3)]

    v1 = only(find_stalls(view(*run, enable_chunked_prefill=False)))
    v0 = only(find_stalls(view(*run, enable_chunked_prefill=False, policy="v0")))

    assert v1.advice.startswith("--enable-chunked-prefill with")
    assert v0.advice.startswith("fewer or shorter prompts")
