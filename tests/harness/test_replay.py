"""Tests for :mod:`harness.replay`: whole runs, their records and findings."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.config import EngineConfig, resolve_config
from harness.replay import RunResult, max_barren_calls, replay
from harness.request import Request
from harness.timing import build_step_time, config_overhead
from harness.traces import open_trace
from harness.workload import Workload
from profiles.gpu import load_gpu
from profiles.gpu_profile import Calibration
from profiles.step_time import RooflineStepTime
from results.columns import Columns
from results.findings import Finding, find
from results.latency import request_latency
from results.queueing import queue_trend
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, RunInfo
from results.waste import head_of_line_s

CHAT = Path(__file__).resolve().parents[2] / "examples" / "chat_1000.jsonl"


def config(**knobs: Any) -> EngineConfig:
    """Resolve for a small pool on an H100."""
    defaults = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "max_model_len": 4096}
    return resolve_config(**(defaults | {"policy": "v0"} | knobs))


def workload(*shapes: tuple[int, list[int]], gap_ns: int = 0) -> Workload:
    """Make requests of ``(prompt tokens, output tokens of each sample)``."""
    requests = [
        Request(
            request_id=i,
            arrival_ns=i * gap_ns,
            prompt=((i, num_tokens),),
            num_prompt_tokens=num_tokens,
            outputs=tuple((10_000 + 10 * i + k, n) for k, n in enumerate(outputs)),
        )
        for i, (num_tokens, outputs) in enumerate(shapes)
    ]
    return Workload.from_requests(requests)


def run(
    workload: Workload, chosen: EngineConfig, **settings: Any
) -> tuple[RunResult, dict[str, Finding]]:
    """Replay; the findings by code."""
    result = replay(workload, chosen, **settings)
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy=chosen.policy,
        config=chosen.to_dict() | {"max_concurrency": settings.get("max_concurrency")},
        trace={"num_requests": len(workload), "has_sharing": workload.has_sharing},
        outcome=result.outcome,
    )
    requests = Columns.of(RequestRecord, result.requests)
    steps = Columns.of(StepRecord, result.steps)
    return result, {f.code: f for f in find(info, requests, steps)}


def is_complete(result: RunResult) -> bool:
    """Every request left in its own way."""
    return result.outcome.ending is Ending.COMPLETE


def statuses(result: RunResult) -> list[RequestStatus]:
    """How each request ended."""
    return [record.status for record in result.requests]


def test_every_request_is_accounted_for() -> None:
    """The bundled trace finishes whole, under checks, with all its tokens."""
    trace = open_trace(CHAT)

    small = config(enable_prefix_caching=True, num_gpu_blocks_override=1500)
    result = replay(trace, small, check=True)

    assert is_complete(result)
    assert set(statuses(result)) == {RequestStatus.FINISHED}
    assert [r.num_output_tokens for r in result.requests] == trace.output_tokens.tolist()
    assert [r.num_prompt_tokens for r in result.requests] == trace.input_tokens.tolist()


def test_times_of_a_request_are_in_order() -> None:
    """Arrival, first batch, first token and end follow one another in every record."""
    result = replay(open_trace(CHAT), config(num_gpu_blocks_override=600))

    for record in result.requests:
        assert record.first_scheduled_ns is not None
        assert record.first_token_ns is not None
        assert record.finished_ns is not None
        assert record.arrival_ns < record.queued_ns <= record.first_scheduled_ns
        assert record.first_scheduled_ns < record.first_token_ns
        assert record.first_token_ns <= record.finished_ns


def test_steps_follow_one_another() -> None:
    """No two stretches overlap, and each is as long as its steps."""
    result = replay(open_trace(CHAT), config())

    ends = [0] + [step.end_ns for step in result.steps]
    assert all(
        step.start_ns >= end for step, end in zip(result.steps, ends, strict=False)
    )
    for step in result.steps:
        mean_ns = (step.first_step_ns + step.last_step_ns) / 2
        length_ns = step.end_ns - step.start_ns
        assert length_ns == pytest.approx(mean_ns * step.num_steps, abs=step.num_steps)


def test_same_run_gives_the_same_records() -> None:
    """Two runs of one trace and configuration agree in every field."""
    small = config(num_gpu_blocks_override=700)
    first, second = (replay(open_trace(CHAT), small) for _ in range(2))

    assert [asdict(r) for r in first.requests] == [asdict(r) for r in second.requests]
    assert [asdict(s) for s in first.steps] == [asdict(s) for s in second.steps]


def test_one_request_takes_as_long_as_its_steps() -> None:
    """Alone, a request's E2E is its prefill and its decodes, nothing else."""
    result = replay(workload((100, [11])), config())
    (record,) = result.requests

    assert record.finished_ns == result.steps[-1].end_ns
    assert record.first_token_ns == result.steps[0].end_ns
    assert sum(step.num_steps for step in result.steps) == 11
    assert record.max_sample_tokens == 11


