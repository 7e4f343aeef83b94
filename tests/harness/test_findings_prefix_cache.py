"""Traffic that causes each finding on prefix caching and decoding, and its remedy."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocators.block import PhysicalTokenBlock
from allocators.block_space_manager import BlockPair, BlockSpaceManager
from allocators.cached_allocator import CachedBlockAllocator
from allocators.sequence import SequenceGroup, SequenceStatus
from harness.config import resolve_config
from harness.replay import replay
from harness.request import Request, Run
from harness.traces import open_trace
from harness.workload import Workload
from results.columns import Columns
from results.findings import Finding, find
from results.findings.decode import _Decodes, _tokens_read
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo

CHAT = Path(__file__).resolve().parents[2] / "examples" / "chat_1000.jsonl"
MS = 1_000_000


def workload(
    prompts: Iterable[tuple[Run, ...]],
    outputs: Iterable[int],
    *,
    n: int = 1,
    gap_ns: int = 20 * MS,
) -> Workload:
    """Make requests of prompts and output lengths, each sample like no other."""
    pairs = zip(prompts, outputs, strict=True)
    requests = [
        Request(
            request_id=i,
            arrival_ns=i * gap_ns,
            prompt=prompt,
            num_prompt_tokens=sum(length for _, length in prompt),
            outputs=tuple((10**6 + n * i + k, output) for k in range(n)),
        )
        for i, (prompt, output) in enumerate(pairs)
    ]
    return Workload.from_requests(requests)


def prefixed(
    num_requests: int, prefix: int, rest: int, output: int, num_prefixes: int = 1
) -> Workload:
    """Make prompts with a prefix in common and a rest of their own."""
    numbers = range(num_requests)
    prompts = [((i % num_prefixes, prefix), (1000 + i, rest)) for i in numbers]
    return workload(prompts, [output] * num_requests)


def run(trace: Workload, **knobs: Any) -> tuple[dict[str, Finding], Columns, Columns]:
    """Replay on an H100; findings by code, and the columns of requests and steps."""
    defaults = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-80GB", "policy": "v0"}
    config = resolve_config(**({"max_model_len": 4096} | defaults | knobs))
    result = replay(trace, config)
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy="v0",
        config=config.to_dict(),
        trace={
            "name": trace.name,
            "format": trace.format,
            "num_requests": len(trace),
            "num_skipped": 0,
            "duration_s": trace.duration_s,
            "has_sharing": trace.has_sharing,
        },
        outcome=result.outcome,
    )
    requests = Columns.of(RequestRecord, result.requests)
    steps = Columns.of(StepRecord, result.steps)
    found = find(info, requests, steps)
    return {finding.code: finding for finding in found}, requests, steps


OURS = {
    "no_sharing_information",
    "nothing_shared",
    "caching_cannot_pay",
    "prefixes_below_a_block",
    "prefixes_evicted",
    "prefix_caching_would_help",
    "swap_may_spoil_text",
    "long_sequences",
}


def codes(trace: Workload, **knobs: Any) -> set[str]:
    """Codes of the findings that this file is about."""
    return set(run(trace, **knobs)[0]) & OURS


def number_in(pattern: str, text: str) -> int:
    """Return the number that the pattern's group finds in a sentence."""
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found[1].replace(",", ""))


def test_prompts_of_their_own_need_no_caching() -> None:
    """Nothing is said of prompts that share nothing, until caching is turned on."""
    trace = workload([((i, 500),) for i in range(40)], [50] * 40)

    assert codes(trace) == set()
    assert codes(trace, enable_prefix_caching=True) == {"nothing_shared"}


def test_chat_that_fits_is_healthy() -> None:
    """The bundled trace, cached in a pool that holds it, has none of these findings."""
    assert codes(open_trace(CHAT), enable_prefix_caching=True) == set()


def test_common_prefixes_are_worth_caching() -> None:
    """The finding goes when its advice is followed, and the hits are as promised."""
    trace = prefixed(40, prefix=600, rest=200, output=50)

    found, _, _ = run(trace)
    hits = run(trace, enable_prefix_caching=True)[1].total("num_cached_tokens")

    message = found["prefix_caching_would_help"].message
    assert f"up to {100 * hits / (40 * 800):.3g} % of their 32,000 tokens" in message
    assert codes(trace, enable_prefix_caching=True) == set()


