"""Tests for :mod:`bench_cli.arm_plan`: which arms flags and ``--vary`` ask for."""

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bench_cli.arm_plan import ArmPlan, Replays
from bench_cli.commands.compare import compare
from bench_cli.engine_flags import EngineFlags
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.variation import ENGINE_KNOBS, LOAD_KNOBS, SIZE_KNOBS, parse_variation
from bench_cli.workload import SourceFlags, WorkloadFlags
from harness.errors import ConfigError, UsageError

Plan = Callable[..., list[ArmPlan]]
S = 1_000_000_000


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Return a planner over a trace of three requests, one a second: --vary to arms."""
    trace = tmp_path / "trace.jsonl"
    row = {"input_length": 40, "output_length": 2, "hash_ids": [1]}
    rows = [json.dumps({"timestamp": 1000 * i, **row}) for i in range(3)]
    trace.write_text("\n".join(rows))

    def plan(
        *vary: str,
        load: dict[str, Any] | None = None,
        has_baseline: bool = False,
        **flags: Any,
    ) -> list[ArmPlan]:
        engine = EngineFlags(**({"vllm_version": "0.32.0"} | flags))
        timing = WorkloadFlags(**(load or {}))
        replays = Replays(trace, engine, SourceFlags(), timing, vary)
        found = replays.variations(has_baseline=has_baseline)
        return replays.plan(found, has_baseline=has_baseline)

    return plan


def values_of(plans: list[ArmPlan], knob: str) -> list[Any]:
    """A knob of each arm's engine, as resolved."""
    return [getattr(plan.config, knob) for plan in plans]


def test_caching_off_and_on_is_the_default(plan: Plan) -> None:
    """Without --vary there are two arms, and the one without caching comes first."""
    plans = plan()

    assert [each.name for each in plans] == ["prefix caching off", "prefix caching on"]
    assert values_of(plans, "enable_prefix_caching") == [False, True]


def test_baseline_alone_is_compared_with_now(plan: Plan) -> None:
    """Beside a stored run, flags as they are make one arm."""
    (arm,) = plan(has_baseline=True, block_size=32)

    assert arm.name == "now"
    assert arm.config is not None
    assert arm.config.block_size == 32


def test_several_knobs_make_a_grid(plan: Plan) -> None:
    """Every combination is an arm; the last knob changes fastest, the first is first."""
    plans = plan("block_size=16,32", "enable_prefix_caching=on,off")

    assert [each.name for each in plans] == [
        "block_size=16 prefix caching on",
        "block_size=16 prefix caching off",
        "block_size=32 prefix caching on",
        "block_size=32 prefix caching off",
    ]
    assert values_of(plans, "block_size") == [16, 16, 32, 32]
    assert values_of(plans, "enable_prefix_caching") == [True, False, True, False]


@pytest.mark.parametrize(
    ("vary", "knob", "values"),
    [
        ("block_size=16..64", "block_size", [16, 32, 64]),
        ("max_num_seqs=100..300..100", "max_num_seqs", [100, 200, 300]),
        ("--max-num-seqs=8,4", "max_num_seqs", [8, 4]),
        ("kv_cache_gib=2..3..0.5", "kv_cache_gib", [2.0, 2.5, 3.0]),
        ("gpu_memory_utilization=0.8,0.9", "gpu_memory_utilization", [0.8, 0.9]),
        ("kv_offloading_size=0,4", "kv_offloading_size", [0.0, 4.0]),
        ("num_gpu_blocks_override=900,800", "num_gpu_blocks", [900, 800]),
        ("long_prefill_token_threshold=0,64", "long_prefill_token_threshold", [0, 64]),
        ("enforce_eager=TRUE,false", "enforce_eager", [True, False]),
        ("async_scheduling=on,off", "async_scheduling", [True, False]),
        ("policy=v1,v0", "policy", ["v1", "v0"]),
        ("gpu=H100-80GB,A100-80GB", "gpu", ["H100-80GB", "A100-80GB"]),
        ("scheduling_policy=fcfs,priority", "scheduling_policy", ["fcfs", "priority"]),
        ("kv_cache_dtype=auto,fp8", "kv_cache_dtype", ["auto", "fp8"]),
        ("tensor_parallel_size=1,2", "tensor_parallel_size", [1, 2]),
    ],
)
def test_knob_of_the_engine_takes_each_value(
    plan: Plan, vary: str, knob: str, values: list[Any]
) -> None:
    """Lists, ranges, switches and words arrive in the configuration, in their order."""
    version = None if knob == "policy" else "0.32.0"

    assert values_of(plan(vary, vllm_version=version), knob) == values


