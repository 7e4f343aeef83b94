"""What operators of vLLM met, replayed with policy v1: each names its thread.

Numbers are worked out by hand from the rules; blocks hold 16 tokens, and one block of
every pool, the null block, holds none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from allocators.block_pool import BlockPool
from allocators.content import ContentRange
from allocators.kv_cache_manager import KVCacheManager, RequestBlocks
from harness.config import resolve_config
from harness.errors import UsageError
from harness.replay import RunResult, replay
from harness.request import Request, Run
from harness.schedulers.build import build_scheduler_v1
from harness.workload import Workload
from results.columns import Columns
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending
from results.waste import head_of_line_s

S = 1_000_000_000
FINISHED = RequestStatus.FINISHED
A, B, C, F, X, Y = range(1, 7)


def request(
    prompt: Sequence[Run],
    *outputs: int,
    at_s: float = 0.0,
    salt: str = "",
    urgency: int = 0,
) -> Request:
    """A request of these runs of content, one output length a sample."""
    return Request(
        request_id=0,
        arrival_ns=round(at_s * S),
        prompt=tuple(prompt),
        num_prompt_tokens=sum(length for _, length in prompt),
        outputs=tuple((0, length) for length in outputs),
        priority=urgency,
        extra_keys=(salt,) if salt else (),
    )


def output_of(request_id: int, sample: int = 0) -> int:
    """The segment that a sample of a request writes."""
    return 10**6 + 100 * request_id + sample


def replayed(*requests: Request, num_usable: int, **knobs: Any) -> RunResult:
    """Replay requests, in this order, on a pool of so many blocks, under checks."""
    made = [
        Request(
            request_id=i,
            arrival_ns=r.arrival_ns,
            prompt=r.prompt,
            num_prompt_tokens=r.num_prompt_tokens,
            outputs=tuple((output_of(i, k), n) for k, (_, n) in enumerate(r.outputs)),
            priority=r.priority,
            extra_keys=r.extra_keys,
        )
        for i, r in enumerate(requests)
    ]
    return replay_of(made, num_usable, **knobs)


def replay_of(made: list[Request], num_usable: int, **knobs: Any) -> RunResult:
    """Replay requests as they are."""
    defaults = {
        "model": "Llama-3.1-8B",
        "gpu": "H100-80GB",
        "policy": "v1",
        "max_model_len": 4096,
        "num_gpu_blocks_override": num_usable + 1,
        "async_scheduling": False,
    }
    result = replay(
        Workload.from_requests(made), resolve_config(**(defaults | knobs)), check=True
    )
    assert result.outcome.num_lost_blocks == 0
    return result


def cached(result: RunResult) -> list[int]:
    """Cached tokens that each request found when it was admitted first."""
    return [record.num_cached_tokens for record in result.requests]


def total(result: RunResult, name: str) -> int:
    """A count, over all steps."""
    return sum(getattr(step, name) for step in result.steps)


# -- the pool ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_no_block_is_lost_under_pressure(is_async: bool) -> None:
    """60 requests in 40 blocks: checked after each turn, and all finish (#42571)."""
    rng = np.random.default_rng(1)
    made = [
        request(
            [(A + i % 3, 40), (100 + i, int(rng.integers(1, 90)))], int(n), at_s=i / 50
        )
        for i, n in enumerate(rng.integers(1, 200, 60))
    ]

    result = replayed(*made, num_usable=40, async_scheduling=is_async)

    assert {record.status for record in result.requests} == {FINISHED}
    assert total(result, "num_preempted_recompute") > 0
    assert total(result, "num_regretted_evictions") > 0


def test_the_tail_of_a_prompt_is_evicted_first() -> None:
    """One block taken from a cached prompt of four leaves the three before (#9668)."""
    result = replayed(
        request([(A, 64)], 1),
        request([(B, 16)], 1, at_s=1),
        request([(A, 64)], 1, at_s=2),
        num_usable=4,
    )

    assert cached(result) == [0, 0, 48]


def test_a_hole_in_a_prefix_ends_the_hit() -> None:
    """With blocks 1, 3 and 4 cached and 2 evicted one block is hit (LMCache 443)."""
    pool = BlockPool(5)
    blocks = pool.get_new_blocks(4)
    pool.cache_blocks(1, blocks)
    pool.free_blocks(blocks[[1, 0, 2, 3]])
    assert pool.get_new_blocks(1).tolist() == [2]

    assert pool.find([ContentRange(0, 4, 1)]).tolist() == [1]


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(64, 48), (65, 64), (63, 48), (16, 0), (17, 16)]
)
def test_a_prompt_that_is_cached_whole_computes_its_end(
    num_tokens: int, num_cached: int
) -> None:
    """The last token is always computed, so a hit ends a block before it (#11186)."""
    again = [request([(A, num_tokens)], 1, at_s=at_s) for at_s in (0, 1)]

    result = replayed(*again, num_usable=20)

    assert cached(result) == [0, num_cached]
    assert [step.num_prefill_tokens for step in result.steps] == [
        num_tokens,
        num_tokens - num_cached,
    ]


