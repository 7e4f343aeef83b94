"""What operators of vLLM met, replayed: each test names the thread it comes from.

A test speaks of the v0 policy; numbers are worked out by hand from docs/v0.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from allocators.block_space_manager import AllocStatus, BlockSpaceManager
from harness.config import EngineConfig, resolve_config
from harness.replay import RunResult, replay
from harness.request import Request, Run
from harness.schedulers.scheduler_v0 import SchedulerV0
from harness.workload import Workload, draw_arrivals_ns
from profiles.gpu import load_gpu
from profiles.model import load_model
from profiles.step_time import FS_PER_NS, BatchShape, RooflineStepTime
from results.columns import Columns
from results.findings import Finding, find
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, RunInfo
from results.summary import TRACE_KEYS, summarize
from results.waste import head_of_line_s

S = 1_000_000_000
FINISHED, REJECTED = RequestStatus.FINISHED, RequestStatus.REJECTED
ABORTED = RequestStatus.ABORTED


def request(
    prompt: Sequence[Run], *outputs: int, at_s: float = 0.0, salt: str = ""
) -> Request:
    """A request of these runs of content, one output length a sample."""
    return Request(
        request_id=0,
        arrival_ns=round(at_s * S),
        prompt=tuple(prompt),
        num_prompt_tokens=sum(length for _, length in prompt),
        outputs=tuple((0, length) for length in outputs),
        extra_keys=(salt,) if salt else (),
    )


def trace(*requests: Request) -> Workload:
    """The requests in this order; each sample writes content of its own."""
    made = [
        Request(
            request_id=i,
            arrival_ns=r.arrival_ns,
            prompt=r.prompt,
            num_prompt_tokens=r.num_prompt_tokens,
            outputs=tuple((10**6 + 100 * i + k, n) for k, (_, n) in enumerate(r.outputs)),
            extra_keys=r.extra_keys,
        )
        for i, r in enumerate(requests)
    ]
    return Workload.from_requests(made)


def config(**knobs: Any) -> EngineConfig:
    """A pool on an H100, blocks of 16 unless said otherwise."""
    defaults = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "max_model_len": 4096}
    return resolve_config(**(defaults | {"policy": "v0"} | knobs))


def info(workload: Workload, chosen: EngineConfig, result: RunResult) -> RunInfo:
    """What is known of a run besides its rows."""
    known = dict.fromkeys(TRACE_KEYS) | {
        "num_requests": len(workload),
        "has_sharing": True,
    }
    return RunInfo(
        source="simulated",
        engine="sim",
        policy="v0",
        config=chosen.to_dict(),
        trace=known,
        outcome=result.outcome,
        wall_s=result.wall_s,
    )


def run(
    workload: Workload, chosen: EngineConfig
) -> tuple[RunResult, dict[str, Any], dict[str, Finding]]:
    """Replay under checks: rows, summary, findings by code."""
    result = replay(workload, chosen, check=True)
    rows = (
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
    )
    known = info(workload, chosen, result)
    return result, summarize(known, *rows), {f.code: f for f in find(known, *rows)}


def statuses(result: RunResult) -> list[RequestStatus]:
    return [record.status for record in result.requests]


def cached(result: RunResult) -> list[int]:
    return [record.num_cached_tokens for record in result.requests]


# -- the block manager -------------------------------------------------------------------


def test_watermark_guards_admission_not_growth() -> None:
    """With 198 of 200 blocks used and 2 kept, nobody enters, but two may grow (#255)."""
    manager = BlockSpaceManager(16, 200, 0, watermark=0.01)
    scheduler = SchedulerV0(
        manager, max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096
    )
    big = trace(request([(1, 198 * 16)], 64), request([(2, 16)], 4))
    for index in range(2):
        scheduler.add(big.request(index))

    batch = scheduler.schedule()
    assert [entry.request.request_id for entry in batch.scheduled] == [0]
    assert manager.num_free_gpu_blocks == 2

    used = []
    for _ in range(17):  # two block boundaries
        scheduler.commit(batch)
        batch = scheduler.schedule()
        used.append(manager.num_free_gpu_blocks)
        assert [entry.request.request_id for entry in batch.scheduled] == [0]
    assert (used[0], used[-1], batch.num_preempted) == (1, 0, 0)

    scheduler.commit(batch)
    assert scheduler.schedule().num_preempted == 1


def test_request_larger_than_the_pool_does_not_hold_the_queue() -> None:
    """11 blocks into a pool of 10 are refused, and the next is served (#2163, #2198)."""
    work = trace(request([(1, 176)], 4), request([(2, 16)], 4))

    result, _, found = run(work, config(num_gpu_blocks_override=10, watermark=0.0))

    assert statuses(result) == [REJECTED, FINISHED]
    assert result.requests[0].reason == "exceeds_kv_capacity"
    assert "exceeds_kv_capacity" in found


def test_group_that_can_never_come_back_is_given_up() -> None:
    """Swapped out for good, it ends with its reason instead of hanging (#546, #4557)."""
    work = trace(request([(1, 1)], *[30] * 4), request([(2, 1)], 4, at_s=1))
    small = config(
        block_size=4, num_gpu_blocks_override=18, num_cpu_blocks_override=64, watermark=0
    )

    result, summary, found = run(work, small)

    assert result.requests[0].status is ABORTED
    assert result.requests[0].reason == "swap_in_never"
    assert result.requests[1].status is FINISHED
    assert summary["counts"]["swap_out_blocks"] > 0
    assert summary["counts"]["swap_in_blocks"] == 0
    assert "swap_in_never" in found


def test_swap_space_is_sized_from_the_largest_group() -> None:
    """50 samples of 600 tokens do not fit into 512 CPU blocks; the remedy does (#787)."""
    work = trace(request([(1, 16)], *[600] * 50), request([(2, 16)], 5))
    knobs: dict[str, Any] = {"num_gpu_blocks_override": 1500}

    result, _, found = run(work, config(num_cpu_blocks_override=512, **knobs))

    assert statuses(result) == [ABORTED, FINISHED]
    advice = found["swap_space_short"].advice
    assert advice.endswith(" for that one")
    gib = float(advice.split()[1])
    _, _, after = run(work, config(swap_space=gib, **knobs))
    assert "swap_space_short" not in after


@pytest.mark.parametrize(("n", "swaps"), [(1, False), (2, True)])
def test_only_groups_of_several_use_swap_space(n: int, swaps: bool) -> None:
    """Under one overload, single samples are recomputed and others swapped (#2853)."""
    work = trace(*[request([(i, 16)], *[200] * n) for i in range(8)])

    result, summary, _ = run(work, config(num_gpu_blocks_override=60, swap_space=1))

    counts = summary["counts"]
    assert counts["preemptions"] > 0
    assert (counts["swap_preemptions"] > 0) == swaps
    assert (counts["recompute_preemptions"] > 0) == (not swaps)
    assert set(statuses(result)) == {FINISHED}


def test_no_swap_space_costs_the_group_not_the_run() -> None:
    """Without CPU blocks vLLM dies; here one group goes, others finish (#546)."""
    work = trace(*[request([(i, 16)], 300, 300) for i in range(4)])

    result, _, found = run(work, config(num_gpu_blocks_override=60, swap_space=0))

    assert ABORTED in statuses(result)
    assert FINISHED in statuses(result)
    assert {r.reason for r in result.requests} == {"", "no_cpu_blocks"}
    assert "swap_space_short" in found


def test_swap_in_needs_room_for_the_next_token() -> None:
    """Three blocks of content come back only where a fourth is free (#8824)."""
    manager = BlockSpaceManager(4, 8, 8, watermark=0.0)
    scheduler = SchedulerV0(
        manager, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64
    )
    scheduler.add(trace(request([(1, 12)], 9)).request(0))
    scheduler.schedule()
    (group,) = (member.group for member in scheduler.queues.running)
    manager.swap_out(group)
    for seq in group.seqs:
        seq.status = type(seq.status).SWAPPED

    assert manager.num_swap_in_blocks(group) == 4
    hold = [manager.gpu_allocator.allocate() for _ in range(5)]
    assert manager.can_swap_in(group) is AllocStatus.LATER
    manager.gpu_allocator.free(hold.pop())
    assert manager.can_swap_in(group) is AllocStatus.OK


@pytest.mark.parametrize("chunked", [False, True])
def test_who_is_admitted_while_others_are_swapped_out(chunked: bool) -> None:
    """Nobody in the default mode; with chunked prefill new ones overtake (#5578)."""
    work = trace(
        *[request([(i, 40)], 150, 150, at_s=0.2 * i) for i in range(12)],
        *[request([(100 + i, 16)], 20, at_s=0.3 * i) for i in range(12)],
    )
    knobs = {"num_gpu_blocks_override": 64, "swap_space": 1.0}

    result, _, found = run(work, config(enable_chunked_prefill=chunked, **knobs))

    overtaking = sum(s.num_admitted for s in result.steps if s.num_swapped)
    assert any(s.num_swapped for s in result.steps)
    assert (overtaking > 0) == chunked
    assert ("swapped_overtaken" in found) == chunked


def test_every_sample_is_whole_after_swapping() -> None:
    """Blocks of 32, swapping forced: all get their own number of tokens (#10685)."""
    work = trace(*[request([(i, 50 + i)], 100 + 7 * i) for i in range(12)])
    chosen = config(
        block_size=32, num_gpu_blocks_override=24, preemption_mode="swap", swap_space=1
    )

    result, summary, _ = run(work, chosen)

    assert summary["counts"]["swap_preemptions"] > 0
    assert [r.num_output_tokens for r in result.requests] == [
        100 + 7 * i for i in range(12)
    ]


# -- prefix caching ----------------------------------------------------------------------


def test_the_tail_of_a_prompt_is_evicted_first() -> None:
    """One block taken from a cached prompt of four leaves the three before (#2762)."""
    work = trace(
        request([(1, 16)], 1),
        request([(2, 4)], 1, at_s=1),
        request([(1, 16)], 1, at_s=2),
    )
    tiny = config(
        block_size=4, num_gpu_blocks_override=4, watermark=0, enable_prefix_caching=True
    )

    result, _, _ = run(work, tiny)

    assert cached(result) == [0, 0, 12]


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(64, 48), (65, 48), (63, 32), (16, 0), (17, 0)]
)
def test_a_prompt_that_is_cached_whole_computes_its_end(
    num_tokens: int, expected: int
) -> None:
    """v0 calls all full blocks computed but the last, so that much is hit (#9972)."""
    twice = [request([(1, num_tokens)], 1, at_s=i) for i in range(2)]

    result, _, _ = run(trace(*twice), config(enable_prefix_caching=True))

    assert cached(result) == [0, expected]


