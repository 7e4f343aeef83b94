"""Tests for :mod:`harness.tuning.fact` and what it rests on: by hand, and by replays."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import EngineConfig, resolve_config
from harness.replay import replay
from harness.request import Request
from harness.traces import open_trace
from harness.tuning import fact, offload_worth
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import FIGURES, Row
from harness.tuning.fact import block_costs, facts_of, least_keeping_slo
from harness.tuning.objective import Objective
from harness.tuning.offload_worth import FS_PER_S, Prices, order_of_ends, stages, traffic
from harness.tuning.question import Answer
from harness.tuning.space import Space
from harness.tuning.swap_need import swap_need, worst_blocks
from harness.workload import Workload
from profiles.step_time import BatchShape
from results.comparison.arm import ArmRun
from results.goodput import Slo

MakeTrial = Callable[..., Any]
MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]

V0 = {"policy": "v0", "vllm_version": "0.6.3"}
GIB = 2**30
CHAT = Path(__file__).parents[3] / "examples" / "chat_1000.jsonl"


def config_of(**knobs: Any) -> EngineConfig:
    """Llama-3.1-8B on an H100: a token has 128 KiB in the cache."""
    given = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "max_model_len": 4096}
    return resolve_config(**{**given, "vllm_version": "0.32.0", **knobs})


def run_of(make_engine: MakeEngine, workload: Workload, **knobs: Any) -> ArmRun:
    """A replay of the requests."""
    (trial,) = make_engine(workload, **knobs).evaluate([{}])
    assert trial is not None
    assert trial.run is not None
    run: ArmRun = trial.run
    return run


# -- swap space --------------------------------------------------------------------------


def sampled(num: int, prompt: int, output: int, n: int, gap_s: float = 0.0) -> Workload:
    """Requests of ``n`` samples, none of which begin alike."""
    return Workload.from_requests(
        [
            Request(
                request_id=i,
                arrival_ns=int(i * gap_s * 1e9),
                prompt=((i, prompt),),
                num_prompt_tokens=prompt,
                outputs=tuple((1000 + 50 * i + k, output) for k in range(n)),
            )
            for i in range(num)
        ]
    )


@pytest.mark.parametrize(
    ("max_num_seqs", "blocks"),
    # 400 tokens are 25 full blocks; a sample has 13 of its own up to token 600.
    [(8, 25 + 8 * 13), (20, 2 * 129 + 65), (48, 6 * 129), (500, 6 * 129)],
)
def test_worst_swap_is_all_that_can_run_at_once(max_num_seqs: int, blocks: int) -> None:
    """A request has its prompt once, and each sample its output; the last in part."""
    workload = sampled(6, prompt=400, output=200, n=8)
    config = config_of(**V0, max_num_seqs=max_num_seqs)

    assert worst_blocks(workload, config) == blocks


def test_only_as_many_are_swapped_as_have_room_for_their_prompts() -> None:
    """Prompts of 25 blocks in a pool of 60: two at once, and two fifths of a third.

    With a cache they may share theirs, so that the pool bounds nothing.
    """
    workload = sampled(6, prompt=400, output=200, n=8)
    pool = {"num_gpu_blocks_override": 60, "max_model_len": 960}
    off = config_of(**V0, **pool, enable_prefix_caching=False)
    on = config_of(**V0, **pool, enable_prefix_caching=True)

    assert worst_blocks(workload, off) == 2 * 129 + 52
    assert worst_blocks(workload, on) == 6 * 129


def test_what_is_computed_again_is_not_swapped() -> None:
    """One sample alone, or all when told so; swapping can be forced."""
    one, several = sampled(3, 160, 160, n=1), sampled(3, 160, 160, n=2)
    recompute = config_of(**V0, preemption_mode="recompute")

    assert worst_blocks(one, config_of(**V0)) == 0
    assert worst_blocks(several, recompute) == 0
    assert worst_blocks(one, config_of(**V0, preemption_mode="swap")) == 3 * 20
    assert worst_blocks(several, config_of(**V0)) == 3 * 30


@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 90), st.integers(1, 5)),
        min_size=1,
        max_size=7,
    ),
    st.integers(5, 20),
)
def test_no_choice_of_requests_swaps_more_than_the_worst(
    shapes: list[tuple[int, int, int]], max_num_seqs: int
) -> None:
    """Whichever run at once: as many as fit, of any subset."""
    requests = [sampled(1, prompt, output, n).request(0) for prompt, output, n in shapes]
    config = config_of(**V0, max_num_seqs=max_num_seqs)
    worst = worst_blocks(Workload.from_requests(requests), config)
    swapped = [r for r in requests if r.n > 1]
    for size in range(len(swapped) + 1):
        for chosen in combinations(swapped, size):
            if sum(r.n for r in chosen) <= max_num_seqs:
                assert sum(r.num_demand_blocks(16) for r in chosen) <= worst


def test_swap_that_is_seen_is_what_the_steps_held(make_engine: MakeEngine) -> None:
    """The most of any step, in blocks and GiB, and never above the worst."""
    workload = sampled(20, prompt=400, output=200, n=8, gap_s=0.1)
    knobs = {**V0, "num_gpu_blocks_override": 400, "max_model_len": 2048}
    config = config_of(**knobs)

    need = swap_need(workload, config, run_of(make_engine, workload, **knobs))

    steps = replay(workload, config).steps
    assert need.seen_blocks is not None
    assert need.seen_blocks == max(steps.column("num_used_cpu_blocks"))
    assert need.seen_gib == need.seen_blocks * 2 / 1024  # 16 tokens of 128 KiB
    assert 0 < need.seen_blocks <= need.worst_blocks
    assert need.worst_gib == need.worst_blocks * 2 / 1024


# -- offloading --------------------------------------------------------------------------


class StraightTimes:
    """Steps and transfers that anybody can work out: microseconds."""

    def __init__(self, token_us: int, call_us: int, block_us: int) -> None:
        self._token_us, self._call_us, self._block_us = token_us, call_us, block_us

    def step_fs(self, shape: BatchShape) -> int:
        return 10**9 * (500 + self._token_us * shape.num_prefill_tokens)

    def transfer_fs(self, num_blocks: int, *, is_load: bool) -> int:
        return 10**9 * (self._call_us + self._block_us * num_blocks)


def priced(
    monkeypatch: pytest.MonkeyPatch, token_us: int, call_us: int, block_us: int
) -> Prices:
    """Prices of prompts of 1,600 tokens."""
    times = StraightTimes(token_us, call_us, block_us)
    monkeypatch.setattr(offload_worth, "build_step_time", lambda config: times)
    workload = sampled(3, prompt=1600, output=4, n=1)
    return Prices(workload, config_of(max_num_batched_tokens=1000))


@pytest.mark.parametrize(
    ("token_us", "call_us", "block_us", "tokens"),
    [
        (2, 0, 31, 16),  # a block is loaded in 31 us and computed in 32
        (2, 0, 33, 608),  # 38 blocks: 1,254 us, for 1,216 and the step that is spared
        (2, 100, 22, 176),  # 11 blocks: 342 us against 352; 10: 320 against 320
        (1, 5000, 20, None),
    ],
)
def test_crossover_is_where_loading_gets_quicker(
    monkeypatch: pytest.MonkeyPatch,
    token_us: int,
    call_us: int,
    block_us: int,
    tokens: int | None,
) -> None:
    """Than computing as many tokens of a prompt that takes two steps."""
    prices = priced(monkeypatch, token_us, call_us, block_us)

    assert prices.crossover_tokens() == tokens


def test_prices_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 1,600 tokens takes two steps, or one; copies go prompt by prompt."""
    prices = priced(monkeypatch, token_us=2, call_us=100, block_us=22)

    assert prices.compute_s(0) == pytest.approx((2 * 500 + 2 * 1600) / 1e6)
    assert prices.compute_s(800) == pytest.approx((500 + 2 * 800) / 1e6)
    assert prices.token_s() == pytest.approx(2e-6)
    assert prices.copies_s(250, is_load=True) == pytest.approx(
        2.5 * (100 + 22 * 100) / 1e6
    )