def test_twins_keep_their_blocks_and_either_is_hit() -> None:
    """Two write the same 48 tokens; when one's blocks are gone the other's serve (#9668).

    Three blocks each fill the pool, the filler takes those that were freed first.
    """
    twins = [((A, 16),), ((A, 16),), ((F, 48),), ((A, 16), (B, 33), (X, 16))]
    lengths = [(B, 33), (B, 33), (output_of(2), 1), (output_of(3), 1)]
    made = [
        Request(
            request_id=i,
            arrival_ns=max(0, i - 1) * S,
            prompt=prompt,
            num_prompt_tokens=sum(n for _, n in prompt),
            outputs=(output,),
        )
        for i, (prompt, output) in enumerate(zip(twins, lengths, strict=True))
    ]

    result = replay_of(made, num_usable=6)

    assert cached(result) == [0, 0, 0, 48]
    assert total(result, "num_evictions") == 3 + 2


def test_content_counts_from_the_beginning() -> None:
    """Equal tokens behind other tokens are other content (#12621)."""
    result = replayed(
        request([(X, 16), (C, 16), (A, 1)], 1),
        request([(Y, 16), (C, 16), (A, 1)], 1, at_s=1),
        request([(X, 16), (C, 16), (A, 1)], 1, at_s=2),
        num_usable=20,
    )

    assert cached(result) == [0, 0, 32]


def test_a_salt_keeps_tenants_apart() -> None:
    """The same prompt under another cache salt finds nothing (#16016)."""
    salts = ["x", "y", "x", ""]
    made = [request([(A, 64)], 1, at_s=i, salt=salt) for i, salt in enumerate(salts)]

    assert cached(replayed(*made, num_usable=40)) == [0, 0, 48, 0]


# -- hits and what they are not ----------------------------------------------------------


def test_recomputation_is_no_hit() -> None:
    """Unique prompts have no hit, however much is found after preemptions (#25780)."""
    made = [request([(100 + i, 60)], 20 + 15 * i) for i in range(6)]

    result = replayed(*made, num_usable=27)

    assert total(result, "num_preempted_recompute") > 0
    assert cached(result) == [0] * 6
    assert sum(r.num_recompute_cached_tokens for r in result.requests) > 0


def test_a_prompt_is_counted_once_however_long_it_waits() -> None:
    """Refused in call after call, it is counted when it is admitted (#43736)."""
    result = replayed(
        request([(A, 64)], 60),
        request([(A, 64), (B, 64)], 1, at_s=0.02),
        num_usable=8,
    )

    assert result.requests[1].first_scheduled_ns == result.requests[0].finished_ns
    assert cached(result) == [0, 64]
    assert total(result, "num_cached_tokens") == 64


def test_hits_after_a_preemption_are_those_found_then() -> None:
    """With 48 cached tokens first, and none once its blocks are taken (#36755).

    Two of 64 tokens fill the pool; the first goes on to 124 tokens, all 8 blocks.
    """
    result = replayed(
        request([(A, 64)], 1),
        request([(B, 64)], 60, at_s=1),
        request([(A, 64)], 20, at_s=1),
        num_usable=8,
    )

    record = result.requests[2]
    assert (record.num_cached_tokens, record.num_preemptions) == (48, 1)
    assert record.num_recompute_cached_tokens == 0
    assert record.num_recomputed_tokens == 64
    assert record.status is FINISHED


def test_admission_counts_blocks_that_others_hold_as_there() -> None:
    """Of 16 blocks 15 are held by another: one is new, and two are free (#7883)."""
    result = replayed(
        request([(A, 240), (X, 1)], 10),
        request([(A, 240), (Y, 16)], 1, at_s=0.001),
        num_usable=18,
    )

    first, second = result.requests
    assert second.num_cached_tokens == 240
    assert first.finished_ns is not None
    assert second.finished_ns is not None
    assert second.finished_ns < first.finished_ns
    assert max(step.num_used_blocks for step in result.steps) == 17