def test_content_counts_from_the_beginning() -> None:
    """Equal tokens behind other tokens are other content (#12621)."""
    work = trace(
        request([(1, 16), (9, 48)], 1),
        request([(2, 16), (9, 48)], 1, at_s=1),
        request([(1, 16), (9, 48)], 1, at_s=2),
    )

    result, _, _ = run(work, config(enable_prefix_caching=True))

    assert cached(result) == [0, 0, 48]


def test_a_salt_keeps_tenants_apart() -> None:
    """The same prompt under another cache salt finds nothing (#16016)."""
    salts = ["x", "y", "x"]
    work = trace(*[request([(1, 64)], 1, at_s=i, salt=s) for i, s in enumerate(salts)])

    result, _, _ = run(work, config(enable_prefix_caching=True))

    assert cached(result) == [0, 0, 48]


def test_recomputation_is_no_hit() -> None:
    """Unique prompts have a hit rate of 0, however much is found again (#25780)."""
    work = trace(*[request([(i, 200)], 300) for i in range(12)])

    _, summary, _ = run(
        work, config(num_gpu_blocks_override=120, enable_prefix_caching=True)
    )

    assert summary["counts"]["preemptions"] > 0
    assert summary["prefix_cache"]["hit_rate"] == 0
    assert summary["prefix_cache"]["recompute_hit_tokens"] > 0
    assert summary["waste"]["regretted_evictions"] is not None