def test_types_of_the_model_are_those_of_its_step_times() -> None:
    """A decode reads half of a cache in fp8, and takes so much less time."""
    long = workload((4000, [50]))
    pools = [
        config(num_gpu_blocks_override=500, kv_cache_dtype=kv) for kv in (None, "fp8")
    ]

    (whole,), (half,) = (run(long, pool)[0].requests for pool in pools)

    assert whole.finished_ns is not None
    assert half.finished_ns is not None
    assert half.finished_ns < whole.finished_ns


def test_request_larger_than_the_pool_is_a_finding() -> None:
    """It is rejected with its figures, and the other request finishes."""
    result, found = run(
        workload((176, [4]), (16, [4])), config(num_gpu_blocks_override=10)
    )

    assert statuses(result) == [RequestStatus.REJECTED, RequestStatus.FINISHED]
    finding = found["exceeds_kv_capacity"]
    assert "needs 12 blocks at its full length" in finding.message
    assert "the pool has 10" in finding.message


def test_request_that_outgrows_the_pool_is_aborted_with_its_tokens() -> None:
    """It ran, so it is not rejected; the finding speaks of the length it came to."""
    result, found = run(workload((100, [200])), config(num_gpu_blocks_override=8))

    (record,) = result.requests
    assert record.status is RequestStatus.ABORTED
    assert record.num_output_tokens == 29
    finding = found["exceeds_kv_capacity"]
    assert "came to 129 tokens, and the largest needs 19 blocks" in finding.message


@pytest.mark.parametrize("chunked", [False, True])
def test_prompt_longer_than_the_model_is_refused_at_the_door(chunked: bool) -> None:
    """However prompts are cut, one beyond max_model_len never runs."""
    small = config(
        max_model_len=1000, enable_chunked_prefill=chunked, max_num_batched_tokens=1000
    )

    result, found = run(workload((5000, [3]), (1000, [3]), (10, [3])), small)

    assert statuses(result)[0] is RequestStatus.REJECTED
    assert statuses(result)[1:] == [RequestStatus.FINISHED] * 2
    assert "prompt_too_long" in found


def test_recomputed_tokens_are_those_computed_before() -> None:
    """Each preemption costs what had been computed, and nothing more."""
    result = replay(workload((60, [40]), (60, [40])), config(num_gpu_blocks_override=10))

    computed = sum(step.num_prefill_tokens for step in result.steps)
    num_preemptions = sum(record.num_preemptions for record in result.requests)
    num_again = sum(record.num_recomputed_tokens for record in result.requests)
    assert num_preemptions > 0
    assert sum(step.num_recomputed_tokens for step in result.steps) == num_again
    # a recomputing prefill also computes the newest token, which no step had computed
    assert computed == 60 + 60 + num_again + num_preemptions


def test_swap_space_that_is_short_is_sized_from_the_largest_group() -> None:
    """A group of 50 samples of 600 tokens needs 15 GiB of 2 MiB-per-16-token blocks."""
    shape = (30, [600] * 50)
    small = config(num_gpu_blocks_override=500, swap_space=0.5)

    result, found = run(workload(shape, (30, [5])), small)

    assert RequestStatus.ABORTED in statuses(result)
    finding = found["swap_space_short"]
    # (30 + 600) / 16 = 40 blocks a sample, the first shared: 1 + 50 * 39 of 2 MiB each
    assert "1,951 blocks, 3.8 GiB" in finding.message
    assert finding.advice == "--swap-space 4 for that one"