@pytest.mark.parametrize(
    ("vary", "values"),
    [
        ("watermark=0,0.02", [0.0, 0.02]),
        ("swap_space=4,0", [4.0, 0.0]),
        ("preemption_mode=swap,recompute", ["swap", "recompute"]),
    ],
)
def test_knob_of_v0_takes_each_value(plan: Plan, vary: str, values: list[Any]) -> None:
    """What only the old block manager has can be varied under it; 0 is a value."""
    plans = plan(vary, policy="v0", vllm_version=None)

    assert values_of(plans, vary.split("=")[0]) == values


@pytest.mark.parametrize(
    ("vary", "load", "arrivals_s"),
    [
        ("speedup=1,2x,0.5", {}, [[0, 1, 2], [0, 0.5, 1], [0, 2, 4]]),
        ("max_concurrency=1,2", {}, [[0, 1, 2]] * 2),
        ("request_rate=inf,1", {}, [[0, 0, 0], None]),
        ("seed=1,2", {"request_rate": "1"}, [None, None]),
        ("burstiness=1,0.5", {"request_rate": "1"}, [None, None]),
    ],
)
def test_knob_of_the_load_changes_the_times(
    plan: Plan, vary: str, load: dict[str, str], arrivals_s: list[list[float] | None]
) -> None:
    """Each arm has the requests at its own times, and one engine serves them all."""
    plans = plan(vary, load=load)

    times = [(each.workload.arrival_ns / S).tolist() for each in plans if each.workload]
    assert len(times) == len(arrivals_s)
    for found, expected in zip(times, arrivals_s, strict=True):
        assert expected is None or found == expected
    assert vary.startswith("max_concurrency") or times[0] != times[1]
    assert all(each.config == plans[0].config for each in plans)
    knob = vary.split("=")[0]
    timings = {getattr(each.timing, knob) for each in plans}
    assert len(timings) == len(plans)


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        (["bogus=1,2"], "cannot vary bogus; it can vary gpu_memory_utilization, "),
        (["block_size"], "cannot read 'block_size'"),
        (["block_size="], "cannot read"),
        (["block_size=16,,32"], "'' is none"),
        (["block_size=16,32,16"], "names a value twice"),
        (["watermark=0.1,0.10"], "names a value twice"),
        (["enable_prefix_caching=on,true"], "names a value twice"),
        (["speedup=1,1x"], "a value twice"),
        (["request_rate=4,240/min"], "a value twice"),
        (["speedup=1,fast"], "--speedup 2 or 0.5x"),
        (["policy=v0,"], "empty value"),
        (["max_concurrency=1,0"], "whole numbers from 1 here, and 0 is none"),
        (["enforce_eager=1,0"], "takes on or off here"),
        (["block_size=16,32", "block_size=64,128"], "names block_size twice"),
        (["block_size=16"], "makes one arm, which has nothing beside it"),
        (["block_size=16", "policy=v1"], "block_size=16 --vary policy=v1 makes one arm"),
        (["max_num_seqs=1..101..1"], "makes 101 arms, and 100 are the most"),
        (["max_num_seqs=1..11..1", "block_size=1..512"], "makes 110 arms"),
        (["seed=1,2"], "add --request-rate"),
        (["policy=v1,v9"], "unknown policy v9"),
        (["engine=sim,vllm"], "--engine vllm runs a real engine"),
    ],
)
def test_what_makes_no_arms_is_refused_in_words(
    plan: Plan, vary: list[str], words: str
) -> None:
    """The error names what was written and what could be."""
    with pytest.raises(UsageError) as caught:
        plan(*vary)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("vary", "flags", "load", "words"),
    [
        (
            ["block_size=16,32"],
            {"block_size": 16},
            {},
            "--block-size and --vary block_si",
        ),
        (["speedup=1,2"], {}, {"speedup": "2"}, "--speedup and --vary speedup both"),
        (["max_concurrency=1,2"], {}, {"max_concurrency": 3}, "leave one of them out"),
        (["watermark=0,0.1"], {"watermark": 0.0}, {}, "leave one of them out"),
        ([], {"enable_prefix_caching": True}, {}, "leave --[no-]enable-prefix-caching"),
        ([], {"enable_prefix_caching": False}, {}, "name with --vary what to compare"),
        (["policy=v0,v1"], {"vllm_version": None, "policy": "v0"}, {}, "both set it"),
    ],
)
def test_knob_is_set_in_one_place(
    plan: Plan,
    vary: list[str],
    flags: dict[str, Any],
    load: dict[str, Any],
    words: str,
) -> None:
    """A flag of the knob that is varied would have no effect, so it is refused."""
    with pytest.raises(UsageError) as caught:
        plan(*vary, load=load, **flags)

    assert words in str(caught.value)