def test_a_prompt_is_queried_once_however_long_it_waits() -> None:
    """Waiting for blocks asks the cache nothing: tokens of prompts, once (#43736)."""
    work = trace(*[request([(i, 160)], 100) for i in range(8)])

    result, summary, _ = run(
        work, config(num_gpu_blocks_override=20, enable_prefix_caching=True)
    )

    assert max(s.num_waiting for s in result.steps) > 5
    assert summary["prefix_cache"]["query_tokens"] == 8 * 160


def test_counts_of_a_request_never_fall() -> None:
    """After a preemption its hits are counted apart, and none is negative (#36755)."""
    shared = [request([(1, 64), (10 + i, 100)], 200) for i in range(8)]

    result, _, _ = run(
        trace(*shared), config(num_gpu_blocks_override=70, enable_prefix_caching=True)
    )

    assert sum(r.num_preemptions for r in result.requests) > 0
    for record in result.requests:
        assert 0 <= record.num_cached_tokens <= record.num_prompt_tokens
        assert record.num_recompute_cached_tokens >= 0
        assert record.num_recomputed_tokens >= 0


def test_admission_counts_cached_blocks_in_full() -> None:
    """16 blocks are asked for although 15 are shared and held, so it waits (#7883)."""
    work = trace(request([(1, 256)], 200), request([(1, 256), (2, 1)], 4, at_s=0.05))
    chosen = config(num_gpu_blocks_override=34, watermark=0.0, enable_prefix_caching=True)

    manager = BlockSpaceManager(16, 20, 0, watermark=0.0, enable_caching=True)
    scheduler = SchedulerV0(
        manager, max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096
    )
    for index in range(2):
        scheduler.add(work.request(index))
    first = scheduler.schedule()
    scheduler.commit(first)
    second = scheduler.schedule()
    result, _, _ = run(work, chosen)

    assert [e.request.request_id for e in first.scheduled] == [0]
    assert [e.request.request_id for e in second.scheduled] == [0]
    assert second.refused is not None
    assert second.refused.num_needed_blocks == 17
    assert cached(result)[1] >= 240  # with room for all 17, nearly all is a hit


