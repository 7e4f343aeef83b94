"""Findings on memory come on traffic that causes them, and their advice ends them."""

import re
from typing import Any

import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.request import Request
from harness.workload import Workload
from results.columns import Columns
from results.findings import Finding, find
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo

Shape = tuple[int, list[int]]

SINGLES: list[Shape] = [(16, [600])] * 60
GROUPS: list[Shape] = [(200, [400] * 8)] * 20
MIXED: list[Shape] = [(200, [300]), (200, [300] * 2)] * 30
LARGE_BETWEEN: list[Shape] = [(60, [150])] * 5 + [(3500, [200])] + [(60, [150])] * 6


def workload(shapes: list[Shape], gap_ms: float) -> Workload:
    """Make requests of ``(prompt tokens, output tokens of each sample)``."""
    requests = [
        Request(
            request_id=i,
            arrival_ns=round(i * gap_ms * 1e6),
            prompt=((i, num_tokens),),
            num_prompt_tokens=num_tokens,
            outputs=tuple((10_000 + 10 * i + k, n) for k, n in enumerate(outputs)),
        )
        for i, (num_tokens, outputs) in enumerate(shapes)
    ]
    return Workload.from_requests(requests)


def findings(shapes: list[Shape], gap_ms: float, **knobs: Any) -> dict[str, Finding]:
    """Replay the requests on an H100 and look for everything, by code."""
    limits = {"max_model_len": 4096} | knobs
    gpu = limits.pop("gpu", "H100-80GB")
    config = resolve_config(
        model="meta-llama/Llama-3.1-8B", gpu=gpu, policy="v0", **limits
    )
    requests = workload(shapes, gap_ms)
    result = replay(requests, config)
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy="v0",
        config=config.to_dict(),
        trace={
            "name": "made up",
            "format": "blockbench",
            "num_requests": len(requests),
            "num_skipped": 0,
            "duration_s": 1.0,
            "has_sharing": True,
        },
        outcome=result.outcome,
        wall_s=result.wall_s,
    )
    found = find(
        info,
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
    )
    return {finding.code: finding for finding in found}


def value_of(flag: str, finding: Finding) -> float:
    """Read the value that the advice gives a flag."""
    (value,) = re.findall(rf"{flag} ([\d.]*\d)", finding.advice)
    return float(value)


def blocks_of(finding: Finding) -> int:
    """Read the size of the pool that the advice asks for."""
    return int(value_of("--num-gpu-blocks-override", finding))


# -- preemptions -------------------------------------------------------------------------


def test_swap_storm_ends_with_either_advice() -> None:
    """Groups swap for 13.2 % of the time, until fewer run or all of them fit."""
    small = {"num_gpu_blocks_override": 600, "swap_space": 8}
    found = findings(GROUPS, 10, **small)

    storm = found["swap_storm"]
    assert storm.message.startswith("13.2 % of the time of steps")
    assert "preemption_thrash" not in found

    fewer = int(value_of("--max-num-seqs", storm))
    more = {"num_gpu_blocks_override": blocks_of(storm)}
    assert not {"swap_storm", "preemption_thrash"} & set(
        findings(GROUPS, 10, **small, max_num_seqs=fewer)
    )
    assert not {"swap_storm", "preemption_thrash", "swap_space_size"} & set(
        findings(GROUPS, 10, **small | more)
    )


def test_swap_space_as_advised_is_enough() -> None:
    """The same run with the swap space that was advised swaps as before."""
    small = {"num_gpu_blocks_override": 600}
    found = findings(GROUPS, 10, **small, swap_space=8)

    advised = value_of("--swap-space", found["swap_space_size"])
    again = findings(GROUPS, 10, **small, swap_space=advised)

    assert advised == 4
    assert again["swap_storm"] == found["swap_storm"]
    assert not {"swap_space_size", "swap_space_short"} & set(again)