def test_thinking_is_cached_and_never_found() -> None:
    """A turn without the 32 thinking tokens hits the old prompt only (#39321).

    Of 128 tokens 127 are computed: 7 full blocks, 3 of them of no use.
    """
    result = replayed(
        request([(A, 64)], 64),
        request([(A, 64), (B, 32), (C, 8)], 1, at_s=5),
        num_usable=40,
    )

    assert cached(result) == [0, 64]
    later = next(step for step in result.steps if step.start_ns >= 5 * S)
    assert later.num_cached_blocks == 3


def test_next_turn_finds_what_was_generated() -> None:
    """Prompt and output are one content in v1: of 127 computed tokens 112 are found."""
    result = replayed(
        request([(A, 64)], 64),
        request([(A, 64), (output_of(0), 64), (C, 8)], 1, at_s=5),
        num_usable=40,
    )

    assert cached(result) == [0, 112]


def test_one_large_request_flushes_its_neighbours() -> None:
    """60 of 64 blocks are taken: 48 that are new and 12 of three chats (#24394).

    The chat that was served last keeps all of its blocks.
    """
    chats = [request([(A + i, 64)], 1, at_s=i) for i in range(4)]
    large = request([(50, 960)], 1, at_s=5)
    again = [request([(A + i, 64)], 1, at_s=6 + k) for k, i in enumerate((3, 0))]

    result = replayed(*chats, large, *again, num_usable=64)

    steps = {step.start_ns: step for step in result.steps}
    assert steps[result.requests[4].queued_ns].num_evictions == 12
    assert cached(result)[-2:] == [48, 0]
    assert total(result, "num_regretted_evictions") == 4 + 1


def test_blocks_of_a_resumed_request_are_all_named() -> None:
    """Preempted and resumed it has a hash for each full block (#19459)."""
    scheduler = build_scheduler_v1(
        block_size=16,
        num_gpu_blocks=8,
        enable_prefix_caching=True,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_model_len=256,
    )
    for i, output in enumerate((30, 60)):
        scheduler.add(
            Request(
                request_id=i,
                arrival_ns=0,
                prompt=((A + i, 40),),
                num_prompt_tokens=40,
                outputs=((output_of(i), output),),
            )
        )
    num_preempted = 0
    while scheduler.has_unfinished:
        batch = scheduler.schedule()
        num_preempted += batch.num_preempted
        for held in scheduler.running:
            num_computed = scheduler.num_computed_tokens(held)
            assert held.blocks.num_named == num_computed // 16
        if not batch.is_idle:
            scheduler.commit(batch)

    assert num_preempted == 1


# -- scheduling --------------------------------------------------------------------------


def test_nothing_runs_that_is_not_running() -> None:
    """Urgent requests push others out of a step that has them already (#23347)."""
    rng = np.random.default_rng(2)
    made = [
        request([(100 + i, 70)], 90, at_s=i / 200, urgency=int(rng.integers(0, 3)))
        for i in range(30)
    ]

    result = replayed(
        *made, num_usable=40, scheduling_policy="priority", max_num_batched_tokens=256,
        max_num_seqs=64,
    )  # fmt: skip

    assert total(result, "num_preempted_recompute") > 0
    for step in result.steps:
        assert step.num_prefill_seqs + step.num_decode_seqs <= step.num_running
        assert step.num_prefill_tokens + step.num_decode_seqs <= 256
    assert {record.status for record in result.requests} == {FINISHED}


def test_head_of_the_queue_blocks_those_who_would_fit() -> None:
    """A large prompt waits for blocks, and a small one behind it waits too (#31731)."""
    result = replayed(
        request([(A, 96)], 60),
        request([(B, 112)], 1, at_s=0.001),
        request([(C, 16)], 1, at_s=0.002),
        num_usable=12,
    )

    first, large, small = result.requests
    assert large.first_scheduled_ns == small.first_scheduled_ns == first.finished_ns
    refused = [step for step in result.steps if step.num_head_blocks]
    assert {step.num_head_blocks for step in refused} == {7}
    lost_s = head_of_line_s(
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
        16,
    )
    assert lost_s[2] > 0.1 * (small.first_scheduled_ns - small.arrival_ns) / S
    assert lost_s[0] == lost_s[1] == 0


def test_long_prompts_cut_to_a_threshold_let_short_ones_in() -> None:
    """Behind four prompts of 2,048 tokens two of 128 are served sooner (#37308)."""
    made = [request([(100 + i, 2048)], 10) for i in range(4)]
    made += [request([(200 + i, 128)], 10, at_s=0.001) for i in range(2)]
    ttft_ns = []
    for threshold in (0, 256):
        result = replayed(
            *made, num_usable=700, max_num_batched_tokens=2048, max_num_seqs=64,
            long_prefill_token_threshold=threshold,
        )  # fmt: skip
        short = [result.requests[i] for i in (4, 5)]
        ttft_ns.append(max(r.first_token_ns - r.arrival_ns for r in short))

    assert ttft_ns[1] < ttft_ns[0] / 2