def test_prompts_below_a_block_never_hit() -> None:
    """500-token prompts in blocks of 528 were never cached; here 200 in 256 (#40696)."""
    work = trace(*[request([(1, 200)], 4, at_s=i) for i in range(30)])

    result, summary, found = run(work, config(block_size=256, enable_prefix_caching=True))

    assert summary["prefix_cache"]["hit_rate"] == 0
    assert {record.num_shared_tokens for record in result.requests} == {0, 200}
    assert "prefixes_below_a_block" in found


def test_generated_tokens_are_not_found_in_a_later_prompt() -> None:
    """v0 names prompt and output apart: the next turn hits the old prompt (#39321)."""
    first = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 80),),
        num_prompt_tokens=80,
        outputs=((2, 64),),
    )
    turn = Request(
        request_id=1,
        arrival_ns=5 * S,
        prompt=((1, 80), (2, 63), (3, 20)),
        num_prompt_tokens=163,
        outputs=((4, 8),),
    )

    result, _, _ = run(
        Workload.from_requests([first, turn]), config(enable_prefix_caching=True)
    )

    assert cached(result) == [0, 80]


def test_one_large_request_flushes_its_neighbours() -> None:
    """Four chats that come again find nothing; evictions are regretted (#24394)."""
    chats = [request([(i, 64)], 1, at_s=i) for i in range(4)]
    again = [request([(i, 64)], 1, at_s=20 + i) for i in range(4)]
    chosen = config(num_gpu_blocks_override=64, watermark=0.0, enable_prefix_caching=True)

    _, calm, _ = run(trace(*chats, *again), chosen)
    result, flushed, _ = run(
        trace(*chats, request([(99, 63 * 16)], 1, at_s=10), *again), chosen
    )

    assert calm["waste"]["regretted_evictions"] == 0
    assert calm["prefix_cache"]["hit_tokens"] == 4 * 48
    assert flushed["waste"]["regretted_evictions"] > 0
    assert sum(cached(result)) < 4 * 48


# -- limits ------------------------------------------------------------------------------