def test_single_samples_never_ask_for_swap_space() -> None:
    """The same overload with n = 1 is recomputed, and swap space is no matter."""
    shapes = [(30, [600])] * 20
    small = config(num_gpu_blocks_override=100, swap_space=0)

    result, found = run(workload(*shapes), small)

    assert is_complete(result)
    assert sum(r.num_preemptions for r in result.requests) > 0
    assert "swap_space_short" not in found


def test_run_that_cannot_progress_ends_and_names_who_waits() -> None:
    """A request for more samples than a step may hold ends the run, not hangs it."""
    result, found = run(workload((10, [5] * 8), (10, [5])), config(max_num_seqs=4))

    assert not is_complete(result)
    assert statuses(result) == [RequestStatus.FAILED, RequestStatus.FAILED]
    finding = found["no_progress"]
    assert "2 waiting (#0, #1)" in finding.message


def test_requests_that_never_arrived_are_recorded() -> None:
    """When a run breaks off, requests still to come are there, with the reason."""
    shapes: list[tuple[int, list[int]]] = [(10, [5] * 8), (10, [5])]
    waiting = workload(*shapes)
    follows = Workload.from_requests(
        [waiting.request(0), waiting.request(1)], parent=[-1, 0]
    )

    result = replay(follows, config(max_num_seqs=4))

    assert [record.reason for record in result.requests] == [
        "nothing could progress",
        "nothing could progress before it arrived",
    ]


def test_requests_that_only_preempt_each_other_end_the_run() -> None:
    """A prompt that fills the pool in chunks preempts itself for ever in vLLM."""
    small = config(
        num_gpu_blocks_override=8,
        max_model_len=128,
        enable_chunked_prefill=True,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        watermark=0.0,
    )

    result, found = run(workload((128, [4])), small)

    assert not is_complete(result)
    assert "no_progress" in found


def test_step_over_the_budget_ends_the_run_where_vllm_dies() -> None:
    """Chunked prefill with n > 1 can trip vLLM's own assertion; a finding says so."""
    small = config(
        enable_chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=16
    )

    result, found = run(workload((4, [100] * 8), (100, [4]), gap_ns=20_000_000), small)

    assert not is_complete(result)
    assert "vllm_would_die" in found
    assert "blocks_lost" not in found
    assert {r.reason for r in result.requests} == {"the engine died: vllm_assertion"}


def test_outputs_cut_at_the_model_length_are_counted() -> None:
    """A request that reaches max_model_len ends there, and its tokens say so."""
    result, found = run(workload((60, [100])), config(max_model_len=64))

    assert result.requests[0].num_output_tokens == 4
    assert "outputs_cut" in found


def test_hits_count_once_and_recomputation_apart() -> None:
    """Unique prompts have no hits at first admission, whatever preemption brings."""
    shapes = [(200, [300])] * 12
    small = config(num_gpu_blocks_override=120, enable_prefix_caching=True)

    result = replay(workload(*shapes), small)

    assert sum(r.num_preemptions for r in result.requests) > 0
    assert sum(r.num_cached_tokens for r in result.requests) == 0
    assert sum(r.num_recompute_cached_tokens for r in result.requests) > 0


@pytest.mark.parametrize("chunked", [False, True])
def test_hits_save_what_they_count(chunked: bool) -> None:
    """Prompt tokens are either computed or hit, with chunked prefill and without."""
    first = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 2000),),
        num_prompt_tokens=2000,
        outputs=((7, 2),),
    )
    again = replace(first, request_id=1, arrival_ns=10**10, outputs=((8, 2),))
    chosen = config(
        enable_prefix_caching=True,
        enable_chunked_prefill=chunked,
        max_num_batched_tokens=512 if chunked else None,
    )

    result = replay(Workload.from_requests([first, again]), chosen)

    hits = [record.num_cached_tokens for record in result.requests]
    computed = sum(step.num_prefill_tokens for step in result.steps)
    assert hits[0] == 0
    assert hits[1] > 1500
    assert sum(hits) + computed == 4000
    assert sum(step.num_cached_tokens for step in result.steps) == sum(hits)