def test_a_token_less_saves_what_a_busy_engine_takes_for_it(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """The time of a replay that does nothing but prefill, for each of its tokens."""
    workload = sampled(40, prompt=3000, output=1, n=1)

    run = run_of(make_engine, workload)

    token_s = Prices(workload, config_of()).token_s()
    assert token_s == pytest.approx(run.summary["simulated_s"] / 120_000, rel=0.1)


@pytest.fixture(scope="module")
def returning(make_workload: MakeWorkload) -> Workload:
    """Return requests with 60 prefixes of 2,048 tokens: 15 GiB of them."""
    return make_workload(300, gap_s=0.1, prefix=2048, num_groups=60, prompt=40, output=8)


def test_a_tier_finds_what_its_stages_say(
    make_engine: MakeEngine, returning: Workload
) -> None:
    """Of 8, 16 and 24 GiB under a pool of 3: as replays find it, within a twentieth."""
    pool = {"kv_cache_gib": 3}
    config = config_of(**pool, kv_offloading_size=8)
    run = run_of(make_engine, returning, **pool)

    found = stages(returning, config, run, Prices(returning, config), {})

    hits = [run.summary["prefix_cache"]["hit_tokens"]]
    for size_gib in (8, 16, 24):
        tier = run_of(make_engine, returning, **pool, kv_offloading_size=size_gib)
        hits.append(tier.summary["prefix_cache"]["hit_tokens"])
    more = np.diff(hits)
    told = [stage.hit_tokens for stage in found] + [0] * 3
    assert [stage.size_gib for stage in found] == [
        8.0 * (i + 1) for i in range(len(found))
    ]
    assert told[:3] == pytest.approx(more, abs=0.05 * max(more))
    assert more[1] > 0


def test_a_tier_finds_what_its_stages_say_of_conversations(
    make_engine: MakeEngine,
) -> None:
    """Where outputs come back as prompts, in another order than the file's."""
    chat, pool = open_trace(CHAT), {"kv_cache_gib": 3}
    config = config_of(**pool, kv_offloading_size=8)
    run = run_of(make_engine, chat, **pool)
    with_tier = run_of(make_engine, chat, **pool, kv_offloading_size=8)

    first = stages(chat, config, run, Prices(chat, config), {})[0]

    hits = [each.summary["prefix_cache"]["hit_tokens"] for each in (run, with_tier)]
    assert first.hit_tokens == pytest.approx(hits[1] - hits[0], rel=0.03)


def test_what_a_replay_found_goes_before_what_is_expected(
    make_engine: MakeEngine, returning: Workload
) -> None:
    """A tier smaller than the pool finds what running requests keep off the GPU."""
    pool = {"kv_cache_gib": 9}
    config = config_of(**pool, kv_offloading_size=8)
    run = run_of(make_engine, returning, **pool)
    prices = Prices(returning, config)
    hits = run.summary["prefix_cache"]["hit_tokens"]

    expected = stages(returning, config, run, prices, {})
    found = stages(returning, config, run, prices, {0.0: hits, 8.0: hits + 1600})

    assert (expected[0].hit_tokens, expected[0].is_replayed) == (0, False)
    assert (found[0].hit_tokens, found[0].is_replayed) == (1600, True)
    assert [(each.from_gib, each.size_gib) for each in found[:2]] == [(0, 8), (8, 16)]
    assert sum(s.hit_tokens for s in found) == sum(s.hit_tokens for s in expected)


def test_a_stage_is_worth_its_tokens(
    returning: Workload, make_engine: MakeEngine
) -> None:
    """Seconds by the token, and copies by the block; nothing more ends the list."""
    config = config_of(kv_cache_gib=3, kv_offloading_size=8)
    prices = Prices(returning, config)

    run = run_of(make_engine, returning, kv_cache_gib=3)
    found = stages(returning, config, run, prices, {})

    for stage in found:
        assert stage.saved_s == stage.hit_tokens * prices.token_s()
        assert stage.load_s == prices.copies_s(stage.hit_tokens / 16, is_load=True)
    assert found[-1].size_gib * GIB >= 60 * 2048 * 128 * 1024
    assert len(found) < 4


def test_traffic_is_what_went_over_pcie(
    make_engine: MakeEngine, returning: Workload
) -> None:
    """Bytes of the blocks of 2 MiB; at about 50 GB/s, and no quicker."""
    pool = {"kv_cache_gib": 3}
    config = config_of(**pool, kv_offloading_size=16)
    run = run_of(make_engine, returning, **pool, kv_offloading_size=16)

    found = traffic(run, Prices(returning, config))

    counts = run.summary["counts"]
    assert found is not None
    assert found.load_gib == counts["offload_load_blocks"] * 2 / 1024
    assert found.store_gib == counts["offload_store_blocks"] * 2 / 1024
    for gib, seconds in (
        (found.load_gib, found.load_s),
        (found.store_gib, found.store_s),
    ):
        assert 1.0 <= seconds / (gib * GIB / 50.4e9) < 1.5
    assert (
        traffic(run_of(make_engine, returning, **pool), Prices(returning, config)) is None
    )


def test_turns_end_after_those_that_they_follow(make_trial: MakeTrial) -> None:
    """A turn comes its delay after an end; a request that does not end, as it came."""
    one = sampled(4, 16, 4, n=1, gap_s=1.0)
    workload = replace(
        one,
        parent=np.array([-1, 0, -1, -1]),
        delay_ns=np.array([0, 10 * 10**9, 0, 0]),
    )
    run = make_trial(ttft=[0.0] * 4).run
    run.samples.values["e2e"] = np.array([5.0, 1.0, 13.0, np.nan])

    # ends: 5, 5 + 10 + 1 = 16, 2 + 13 = 15, 3
    assert order_of_ends(workload, run).tolist() == [3, 0, 2, 1]


# -- what blocks cost --------------------------------------------------------------------


def test_copies_of_v0_take_what_its_steps_waited(make_engine: MakeEngine) -> None:
    """Swaps as the steps record them, and copies on write beside them."""
    workload = sampled(20, prompt=410, output=200, n=8, gap_s=0.1)
    knobs = {**V0, "num_gpu_blocks_override": 400, "max_model_len": 2048}
    config, run = config_of(**knobs), run_of(make_engine, workload, **knobs)

    found = block_costs(workload, config, run)

    counts = run.summary["counts"]
    swapped = counts["swap_in_blocks"] + counts["swap_out_blocks"]
    swap_s = sum(replay(workload, config).steps.column("swap_ns")) / 1e9
    written_s = counts["copy_on_write"] * 2 * 2 * 2**20 / 3.35e12  # read and written
    assert swapped > 0
    assert written_s > 0
    assert found["copied_gib"] == (swapped + counts["copy_on_write"]) * 2 / 1024
    assert swap_s + written_s <= found["copy_s"] < swap_s + 3 * written_s
    assert found["table_blocks"] == 20 * (25 + 8 * 14)


def test_blocks_of_twice_the_size_are_half_as_many(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """They find less, leave more slots empty, and are fewer to keep books of."""
    workload = make_workload(prefix=500)
    found = [
        block_costs(
            workload,
            config_of(block_size=size),
            run_of(make_engine, workload, block_size=size),
        )
        for size in (16, 64)
    ]

    small, large = found
    assert small["hit_tokens"] - large["hit_tokens"] == 36 * (496 - 448)
    assert small["fragmentation"] < large["fragmentation"]
    assert small["table_blocks"] == sum(
        -(-(r.num_prompt_tokens + r.outputs[0][1]) // 16)
        for r in map(workload.request, range(len(workload)))
    )
    assert small["copy_s"] == large["copy_s"] == 0


@pytest.mark.parametrize("part", [None, slice(3, 13)])
def test_costs_of_blocks_are_of_the_requests_that_were_searched(
    make_engine: MakeEngine, make_workload: MakeWorkload, part: slice | None
) -> None:
    """Of ten of the trace's forty where that was the stretch; the value stands by it."""
    engine = make_engine(make_workload())
    searched = engine.workload if part is None else engine.workload.select(part)
    run = run_of(make_engine, searched)
    answer = SimpleNamespace(
        knobs={"block_size": 16},
        evidence={"block_size": [replace(row(16, is_advised=True), run=run)]},
        question=SimpleNamespace(space=Space({"block_size": (16, 32)})),
        stretch=part,
    )

    (costs,) = facts_of(cast("Answer", answer), engine)["block_size"]["costs"]

    assert costs == block_costs(searched, config_of(), run) | {"value": 16}


# -- of each knob ------------------------------------------------------------------------


class Shared:
    """An engine in which a utilization keeps the SLO from somewhere on."""

    def __init__(self, make_trial: MakeTrial, workload: Workload, least: float) -> None:
        self.workload, self.max_concurrency = workload, None
        self.objective = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=1.0))
        self.tried: list[float] = []
        self.most = 99
        self._make_trial, self._least = make_trial, least

    def config(self, knobs: dict[str, float]) -> object | None:
        return None if knobs["gpu_memory_utilization"] < 0.3 else object()

    def is_ended(self) -> bool:
        return len(self.tried) > self.most

    def evaluate_under(self, cases: Sequence[Any], *_: float) -> list[Any]:
        value = cases[0][0]["gpu_memory_utilization"]
        self.tried.append(value)
        return [self._make_trial(good=[float(value >= self._least)])]


@pytest.mark.parametrize(
    "least", [0.2, 0.3, 0.32, 0.38, 0.45, 0.55, 0.65, 0.75, 0.85, 0.9]
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_the_least_memory_that_keeps_the_slo_is_found(
    make_trial: MakeTrial, make_workload: MakeWorkload, least: float, is_kept: bool
) -> None:
    """Of those that can start, in as many replays as halving takes."""
    values = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    name = "gpu_memory_utilization"
    answer = SimpleNamespace(
        knobs={name: 0.9},
        question=SimpleNamespace(space=Space({name: values}), utilization_step=None),
        advice=SimpleNamespace(trial=make_trial(good=[float(is_kept)])),
    )
    engine = Shared(make_trial, make_workload(), least)

    asked, stoppable = cast("Answer", answer), cast("TrialEngine", engine)

    found = least_keeping_slo(name, asked, stoppable)

    able = [value for value in values if value >= max(least, 0.3)]
    assert found == (able[0] if is_kept else None)
    assert len(engine.tried) <= 3
    engine.tried, engine.most = [], 0
    assert least_keeping_slo(name, asked, stoppable) is None


@pytest.mark.parametrize(
    ("advised", "least", "wanted"),
    [(0.6, 0.507, 0.51), (0.6, 0.2, 0.3), (0.6, 0.6, 0.6), (0.515, 0.512, 0.515)],
)
def test_it_is_found_to_a_hundredth_where_the_values_are_not_given(
    make_trial: MakeTrial,
    make_workload: MakeWorkload,
    advised: float,
    least: float,
    wanted: float,
) -> None:
    """What keeps it between two values of the space is less than either says."""
    name = "gpu_memory_utilization"
    answer = SimpleNamespace(
        knobs={name: advised},
        question=SimpleNamespace(
            space=Space({name: (0.2, 0.5, 0.9)}), utilization_step=0.01
        ),
        advice=SimpleNamespace(trial=make_trial(good=[1.0])),
    )
    engine = cast("TrialEngine", Shared(make_trial, make_workload(), least))

    assert least_keeping_slo(name, cast("Answer", answer), engine) == wanted


def row(value: Any, *, is_advised: bool = False, **figures: float | None) -> Row:
    """A row of evidence with these figures; others are None."""
    return Row(
        value=value,
        is_advised=is_advised,
        is_start=False,
        figures=dict.fromkeys(FIGURES) | figures,
        num_gpu_blocks=1,
        standing="worse",
        run=cast("ArmRun", object()),
    )


def test_trades_stand_beside_what_is_advised(make_trial: MakeTrial) -> None:
    """Shares of latencies for limits, differences for the watermark, None for neither."""
    limit = [
        row(32, ttft_mean=3.0, ttft_p99=6.0, tpot_mean=0.01, output_token_per_s=90.0),
        row(
            64,
            is_advised=True,
            ttft_mean=2.0,
            ttft_p99=None,
            tpot_mean=0.02,
            output_token_per_s=100.0,
        ),
        replace(row(128, ttft_mean=1.0), run=None),
    ]
    kept = [
        row(0.0, preemptions=12, queue_mean=1.5, ttft_mean=2.0),
        row(0.05, is_advised=True, preemptions=3, queue_mean=2.0, ttft_mean=2.5),
    ]
    names = ("max_num_seqs", "watermark")
    answer = SimpleNamespace(
        evidence={"max_num_seqs": limit, "watermark": kept},
        question=SimpleNamespace(space=Space(dict.fromkeys(names, (0, 1)))),
    )

    found = facts_of(cast("Answer", answer), cast("TrialEngine", None))

    (limited,), (free,) = (found[name]["trade"] for name in names)
    assert limited == {
        "value": 32,
        "ttft_mean": 0.5,
        "ttft_p99": None,
        "tpot_mean": -0.5,
        "output_token_per_s": pytest.approx(-0.1),
    }
    assert free == {"value": 0.0, "preemptions": 9, "queue_mean": -0.5, "ttft_mean": -0.5}


def test_a_point_buys_its_share_of_the_memory(
    make_engine: MakeEngine, make_trial: MakeTrial
) -> None:
    """As two configurations a few points apart have it."""
    name = "gpu_memory_utilization"
    answer = SimpleNamespace(
        knobs={name: 0.9},
        question=SimpleNamespace(space=Space({name: (0.8, 0.9)}), is_shared=False),
    )

    found = facts_of(cast("Answer", answer), make_engine())

    blocks = [config_of(gpu_memory_utilization=u).num_gpu_blocks for u in (0.8, 0.9)]
    per_point = found[name]["blocks_per_point"]
    assert per_point == pytest.approx((blocks[1] - blocks[0]) / 10, abs=0.2)
    assert set(found[name]) == {"blocks_per_point"}


def test_each_searched_knob_has_its_facts() -> None:
    """None is left out but those of which the replays say all there is."""
    bare = {"enable_prefix_caching", "enable_chunked_prefill"}
    from harness.tuning.space import CHOICES, CHOICES_V0, CHOICES_V1

    assert {*CHOICES, *CHOICES_V0, *CHOICES_V1} - bare == set(fact._MAKERS)
    assert FS_PER_S == 10**15