def test_preempted_request_beyond_a_step_is_not_lost_silently() -> None:
    """Grown past the tokens of a step it cannot be recomputed; it says so (#1934)."""
    work = trace(*[request([(i, 60)], 40) for i in range(3)])
    chosen = config(
        num_gpu_blocks_override=12,
        max_model_len=64,
        max_num_batched_tokens=64,
        max_num_seqs=8,
    )

    result, summary, _ = run(work, chosen)

    counts = summary["counts"]
    assert counts["finished"] + counts["aborted"] + counts["rejected"] == 3
    assert all(r.reason for r in result.requests if r.status is not FINISHED)
    assert all(r.num_output_tokens == 4 for r in result.requests if r.status is FINISHED)


def test_head_of_the_queue_blocks_those_who_would_fit() -> None:
    """A large prompt waits for blocks, and a small one behind it waits too (#31731)."""
    work = trace(
        request([(1, 320)], 400),
        request([(2, 800)], 4, at_s=0.1),
        request([(3, 16)], 4, at_s=0.2),
    )

    result, _, _ = run(work, config(num_gpu_blocks_override=64, watermark=0.0))

    waited = head_of_line_s(
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
        16,
    )
    assert waited[:2].tolist() == [0, 0]
    queue = [(r.first_scheduled_ns or 0) - r.arrival_ns for r in result.requests]
    assert 0.5 < waited[2] <= queue[2] / S


def test_a_second_replay_in_one_process_is_the_first() -> None:
    """Nothing is left of a run that could change the next (#40244)."""
    work = trace(*[request([(i % 3, 100)], 80) for i in range(20)])
    chosen = config(num_gpu_blocks_override=40, enable_prefix_caching=True)

    first, second = run(work, chosen), run(work, chosen)

    assert first[0].requests == second[0].requests
    assert first[0].steps == second[0].steps


def test_a_single_block_serves_only_what_fits() -> None:
    """One block of 16 refuses a prompt of 17 tokens and runs one of 8 (#27181)."""
    work = trace(request([(1, 17)], 4), request([(2, 8)], 4))

    result, _, _ = run(work, config(num_gpu_blocks_override=1, watermark=0.0))

    assert statuses(result) == [REJECTED, FINISHED]


# -- time --------------------------------------------------------------------------------


def test_caching_without_sharing_changes_nothing_and_says_so() -> None:
    """Unique prompts are served alike with caching on and off (#2762)."""
    work = trace(*[request([(i, 300)], 60, at_s=0.05 * i) for i in range(40)])

    _, off, _ = run(work, config())
    _, on, found = run(work, config(enable_prefix_caching=True))

    assert on["latency_s"] == off["latency_s"]
    assert on["prefix_cache"]["hit_rate"] == 0
    assert "nothing_shared" in found