def test_arm_that_cannot_start_says_why(plan: Plan) -> None:
    """It stays in its place, without configuration; the others are planned."""
    first, second, third = plan("block_size=16,24,32")

    assert second.name == "block_size=24"
    assert second.error.startswith("block_size is 24; it must be one of 1, 2, 4, 8, 16")
    assert (second.config, second.workload) == (None, None)
    assert values_of([first, third], "block_size") == [16, 32]
    assert not first.error
    assert not third.error


def test_knob_that_one_policy_lacks_stops_its_arms_only(plan: Plan) -> None:
    """Beside two arms of v0, those of v1 say that they have no --swap-space."""
    flags = {"vllm_version": None, "swap_space": 4.0}
    plans = plan("policy=v0,v1", "block_size=16,32", **flags)

    assert [bool(each.error) for each in plans] == [False, False, True, True]
    assert "has no --swap-space" in plans[2].error


@pytest.mark.parametrize(
    "vary", ["block_size=24,16,32", "block_size=16,24", "block_size=16,24,25"]
)
def test_nothing_to_compare_is_an_error(plan: Plan, vary: str) -> None:
    """Where the baseline cannot start, or nothing beside it, the reason is raised."""
    with pytest.raises(ConfigError, match="block_size is 24"):
        plan(vary)


def test_stored_baseline_needs_one_arm(plan: Plan) -> None:
    """Beside it, any of them may be the one that cannot start, but not all."""
    plans = plan("block_size=24,16", has_baseline=True)

    assert [bool(each.error) for each in plans] == [True, False]
    with pytest.raises(ConfigError, match="block_size is 24"):
        plan("block_size=24,25", has_baseline=True)


def test_every_flag_of_a_run_can_be_varied() -> None:
    """Knobs are the flags of engine and load, but which requests are replayed."""
    parameters = set(inspect.signature(compare).parameters)
    rest = {"compared", "vary", "baseline", "fail_if", "allow", "slo", "jobs", "as_json"}
    rest |= {"output", "table", "trace_format", "skip_bad_rows", "limit", "slice"}
    rest |= {field.name for field in fields(MeasuredFlags)}

    assert parameters - rest == set(ENGINE_KNOBS | LOAD_KNOBS)


@pytest.mark.parametrize("knob", sorted(SIZE_KNOBS))
def test_knobs_of_capacity_are_knobs_of_arms(knob: str) -> None:
    """What is varied for its size is varied alike for its effect, but pipelines."""
    text = f"{knob}=1,2"
    if knob == "pipeline_parallel_size":
        with pytest.raises(UsageError, match="cannot vary pipeline_parallel_size"):
            parse_variation(text, ENGINE_KNOBS)
    else:
        found = parse_variation(text, ENGINE_KNOBS)
        assert found == parse_variation(text, SIZE_KNOBS)