def test_caching_as_advised_keeps_chunks_and_pool() -> None:
    """Of a model that vLLM chunks by itself, caching alone would take a quarter."""
    trace = prefixed(40, prefix=600, rest=200, output=50)
    large: dict[str, Any] = {"model": "Llama-3.1-70B", "gpu": "H200"}
    large |= {"tensor_parallel_size": 2, "max_model_len": None, "policy": "v0"}

    advice = run(trace, **large)[0]["prefix_caching_would_help"].advice
    alone, advised = (
        resolve_config(
            **large, enable_prefix_caching=True, enable_chunked_prefill=chunked
        )
        for chunked in (None, True)
    )

    assert advice.startswith("--enable-prefix-caching --enable-chunked-prefill (")
    assert not alone.enable_chunked_prefill
    assert (alone.num_gpu_blocks, advised.num_gpu_blocks) == (17_632, 24_364)
    assert advised.num_gpu_blocks == resolve_config(**large).num_gpu_blocks
    assert codes(trace, **large, enable_prefix_caching=True) == set()


def test_lengths_alone_leave_hits_unknown() -> None:
    """A trace that does not say what prompts share is not said to share nothing."""
    trace = replace(prefixed(40, prefix=600, rest=200, output=50), has_sharing=False)

    assert codes(trace) == set()
    assert codes(trace, enable_prefix_caching=True) == {"no_sharing_information"}


def test_prefixes_below_a_block_are_found_in_smaller_ones() -> None:
    """15 common tokens are no block of 16; the advised blocks find what it says."""
    trace = prefixed(100, prefix=15, rest=15, output=1)

    found, requests, _ = run(trace, enable_prefix_caching=True)
    smaller = run(trace, enable_prefix_caching=True, block_size=8)

    finding = found["prefixes_below_a_block"]
    hits = smaller[1].total("num_cached_tokens")
    assert requests.total("num_cached_tokens") == 0
    assert finding.advice == (
        f"--block-size 8 could find {100 * hits / (100 * 30):.3g} % of prompt tokens"
    )
    assert set(smaller[0]) & OURS == set()


def test_evicted_prefixes_need_no_more_blocks_than_advised() -> None:
    """With the blocks that the advice names, nothing is evicted and all hits are had."""
    trace = prefixed(300, prefix=1000, rest=100, output=20, num_prefixes=30)

    knobs: dict[str, Any] = {"enable_prefix_caching": True}
    found, _, _ = run(trace, num_gpu_blocks_override=800, **knobs)
    advice = found["prefixes_evicted"].advice
    advised = number_in(r"--num-gpu-blocks-override (\d+)", advice)
    larger, _, steps = run(trace, num_gpu_blocks_override=advised, **knobs)

    assert "(about 28,129 blocks fit on this GPU)" in advice
    assert steps.total("num_evictions") == 0
    assert set(larger) & OURS == set()


def test_short_prompts_of_long_answers_cannot_pay() -> None:
    """All but the last token is shared, and computing it takes next to no time."""
    trace = prefixed(60, prefix=129, rest=1, output=400)

    found, _, _ = run(trace, enable_prefix_caching=True)

    assert set(found) & OURS == {"caching_cannot_pay"}
    assert "98.5 % of the prompt tokens" not in found["caching_cannot_pay"].message
    assert codes(trace) == set()


# -- swapping beside caching -------------------------------------------------------------

SMALL = {"enable_prefix_caching": True, "num_gpu_blocks_override": 120}


def equal_prompts(num_requests: int = 60, tokens: int = 100, n: int = 1) -> Workload:
    """Make requests of five different prompts, most of them repeated."""
    prompts = [((i % 5, tokens),) for i in range(num_requests)]
    outputs = [50 + 13 * i % 150 for i in range(num_requests)]
    return workload(prompts, outputs, n=n, gap_ns=5 * MS)


def test_forced_swaps_of_equal_prompts_may_spoil_text() -> None:
    """Leaving the flag out, as advised, recomputes what was swapped."""
    trace = equal_prompts()

    found, _, _ = run(trace, **SMALL, preemption_mode="swap")

    finding = found["swap_may_spoil_text"]
    assert "55 prompts repeat an earlier one" in finding.message
    assert "leave --preemption-mode swap out" in finding.advice
    assert "swap_may_spoil_text" not in codes(trace, **SMALL)