def test_chunk_that_is_cached_whole_still_computes_a_token() -> None:
    """Every chunk of a prefill computes at least one token, and the sums agree."""
    first = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 1000),),
        num_prompt_tokens=1000,
        outputs=((7, 2),),
    )
    again = replace(first, request_id=1, arrival_ns=10**10, outputs=((8, 2),))
    chosen = config(
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=256,
    )

    result = replay(Workload.from_requests([first, again]), chosen)

    prefills = [step for step in result.steps if step.num_prefill_seqs]
    # 1,000 tokens are 62 full blocks; all but the last full one are marked computed
    assert [s.num_cached_tokens for s in prefills[4:]] == [255, 255, 255, 208]
    assert [s.num_prefill_tokens for s in prefills[4:]] == [1, 1, 1, 24]


def test_closed_loop_keeps_so_many_outstanding() -> None:
    """With a concurrency of two, never more than two requests are in the engine."""
    result = replay(workload(*[(50, [20])] * 9), config(), max_concurrency=2)

    assert is_complete(result)
    most = max(s.num_running + s.num_waiting + s.num_swapped for s in result.steps)
    assert most == 2


def clock(chosen: EngineConfig, request_ns: int) -> RooflineStepTime:
    """The configuration's step times on a GPU whose server was measured."""
    measured = Calibration(source="a test", overhead={"request_ns": request_ns})
    gpu = replace(load_gpu(chosen.gpu), calibration=measured)
    return build_step_time(chosen, gpu=gpu)


@pytest.mark.parametrize("policy", ["v0", "v1"])
def test_a_request_alone_waits_for_the_server_and_its_step(policy: str) -> None:
    """TTFT is what passes outside the engine and the first step; no time is a queue's."""
    chosen = config(policy=policy, vllm_version=None)

    result = replay(workload((100, [5])), chosen)

    (record,), first = result.requests, result.steps[0]
    entry_ns = build_step_time(chosen).overhead.request_ns
    assert record.first_token_ns is not None
    assert entry_ns > 0
    assert record.first_token_ns - record.arrival_ns == entry_ns + first.first_step_ns
    assert record.queued_ns == record.first_scheduled_ns == entry_ns
    requests = Columns.of(RequestRecord, result.requests)
    assert request_latency(requests).queue_s.tolist() == [0]


def test_step_times_of_the_caller_take_the_place_of_the_configurations() -> None:
    """A run with them enters as they say, and each of its five steps lasts longer."""
    chosen = config()
    own = config_overhead(chosen)
    slower = replace(own, request_ns=123, step_ns=own.step_ns + 7_000_000)
    given = build_step_time(chosen, overhead=slower)

    (record,) = replay(workload((100, [5])), chosen, step_time=given).requests
    (other,) = replay(workload((100, [5])), chosen).requests

    assert (record.arrival_ns, record.queued_ns) == (0, 123)
    assert other.queued_ns == own.request_ns
    lasted_ns, before_ns = (
        [(end_ns or 0) - r.queued_ns for end_ns in (r.first_token_ns, r.finished_ns)]
        for r in (record, other)
    )
    assert lasted_ns == [before_ns[0] + 7_000_000, before_ns[1] + 5 * 7_000_000]


def test_a_place_of_a_closed_loop_is_empty_until_the_next_has_come_in() -> None:
    """With one place nothing runs between an end and the next request's queueing."""
    chosen, entry_ns = config(), 50_000_000

    result = replay(
        workload(*[(50, [20])] * 4),
        chosen,
        step_time=clock(chosen, entry_ns),
        max_concurrency=1,
    )

    starts_ns = [record.first_scheduled_ns for record in result.requests]
    ends_ns = [0, *(record.finished_ns or 0 for record in result.requests)]
    assert [record.arrival_ns for record in result.requests] == ends_ns[:-1]
    assert starts_ns == [end_ns + entry_ns for end_ns in ends_ns[:-1]]
    for step in result.steps:
        is_idle = [end <= step.start_ns < end + entry_ns for end in ends_ns[:-1]]
        assert not any(is_idle)


def test_a_request_on_its_way_does_not_interrupt_the_steps() -> None:
    """One stretch ends where the scheduler gets it, not where it arrives."""
    chosen = config()
    gap_ns, entry_ns = 20_000_000, 200_000_000

    result = replay(
        workload((50, [300]), (50, [2]), gap_ns=gap_ns),
        chosen,
        step_time=clock(chosen, entry_ns),
    )

    prefill, decodes = result.steps[:2]
    second = result.requests[1]
    assert prefill.start_ns == entry_ns
    assert decodes.num_steps > 1
    assert second.queued_ns == gap_ns + entry_ns
    assert decodes.end_ns - decodes.last_step_ns < second.queued_ns <= decodes.end_ns
    assert second.first_scheduled_ns == decodes.end_ns