def test_recompute_storm_ends_with_either_advice() -> None:
    """Where computing is slow beside reading it takes a seventh of the time."""
    shapes: list[Shape] = [(16, [400])] * 88
    knobs = {"gpu": "RTX-3090", "enable_chunked_prefill": True}
    knobs |= {"max_num_batched_tokens": 4096, "num_gpu_blocks_override": 800}
    found = findings(shapes, 10, **knobs)

    storm = found["recompute_storm"]
    assert storm.message.startswith("14 % of the time of steps")
    assert "preemption_thrash" not in found

    fewer = int(value_of("--max-num-seqs", storm))
    more = {"num_gpu_blocks_override": blocks_of(storm)}
    ended = {"recompute_storm", "preemption_thrash"}
    assert not ended & set(findings(shapes, 10, **knobs, max_num_seqs=fewer))
    assert not ended & set(findings(shapes, 10, **knobs | more))


def test_thrash_ends_with_either_advice() -> None:
    """Requests preempted up to seven times are not preempted at all as advised."""
    small = {"num_gpu_blocks_override": 600}
    thrash = findings(SINGLES, 10, **small)["preemption_thrash"]

    assert "#39 7 times" in thrash.message

    fewer = int(value_of("--max-num-seqs", thrash))
    more = {"num_gpu_blocks_override": blocks_of(thrash)}
    # swap_stayed_empty would tell of a single preemption
    ended = {"preemption_thrash", "swap_stayed_empty"}
    assert not ended & set(findings(SINGLES, 10, **small, max_num_seqs=fewer))
    assert not ended & set(findings(SINGLES, 10, **small | more))


def test_swap_space_of_single_sequences_does_nothing() -> None:
    """Without it the run is the same, and there is nothing left to say of it."""
    small = {"num_gpu_blocks_override": 600}
    found = findings(SINGLES, 10, **small)
    advised = value_of("--swap-space", found["swap_stayed_empty"])

    without = findings(SINGLES, 10, **small, swap_space=advised)

    assert advised == 0
    assert "swap_stayed_empty" not in without
    assert without["preemption_thrash"] == found["preemption_thrash"]
    assert "swap_stayed_empty" not in findings(GROUPS, 10, **small)


def test_chunked_prefill_overtakes_those_swapped_out() -> None:
    """Most admissions go past them; without chunks, or with fewer, none does."""
    small = {"num_gpu_blocks_override": 500, "swap_space": 8}
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": 1024}
    overtaken = findings(MIXED, 20, **small, **chunked)["swapped_overtaken"]

    assert overtaken.message.startswith("58 of 88 admissions")

    tokens = int(value_of("--max-num-batched-tokens", overtaken))
    fewer = int(value_of("--max-num-seqs", overtaken))
    unchunked = {"enable_chunked_prefill": False, "max_num_batched_tokens": tokens}
    large = small | {"num_gpu_blocks_override": 4000}
    for knobs in (
        small | unchunked,
        small | chunked | {"max_num_seqs": fewer},
        large | chunked,
    ):
        assert "swapped_overtaken" not in findings(MIXED, 20, **knobs)


# -- waiting for blocks ------------------------------------------------------------------


def test_large_prompts_hold_up_small_ones() -> None:
    """One prompt of 3,500 tokens in twelve does, until it is sent elsewhere or fits."""
    shapes = LARGE_BETWEEN * 10
    small = {"num_gpu_blocks_override": 450}
    held_up = findings(shapes, 60, **small)["head_of_line"]

    assert "94 requests waited 3.9 s on average" in held_up.message
    assert held_up.severity == "info"  # the queue grows meanwhile
    assert held_up.advice.startswith("prompts of 3,500 tokens or more, 8.33 % of all,")

    others = [shape for shape in shapes if shape[0] < 3500]
    more = {"num_gpu_blocks_override": blocks_of(held_up)}
    assert "head_of_line" not in findings(others, 60, **small)
    assert "head_of_line" not in findings(shapes, 60, **more)


def test_queue_of_equals_is_no_head_of_line() -> None:
    """Where nobody behind the first would fit either, nobody is held up by it."""
    found = findings([(3500, [200])] * 30, 60, num_gpu_blocks_override=450)

    assert "overloaded" in found
    assert "head_of_line" not in found


