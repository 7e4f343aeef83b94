"""Findings on v1 come on traffic that causes them, and their advice ends them."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.request import Request, Run
from harness.workload import Workload
from results.columns import Columns
from results.findings import Finding, find
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo

Shape = tuple[int, list[int]]
Findings = dict[str, Finding]
Replay = Callable[..., Findings]

SINGLES: list[Shape] = [(16, [600])] * 60
SLOW: list[Shape] = [(16, [400])] * 88
SAMPLES: list[Shape] = [(200, [400] * 8)] * 20
LARGE_BETWEEN: list[Shape] = [(60, [550])] * 5 + [(3500, [200])] + [(60, [550])] * 6
LONG_BEFORE: list[Shape] = ([(100_000, [50])] + [(100, [50])] * 60) * 2

KINDS: dict[str, type] = {"watermark": float, "kv_offloading_size": float}


def own(number: int, num_tokens: int) -> tuple[Run, ...]:
    """Make a prompt like no other."""
    return ((number, num_tokens),)


def of_50(number: int, num_tokens: int) -> tuple[Run, ...]:
    """Make a prompt that begins as every fiftieth does, with 40 tokens of its own."""
    return ((number % 50, num_tokens - 40), (1000 + number, 40))


def replay_of(
    shapes: list[Shape],
    gap_ms: float,
    prompt_of: Callable[[int, int], tuple[Run, ...]] = own,
    **knobs: Any,
) -> Findings:
    """Replay ``(prompt tokens, output tokens of each sample)``; findings by code."""
    requests = [
        Request(
            request_id=i,
            arrival_ns=round(i * gap_ms * 1e6),
            prompt=prompt_of(i, num_tokens),
            num_prompt_tokens=num_tokens,
            outputs=tuple((10_000 + 10 * i + k, n) for k, n in enumerate(outputs)),
        )
        for i, (num_tokens, outputs) in enumerate(shapes)
    ]
    workload = Workload.from_requests(requests)
    machine = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-80GB"}
    given = machine | {"vllm_version": "0.32.0", "max_model_len": 4096} | knobs
    config = resolve_config(policy="v1", **given)
    result = replay(workload, config)
    trace = {"name": "made up", "format": "blockbench", "num_requests": len(workload)}
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy="v1",
        config=config.to_dict(),
        trace=trace | {"num_skipped": 0, "duration_s": 1.0, "has_sharing": True},
        outcome=result.outcome,
        wall_s=result.wall_s,
    )
    found = find(
        info,
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
    )
    return {finding.code: finding for finding in found}


def ways_out(finding: Finding) -> Iterator[dict[str, Any]]:
    """Read the knobs of each alternative that the advice names."""
    for way in finding.advice.split("; or "):
        flags = re.findall(r"--([a-z-]+) (\d[\d.]*\d|\d)", way)
        knobs = {flag.replace("-", "_"): value for flag, value in flags}
        if knobs:
            yield {name: KINDS.get(name, int)(value) for name, value in knobs.items()}


CASES: dict[str, tuple[Callable[..., Findings], dict[str, Any], list[str]]] = {
    "preemption_thrash": (
        partial(replay_of, SINGLES, 10),
        {"num_gpu_blocks_override": 600},
        ["num_gpu_blocks_override", "max_num_seqs", "watermark"],
    ),
    "recompute_storm": (
        partial(replay_of, SLOW, 10, gpu="RTX-3090", enable_prefix_caching=False),
        {"num_gpu_blocks_override": 600},
        ["num_gpu_blocks_override", "max_num_seqs", "watermark"],
    ),
    "head_of_line": (
        partial(replay_of, LARGE_BETWEEN, 10),
        {"num_gpu_blocks_override": 260},
        ["num_gpu_blocks_override"],
    ),
    "watermark_waiting": (
        partial(replay_of, [(200, [100])] * 60, 100, num_gpu_blocks_override=400),
        {"watermark": 0.8},
        ["watermark"],
    ),
    "exceeds_kv_capacity": (
        partial(replay_of, [(200, [30]), (3000, [50])] * 5, 200),
        {"num_gpu_blocks_override": 100},
        ["num_gpu_blocks_override"],
    ),
    "not_kv_bound": (
        partial(replay_of, [(60, [150])] * 300, 5),
        {"max_num_seqs": 8},
        ["max_num_seqs"],
    ),
    "kv_cache_oversized": (
        partial(replay_of, [(300, [20])] * 100, 60),
        {"num_gpu_blocks_override": 4000},
        ["num_gpu_blocks_override"],
    ),
    "prefills_stall_decodes": (
        partial(replay_of, [(6000, [100])] * 60, 300, max_model_len=8192),
        {},
        ["max_num_batched_tokens max_num_seqs"],
    ),
    "long_prefills_block": (
        partial(replay_of, LONG_BEFORE, 20, max_model_len=131_072),
        {},
        ["long_prefill_token_threshold"],
    ),
    "prefixes_evicted": (
        partial(replay_of, [(1640, [30])] * 400, 60, of_50),
        {"num_gpu_blocks_override": 1000},
        ["kv_offloading_size"],
    ),
    "offload_tier_small": (
        partial(replay_of, [(1640, [30])] * 400, 60, of_50),
        {"num_gpu_blocks_override": 1000, "kv_offloading_size": 2},
        ["kv_offloading_size"],
    ),
    "forced_stores": (
        partial(replay_of, [(3000, [1])] * 100, 1),
        {"num_gpu_blocks_override": 190, "kv_offloading_size": 8},
        ["num_gpu_blocks_override"],
    ),
}
"""Traffic and knobs by what they lead to, and the flags of each way out."""


@pytest.mark.parametrize("code", CASES)
def test_advice_for_v1_is_right(code: str) -> None:
    """The traffic has the finding; with any of the ways out it has it no more."""
    replayed, knobs, flags = CASES[code]

    finding = replayed(**knobs)[code]

    ways = list(ways_out(finding))
    assert [" ".join(way) for way in ways] == flags
    for way in ways:
        assert code not in replayed(**knobs | way), way


def test_pool_for_all_samples_preempts_nobody() -> None:
    """Eight samples each find the blocks of their prompt, so 4,401 hold twenty."""
    small = replay_of(SAMPLES, 10, num_gpu_blocks_override=600)

    way = next(ways_out(small["preemption_thrash"]))

    assert way == {"num_gpu_blocks_override": 4401}
    assert not {"preemption_thrash", "recompute_storm"} & set(
        replay_of(SAMPLES, 10, **way)
    )


def test_useless_tier_is_left_out() -> None:
    """The pool holds all that was hit; without the tier the run is the same."""
    traffic = partial(replay_of, [(1640, [30])] * 400, 60, of_50)

    with_tier, without = traffic(kv_offloading_size=4), traffic()

    assert "--kv-offloading-size" in with_tier.pop("offload_unused").advice
    assert with_tier == without


def test_advice_of_v1_names_no_flag_of_v0() -> None:
    """No finding on any of this traffic speaks of swap space or preemption modes."""
    gone = re.compile("swap|preemption-mode|copy-on-write|leave --enable-prefix")
    for replayed, knobs, _ in CASES.values():
        for finding in replayed(**knobs).values():
            assert not gone.search(finding.message + finding.advice), finding