def test_requests_never_sent_have_not_waited() -> None:
    """Stopped in a closed loop, of 60 planned at once only the second could wait."""
    turns = iter(range(10_000))

    result = replay(
        workload((50, [90]), (120, [30]), *[(10, [5])] * 58),
        config(num_gpu_blocks_override=10, max_model_len=160),
        max_concurrency=2,
        is_stopped=lambda: next(turns) > 0,
    )

    requests = Columns.of(RequestRecord, result.requests)
    steps = Columns.of(StepRecord, result.steps)
    never_sent = requests.is_equal("reason", "interrupted before it arrived")
    assert result.outcome.ending is Ending.INTERRUPTED
    assert never_sent.tolist() == [False] * 2 + [True] * 58
    assert (steps["num_head_blocks"] > 0).any()
    assert (requests["arrival_ns"][never_sent] == steps["end_ns"].max()).all()
    assert not head_of_line_s(requests, steps, 16)[never_sent].any()
    assert queue_trend(requests, steps) is None


@pytest.mark.parametrize(("gap_ns", "is_over"), [(10**8, True), (10**10, False)])
def test_arrivals_faster_than_service_are_a_finding(gap_ns: int, is_over: bool) -> None:
    """A queue that drains long after the last arrival says so; a light load does not."""
    shapes = [(4000, [90])] * (700 if is_over else 10)

    result, found = run(
        workload(*shapes, gap_ns=gap_ns),
        config(num_gpu_blocks_override=600, max_model_len=8192),
    )

    assert is_complete(result)
    assert ("overloaded" in found) == is_over


def test_progress_is_told_as_requests_leave() -> None:
    """The caller hears how many are done, up to all of them."""
    heard: list[tuple[int, int]] = []

    replay(
        workload(*[(50, [20])] * 9, gap_ns=10**9),
        config(),
        on_progress=lambda done, total: heard.append((done, total)),
    )

    assert heard[-1] == (9, 9)
    assert heard == sorted(heard)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "num_requests", "knobs"),
    [
        ("mooncake/conversation_trace.jsonl", 12_031, {"max_model_len": None}),
        ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv", 19_366, {}),
        ("azure_llm_2023/AzureLLMInferenceTrace_code.csv", 8_819, {}),
    ],
)
def test_real_traces_finish(
    data_dir: Path, name: str, num_requests: int, knobs: dict[str, Any]
) -> None:
    """A whole production trace runs to its end and leaves every block free."""
    trace = open_trace(data_dir / "traces" / name)
    limits = {"max_model_len": 16_384} | knobs

    result = replay(trace, config(enable_prefix_caching=True, **limits))

    assert is_complete(result)
    assert len(result.requests) == num_requests
    assert set(statuses(result)) == {RequestStatus.FINISHED}


class Pages:
    """A journal in memory: what each request's row was last, and all steps."""

    def __init__(self) -> None:
        self.requests: dict[int, dict[str, Any]] = {}
        self.steps: list[dict[str, Any]] = []
        self.num_entries = 0

    def append(
        self, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
    ) -> None:
        self.requests |= {r.request_id: asdict(r) for r in requests}
        self.steps += [asdict(s) for s in steps]
        self.num_entries += 1