def test_watermark_above_vllms_own_keeps_requests_waiting() -> None:
    """With a fifth of the pool kept free they wait for it; as advised, or larger, not."""
    shapes: list[Shape] = [(1600, [20])] * 60
    small = {"num_gpu_blocks_override": 420, "watermark": 0.2}
    kept_free = findings(shapes, 60, **small)["watermark_waiting"]

    assert kept_free.message.endswith("keeps free, 84 of 420 blocks")

    lower = small | {"watermark": value_of("--watermark", kept_free)}
    larger = small | {"num_gpu_blocks_override": 4000}
    assert "watermark_waiting" not in findings(shapes, 60, **lower)
    assert "watermark_waiting" not in findings(shapes, 60, **larger)


# -- too much memory, other limits -------------------------------------------------------


@pytest.mark.parametrize("blocks", [{}, {"kv_cache_gib": 40}, {"gpu": "H200"}])
def test_pool_as_small_as_advised_is_still_enough(blocks: dict[str, Any]) -> None:
    """The load that used a fiftieth of the pool runs as well in what is advised."""
    shapes: list[Shape] = [(500, [200])] * 40
    found = findings(shapes, 100, **blocks)
    oversized = found["kv_cache_oversized"]

    flag = "--kv-cache-gib" if "kv_cache_gib" in blocks else "--gpu-memory-utilization"
    knob = flag.removeprefix("--").replace("-", "_")
    advised = blocks | {knob: value_of(flag, oversized)}

    assert list(found) == ["kv_cache_oversized"]
    assert not findings(shapes, 100, **advised)


def test_pool_that_was_given_is_resized_in_blocks() -> None:
    """The number of blocks that is advised is enough, and no longer too many."""
    shapes: list[Shape] = [(500, [200])] * 40
    given = {"num_gpu_blocks_override": 4000}
    oversized = findings(shapes, 100, **given)["kv_cache_oversized"]

    advised = {"num_gpu_blocks_override": blocks_of(oversized)}
    assert advised["num_gpu_blocks_override"] < 2000
    assert not findings(shapes, 100, **advised)


def test_too_few_sequences_are_the_limit() -> None:
    """Eight of them leave the pool empty while others wait; as many as advised do not."""
    shapes: list[Shape] = [(500, [200])] * 60
    bound = findings(shapes, 20, max_num_seqs=8)["not_kv_bound"]

    assert bound.message.endswith("max_num_seqs (8) kept them out")

    advised = findings(shapes, 20, max_num_seqs=int(value_of("--max-num-seqs", bound)))
    assert "not_kv_bound" not in advised
    assert "preemption_thrash" not in advised


def test_too_few_tokens_a_step_are_the_limit() -> None:
    """Prompts come faster than chunks of 512 tokens, and slower than advised ones."""
    shapes: list[Shape] = [(2000, [100])] * 60
    chunked = {"enable_chunked_prefill": True}
    bound = findings(shapes, 50, **chunked)["not_kv_bound"]

    assert bound.message.endswith("max_num_batched_tokens (512) kept them out")

    tokens = int(value_of("--max-num-batched-tokens", bound))
    larger = findings(shapes, 50, **chunked, max_num_batched_tokens=tokens)
    assert "not_kv_bound" not in larger


def test_pool_that_is_full_is_the_limit() -> None:
    """Eight sequences that fill the pool are not what requests wait for."""
    shapes: list[Shape] = [(500, [200])] * 60

    found = findings(shapes, 20, max_num_seqs=8, num_gpu_blocks_override=400)

    assert not {"not_kv_bound", "kv_cache_oversized"} & set(found)


def test_long_prompts_stall_streams_until_they_are_cut() -> None:
    """Tokens come 60 times later than usual beside them, and not in chunks as advised."""
    shapes: list[Shape] = [(20_000, [50])] + [(100, [200])] * 11
    long = {"max_model_len": 32_768}
    stall = findings(shapes * 8, 100, **long)["prefills_stall_decodes"]

    tokens = int(value_of("--max-num-batched-tokens", stall))
    cut = {"enable_chunked_prefill": True, "max_num_batched_tokens": tokens}
    assert "prefills_stall_decodes" not in findings(shapes * 8, 100, **long, **cut)
    assert "prefills_stall_decodes" not in findings([(100, [200])] * 88, 100, **long)


def test_healthy_load_has_nothing_to_say() -> None:
    """Requests that fill half of the pool and wait for nobody are no finding at all."""
    found = findings([(500, [200])] * 60, 60, num_gpu_blocks_override=1900)

    assert not found