def test_hits_do_not_help_who_waits_in_the_queue() -> None:
    """94 % hits with a queue: the finding names waiting, not computing (#8223)."""
    work = trace(*[request([(1, 3072)], 180, at_s=i // 16 * 4) for i in range(96)])

    chosen = config(enable_prefix_caching=True, max_num_seqs=8)
    _, summary, found = run(work, chosen)

    latency = summary["latency_s"]
    assert summary["prefix_cache"]["hit_rate"] > 0.9
    assert latency["queue"]["mean"] > 0.5 * latency["ttft"]["mean"]
    assert "requests waited" in found["not_kv_bound"].message
    assert found["not_kv_bound"].advice.startswith("--max-num-seqs 16")


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_blocks_waste_the_rest_of_the_last_one(block_size: int) -> None:
    """Fragmentation is what a last block does not hold, more for larger ones (#14319)."""
    work = trace(*[request([(i, 97)], 1) for i in range(20)])

    _, summary, _ = run(work, config(block_size=block_size))

    blocks = -(-97 // block_size)
    assert summary["kv_cache"]["fragmentation"] == pytest.approx(
        1 - 97 / (blocks * block_size)
    )


def test_smaller_chunks_shorten_gaps_and_delay_first_tokens() -> None:
    """Behind four long prompts; v0 serves them first, whatever the chunk (#37308)."""
    long = [request([(i, 2048)], 8) for i in range(4)]
    short = [request([(10 + i, 128)], 8, at_s=0.02 * (1 + i)) for i in range(2)]

    def served(chunk: int) -> tuple[float, int]:
        chosen = config(enable_chunked_prefill=True, max_num_batched_tokens=chunk)
        result, summary, _ = run(trace(*long, *short), chosen)
        ttft = [(r.first_token_ns or 0) - r.arrival_ns for r in result.requests[4:]]
        return summary["latency_s"]["itl"]["max"], max(ttft)

    (small_gap, small_ttft), (large_gap, large_ttft) = served(256), served(2048)
    assert small_gap < large_gap
    assert small_ttft > large_ttft


def test_a_hole_in_a_prefix_ends_the_hit() -> None:
    """Blocks behind an evicted one are cached, and of no use (LMCache 443)."""
    manager = BlockSpaceManager(16, 8, 0, watermark=0.0, enable_caching=True)
    scheduler = SchedulerV0(
        manager, max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096
    )
    work = trace(request([(1, 64)], 1), request([(1, 64)], 1))
    scheduler.add(work.request(0))
    first = scheduler.schedule()
    (blocks,) = manager.block_tables.values()
    hole = blocks[1]
    scheduler.commit(first)
    hole.computed = False  # as if it had been given up and computed by nobody since

    scheduler.add(work.request(1))
    (entry,) = scheduler.schedule().scheduled

    assert entry.num_cached_tokens == 16


def test_more_sequences_than_blocks_bring_preemptions() -> None:
    """Raising max_num_seqs pays until preemptions start, and those count (#10709)."""
    work = trace(*[request([(i, 64)], 400) for i in range(40)])

    def counts(max_num_seqs: int) -> int:
        chosen = config(num_gpu_blocks_override=300, max_num_seqs=max_num_seqs)
        return int(run(work, chosen)[1]["counts"]["preemptions"])

    assert [counts(n) > 0 for n in (4, 8, 32, 64)] == [False, False, True, True]


def test_time_per_token_rises_with_the_batch() -> None:
    """Twice the sequences in a batch never make a token faster (#17598)."""
    work = trace(*[request([(i, 100)], 100) for i in range(64)])

    tpot = [
        run(work, config(max_num_seqs=n))[1]["latency_s"]["tpot"]["p50"]
        for n in (1, 4, 16, 64)
    ]

    assert tpot == sorted(tpot)
    assert tpot[0] < tpot[-1]


def test_a_limit_of_sequences_is_named_when_blocks_are_free() -> None:
    """Requests wait at a tenth of the cache: max_num_seqs is named (#11517)."""
    work = trace(*[request([(i, 100)], 200) for i in range(40)])

    _, summary, found = run(work, config(max_num_seqs=4))

    assert summary["kv_cache"]["peak_usage"] < 0.1
    assert "--max-num-seqs" in found["not_kv_bound"].advice


def test_swapping_costs_what_the_bus_takes() -> None:
    """32 blocks of 2 MiB, a prompt of 512 tokens, take 2.7 ms at 25 GB/s (#13073)."""
    gpu = load_gpu("H100-80GB")
    step_time = RooflineStepTime(load_model("Llama-3.1-8B"), gpu)

    swap_ms = step_time.swap_fs(BatchShape(0, 0, 0, 0, 0, 32)) / FS_PER_NS / 1e6

    pcie_gb_per_s = gpu.known_rates.pcie_gb_per_s
    bytes_ms = 32 * 2**21 / (pcie_gb_per_s * 1e9) * 1e3
    assert bytes_ms * pcie_gb_per_s / 25 == pytest.approx(2.68, abs=0.01)
    assert swap_ms > bytes_ms


def test_an_infinite_rate_sends_all_at_once() -> None:
    """At rate inf every request is there at time 0 (#16615)."""
    arrivals = draw_arrivals_ns(50, float("inf"), 1.0, np.random.default_rng(0))

    assert arrivals.tolist() == [0] * 50


def test_every_case_ends() -> None:
    """Eight samples where a step may hold four: the run ends and names them (#7878)."""
    result, _, found = run(trace(request([(1, 10)], *[5] * 8)), config(max_num_seqs=4))

    assert result.outcome.ending is Ending.STUCK
    assert "#0" in found["no_progress"].message