def test_journal_ends_with_the_rows_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries made after each turn add up to the records, request by request."""
    monkeypatch.setattr("harness.replay.JOURNAL_PERIOD_S", 0.0)
    pages = Pages()
    small = config(num_gpu_blocks_override=700, enable_prefix_caching=True)

    result = replay(open_trace(CHAT), small, journal=pages)

    assert pages.num_entries > len(result.steps)
    assert [pages.requests[r.request_id] for r in result.requests] == [
        asdict(r) for r in result.requests
    ]
    assert pages.steps == [asdict(s) for s in result.steps]


def test_run_that_is_stopped_keeps_what_it_has() -> None:
    """Asked to stop, it ends after the turn; every request has a row with the tokens."""
    turns = iter(range(10_000))

    result = replay(
        open_trace(CHAT), config(), journal=Pages(), is_stopped=lambda: next(turns) > 200
    )

    assert result.outcome.ending is Ending.INTERRUPTED
    assert len(result.requests) == 1000
    unfinished = [r for r in result.requests if r.status is RequestStatus.FAILED]
    running = [r for r in unfinished if r.first_token_ns is not None]
    assert {r.reason for r in running} == {"interrupted"}
    assert all(0 < r.num_output_tokens < r.num_requested_tokens for r in running)
    begun = [r for r in result.requests if r.first_token_ns is not None]
    decoded = sum(s.num_decode_seqs * s.num_steps for s in result.steps)
    assert sum(r.num_output_tokens for r in begun) == decoded + sum(r.n for r in begun)


def test_the_journal_has_all_rows_when_the_loop_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it was since the last entry, nothing waits for the saving."""
    monkeypatch.setattr("harness.replay.JOURNAL_PERIOD_S", 1e9)
    pages = Pages()

    result = replay(workload((100, [11]), (50, [7])), config(), journal=pages)

    assert pages.num_entries == 1
    assert pages.steps == [asdict(s) for s in result.steps]
    assert list(pages.requests.values()) == [asdict(r) for r in result.requests]


def test_the_journal_has_the_tokens_of_requests_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A killed run knows how far each request had come, also one that was preempted."""
    monkeypatch.setattr("harness.replay.JOURNAL_PERIOD_S", 0.0)
    pages = Pages()
    turns = iter(range(10_000))
    small = config(num_gpu_blocks_override=60)

    result = replay(
        workload(*[(50, [200])] * 12),
        small,
        journal=pages,
        is_stopped=lambda: next(turns) > 60,
    )

    assert sum(r.num_preemptions for r in result.requests) > 0
    assert [row["num_output_tokens"] for row in pages.requests.values()] == [
        r.num_output_tokens for r in result.requests
    ]
    assert sum(r.num_output_tokens > 0 for r in result.requests) > 3


def test_v0_shares_prompts_and_never_outputs() -> None:
    """What a prompt has in common with earlier ones ends where their outputs begin."""
    first = Request(
        request_id=0,
        arrival_ns=0,
        prompt=((1, 80),),
        num_prompt_tokens=80,
        outputs=((2, 64),),
    )
    turn = replace(
        first,
        arrival_ns=10**10,
        prompt=((1, 80), (2, 63)),
        num_prompt_tokens=143,
        outputs=((3, 4),),
    )

    result = replay(Workload.from_requests([first, turn]), config())

    assert [record.num_shared_tokens for record in result.requests] == [0, 80]


def test_a_token_without_a_slot_empties_none() -> None:
    """A sequence that sits a step out holds full blocks: none of their slots wait."""
    shapes = [(16, [2])] * 60 + [(1600, [1])]
    work = workload(*shapes, gap_ns=0)
    work.arrival_ns[60] = 1_000_000

    result = replay(work, config())

    (late,) = [s for s in result.steps if s.num_prefill_tokens == 1600]
    assert (late.num_used_blocks, late.num_used_tokens) == (160, 2560)


def test_who_is_swapped_out_does_not_wait() -> None:
    """The two queues are counted apart."""
    small = config(num_gpu_blocks_override=60, swap_space=1)

    result = replay(workload(*[(40, [150, 150])] * 5), small)

    swapped = [s for s in result.steps if s.num_swapped]
    assert {s.num_waiting for s in swapped} == {0}
    for step in result.steps:
        assert step.num_running + step.num_waiting + step.num_swapped <= 5


def test_a_run_outlasts_the_stores_of_a_burst() -> None:
    """Waiting for many copies to end, one after another, is no sign of being stuck."""
    config = resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        num_cpu_blocks_override=4000,
        max_num_batched_tokens=16_384,
        max_model_len=1024,
    )
    num_stores = 2 * max_barren_calls(config)  # of the burst, which one step computes
    made = [
        Request(
            request_id=number,
            arrival_ns=10**12 if number == num_stores else 0,
            prompt=((number, 48),),
            num_prompt_tokens=48,
            outputs=((1000 + number, 1),),
        )
        for number in range(num_stores + 1)
    ]

    result = replay(Workload.from_requests(made), config)

    assert result.outcome.ending is Ending.COMPLETE