def test_several_samples_of_equal_prompts_may_spoil_text() -> None:
    """Without caching, with fewer sequences, or with more blocks text is safe again."""
    trace = equal_prompts(n=3)

    found, _, _ = run(trace, **SMALL)
    advice = found["swap_may_spoil_text"].advice
    num_seqs = number_in(r"--max-num-seqs (\d+)", advice)

    for remedy in (
        {"enable_prefix_caching": False},
        {"max_num_seqs": num_seqs},
        {"num_gpu_blocks_override": 4000},
    ):
        assert "swap_may_spoil_text" not in codes(trace, **SMALL | remedy)


@pytest.mark.parametrize(
    ("trace", "mode", "is_spoiled"),
    [
        (equal_prompts(tokens=100, n=3), None, True),
        (equal_prompts(200, tokens=100), "swap", True),
        (equal_prompts(tokens=96, n=3), None, False),
        (equal_prompts(tokens=96), "swap", False),
        (prefixed(60, prefix=100, rest=20, output=150), "swap", False),
    ],
)
def test_blocks_are_copied_over_only_where_equal_prompts_end_in_them(
    monkeypatch: pytest.MonkeyPatch, trace: Workload, mode: str | None, is_spoiled: bool
) -> None:
    """A request comes back onto a block being written where the finding says so."""
    num_shared = 0
    swap_in = BlockSpaceManager.swap_in

    def count(self: BlockSpaceManager, group: SequenceGroup) -> list[BlockPair]:
        nonlocal num_shared
        num_shared += len(set(half_filled_and_in_use(self, group)))
        return swap_in(self, group)

    monkeypatch.setattr(BlockSpaceManager, "swap_in", count)
    found, _, steps = run(trace, **SMALL, preemption_mode=mode)

    assert steps.total("num_swap_in_blocks") > 0
    assert (num_shared > 0) == is_spoiled
    assert ("swap_may_spoil_text" in found) == is_spoiled


def half_filled_and_in_use(
    manager: BlockSpaceManager, group: SequenceGroup
) -> Iterable[PhysicalTokenBlock]:
    """Blocks of a swapped group, not full, for whose content a GPU block is in use."""
    assert isinstance(manager.gpu_allocator, CachedBlockAllocator)
    in_use = manager.gpu_allocator.cached_blocks
    for seq in group.seqs_with(SequenceStatus.SWAPPED):
        table = manager.block_tables[seq.seq_id]
        is_full = seq.num_tokens >= len(table) * manager.block_size
        if not is_full and table.last.block_hash in in_use:
            yield table.last


# -- long sequences ----------------------------------------------------------------------


def test_long_sequences_leave_with_the_advised_limit() -> None:
    """Long prompts among short ones slow every step until they are refused."""
    is_long = [i % 20 == 7 for i in range(400)]
    prompts = [((i, 30_000 if long else 500),) for i, long in enumerate(is_long)]
    outputs = [800 if long else 200 for long in is_long]
    trace = workload(prompts, outputs, gap_ns=50 * MS)

    found, _, _ = run(trace, max_model_len=32_768)

    finding = found["long_sequences"]
    assert finding.message.startswith("20 of 400 requests, those of 30,800 tokens and")
    assert "--max-model-len 700," in finding.advice
    assert codes(trace, max_model_len=700) == set()


def test_long_outputs_leave_with_the_advised_limit() -> None:
    """Long outputs are cut at the length that is enough for the others."""
    outputs = [12_000 if i % 20 == 7 else 100 for i in range(1500)]
    trace = workload([((i, 300),) for i in range(1500)], outputs, gap_ns=10 * MS)

    found, _, _ = run(trace, max_model_len=16_384)

    assert "--max-model-len 400," in found["long_sequences"].advice
    assert codes(trace, max_model_len=400) == set()


def test_contexts_that_decodes_read_add_up() -> None:
    """What requests are said to read is what the steps read."""
    trace = workload([((i, 100 + i),) for i in range(30)], range(1, 31))
    _, requests, steps = run(trace)

    assert _tokens_read(requests).sum() == _Decodes.of(steps).num_read