def test_caching_without_sharing_changes_no_time() -> None:
    """Unique prompts that never meet are served alike with caching on and off (#2762)."""
    made = [request([(100 + i, 70)], 20, at_s=i / 100) for i in range(20)]
    served = []
    for caching in (False, True):
        result = replayed(*made, num_usable=400, enable_prefix_caching=caching)
        served.append([(r.first_token_ns, r.finished_ns) for r in result.requests])

    assert served[0] == served[1]


def test_more_sequences_than_blocks_bring_preemptions() -> None:
    """Ten run side by side in 80 blocks, 8 each; 16 preempt each other (#10709)."""
    made = [request([(100 + i, 64)], 64) for i in range(32)]

    preempted = [
        total(replayed(*made, num_usable=80, max_num_seqs=n), "num_preempted_recompute")
        for n in (5, 10, 16)
    ]

    assert preempted[:2] == [0, 0]
    assert preempted[2] > 0


# -- pools that are too small ------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_usable", "status"), [(8, FINISHED), (7, RequestStatus.ABORTED)]
)
def test_a_pool_of_one_request(num_usable: int, status: RequestStatus) -> None:
    """113 to 128 tokens need 8 blocks: with 7 it is told that the pool is too small."""
    result = replayed(request([(A, 100)], 20), num_usable=num_usable)

    (record,) = result.requests
    assert result.outcome.ending is Ending.COMPLETE
    assert record.status is status
    if status is not FINISHED:
        assert record.reason == "exceeds_kv_capacity"
        # 112 tokens are computed, and the next one has been sampled
        assert record.num_output_tokens == 13


def test_two_requests_that_never_fit_together_finish_one_by_one() -> None:
    """Each ends up with the whole pool; the victim starts over and ends (#15253)."""
    result = replayed(*(request([(A + i, 50)], 78) for i in range(2)), num_usable=8)

    assert result.outcome.ending is Ending.COMPLETE
    assert [record.status for record in result.requests] == [FINISHED] * 2
    assert result.requests[0].num_preemptions == 0
    assert result.requests[1].num_preemptions >= 1


@pytest.mark.parametrize("num_blocks", [-1, 0])
def test_pool_without_blocks_is_refused(num_blocks: int) -> None:
    """An override of 0 or less is an error that says what to give (#43842)."""
    with pytest.raises(Exception, match=f"num_gpu_blocks_override is {num_blocks}; "):
        resolve_config(
            model="Llama-3.1-8B", gpu="H100-80GB", num_gpu_blocks_override=num_blocks
        )


@pytest.mark.parametrize(("num_usable", "num_prompt"), [(0, 1), (1, 17)])
def test_pool_of_a_block_serves_only_what_fits(num_usable: int, num_prompt: int) -> None:
    """A prompt of 17 tokens exceeds one block, and one token a pool of none (#27181)."""
    result = replayed(
        request([(A, num_prompt)], 1),
        *([request([(B, 8)], 4)] if num_usable else []),
        num_usable=num_usable,
    )

    assert result.outcome.ending is Ending.COMPLETE
    assert result.requests[0].reason == "exceeds_kv_capacity"
    assert all(record.status is FINISHED for record in result.requests[1:])


def test_swap_space_means_nothing_in_v1() -> None:
    """It is refused, and the option that takes its place is named (#27984)."""
    with pytest.raises(UsageError, match="use --kv-offloading-size"):
        resolve_config(model="Llama-3.1-8B", gpu="H100-80GB", swap_space=4.0)


def test_a_block_of_a_window_is_freed_once() -> None:
    """Samples whose shared blocks leave the window give each back once (#1556)."""
    manager = KVCacheManager(
        4, 30, enable_caching=True, max_model_len=64, sliding_window=8, max_step_tokens=64
    )
    assert manager.index is not None
    tables = []
    for sample in range(2):
        path = manager.index.begin([(A, 12)], (output_of(0, sample), 12))
        tables.append(RequestBlocks(path))
        hits = manager.get_computed_blocks(tables[-1], 12)
        assert manager.allocate_slots(tables[-1], 12, 12, hits=hits)
    for num_tokens in range(13, 25):
        for table in tables:
            settled = num_tokens - 1
            manager.allocate_slots(
                table, num_tokens, num_tokens, num_settled_tokens=settled
            )
        manager.check_invariants(tables)
    for table in tables:
        manager.free(table)

    manager.check_invariants([])
    assert manager.block_pool.num_free_blocks == 29
