"""Tests for :mod:`harness.analysis.miss_ratio`: one pass finds what every cache finds."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.miss_ratio import HitCurve, hit_curve
from harness.analysis.sharing import shared_tokens
from harness.config import resolve_config
from harness.errors import UsageError
from harness.replay import replay
from harness.request import Request, Run
from harness.traces import open_trace
from harness.workload import ExtraKeys, Workload

Block = tuple[ExtraKeys, tuple[Run, ...]]
"""A block by all tokens up to its end."""


def request(
    prompt: Sequence[Run], outputs: Sequence[Run] = ((10**6, 1),), keys: ExtraKeys = ()
) -> Request:
    return Request(
        request_id=0,
        arrival_ns=0,
        prompt=tuple(prompt),
        num_prompt_tokens=sum(length for _, length in prompt),
        outputs=tuple(outputs),
        extra_keys=keys,
    )


def curve_of(workload: Workload, block_size: int, **settings: bool) -> HitCurve:
    curve = hit_curve(workload, block_size=block_size, **settings)
    assert curve is not None
    return curve


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw prompts that begin as earlier ones did, or go on with what those wrote."""
    made: list[Request] = []
    for number in range(draw(st.integers(1, 14))):
        runs: list[Run] = []
        if draw(st.booleans()) and made:
            earlier = draw(st.sampled_from(made))
            known = [*earlier.prompt, draw(st.sampled_from(earlier.outputs))]
            runs = list(known[: draw(st.integers(1, len(known)))])
            if draw(st.booleans()):
                runs[-1] = (runs[-1][0], draw(st.integers(1, 12)))
        for _ in range(draw(st.integers(0 if runs else 1, 3))):
            segment = draw(st.sampled_from([0, 1, 2, 3, 100 + number]))
            runs.append((segment, draw(st.integers(1, 9))))
        writer = draw(st.sampled_from([number, 0]))
        outputs = [
            (1000 + 10 * writer + sample, draw(st.integers(1, 12)))
            for sample in range(draw(st.sampled_from([1, 1, 2, 3])))
        ]
        made.append(request(runs, outputs, draw(st.sampled_from([(), (), ("a",)]))))
    return Workload.from_requests(made)


def blocks_of(runs: Sequence[Run], block_size: int, keys: ExtraKeys) -> list[Block]:
    tokens = tuple((segment, i) for segment, length in runs for i in range(length))
    ends = range(block_size, len(tokens) + 1, block_size)
    return [(keys, tokens[:end]) for end in ends]


def naive_hit_tokens(
    workload: Workload, block_size: int, capacity: int, *, with_outputs: bool
) -> int:
    """Look up and use one block after another, as an LRU cache does."""
    cache: OrderedDict[Block, None] = OrderedDict()
    num_hits = 0
    for row in range(len(workload)):
        asked = workload.request(row)
        blocks = blocks_of(asked.prompt, block_size, asked.extra_keys)
        for block in blocks[: (asked.num_prompt_tokens - 1) // block_size]:
            if block not in cache:
                break
            num_hits += 1
        used: list[Block] = []
        for segment, length in sorted(asked.outputs, key=lambda run: (run[1], run[0])):
            whole = [*asked.prompt, (segment, length - 1)]
            used += blocks_of(whole, block_size, asked.extra_keys)[::-1]
        for block in used if with_outputs else blocks[::-1]:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) * block_size > capacity:
            cache.popitem(last=False)
    return num_hits * block_size


@settings(max_examples=150)
@given(workloads(), st.sampled_from([1, 2, 3, 4, 8]), st.booleans())
def test_every_capacity_finds_what_a_cache_of_that_size_does(
    workload: Workload, block_size: int, with_outputs: bool
) -> None:
    """The curve is that of a naive LRU cache, block for block, at each capacity."""
    curve = curve_of(workload, block_size, with_outputs=with_outputs)
    capacities = np.arange(curve.max_used_tokens + 2 * block_size)
    naive = [
        naive_hit_tokens(workload, block_size, capacity, with_outputs=with_outputs)
        for capacity in capacities.tolist()
    ]

    assert curve.hit_tokens(capacities).tolist() == naive
    assert curve.hit_tokens(float("inf")) == curve.max_hit_tokens == naive[-1]
    assert curve.total_prompt_tokens == workload.input_tokens.sum()


@settings(max_examples=200)
@given(workloads(), st.sampled_from([1, 3, 4, 16]), st.booleans())
def test_an_endless_cache_finds_all_that_is_shared(
    workload: Workload, block_size: int, with_outputs: bool
) -> None:
    """At its end the curve says what `sharing` says, but for a prompt's last token."""
    shared = shared_tokens(workload, with_outputs=with_outputs)
    assert shared is not None
    found = np.minimum(shared, workload.input_tokens - 1) // block_size * block_size

    curve = curve_of(workload, block_size, with_outputs=with_outputs)

    assert curve.max_hit_tokens == found.sum()


@given(workloads(), st.sampled_from([1, 2, 4]), st.floats(0, 1))
def test_capacity_is_the_least_that_finds_the_share(
    workload: Workload, block_size: int, share: float
) -> None:
    """A block less finds less than the share asked for."""
    curve = curve_of(workload, block_size)
    capacity = curve.capacity_for(share)

    assert curve.hit_tokens(capacity) >= share * curve.max_hit_tokens - 1e-9
    assert capacity <= curve.max_used_tokens
    if capacity:
        less = curve.hit_tokens(capacity - block_size)
        assert less < share * curve.max_hit_tokens


@pytest.mark.parametrize(
    ("num_blocks", "num_hits"), [(0, 0), (4 * 59, 0), (4 * 59 + 1, 60), (4 * 60, 240)]
)
def test_prefixes_in_turn_are_found_together_or_not_at_all(
    num_blocks: int, num_hits: int
) -> None:
    """With 60 prefixes in turn, room for 59 finds nothing, and room for 60 all."""
    made = [request([(turn % 60, 64), (1000 + turn, 8)]) for turn in range(120)]

    curve = curve_of(Workload.from_requests(made), 16)

    assert curve.hit_tokens(16 * num_blocks) == 16 * num_hits
    assert curve.capacity_for(1.0) == curve.max_used_tokens == 16 * 4 * 60


def test_runs_of_one_segment_share_their_common_tokens() -> None:
    """A run that is longer or shorter than those before agrees as far as both go."""
    made = [request([(1, 50), (2, 9)]), request([(1, 90)]), request([(1, 35), (3, 9)])]

    curve = curve_of(Workload.from_requests(made), 10)

    assert curve.max_hit_tokens == 50 + 30


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt that is in the cache to its end finds a block less."""
    made = [request([(1, 32)]), request([(1, 32)])]

    assert curve_of(Workload.from_requests(made), 16).max_hit_tokens == 16


def test_tenants_find_only_what_is_their_own() -> None:
    """The same prompt under another adapter or salt is other content, and takes room."""
    keys: list[ExtraKeys] = [("a",), ("b",), ("a",)]
    made = [request([(1, 33)], keys=k) for k in keys]

    curve = curve_of(Workload.from_requests(made), 16)

    assert curve.max_hit_tokens == 32
    assert curve.hit_tokens(np.array([32, 48, 64])).tolist() == [0, 16, 32]


def test_outputs_take_room_and_are_found() -> None:
    """A turn that goes on where another ended finds its output, past its own."""
    made = [
        request([(1, 16)], [(2, 17)]),
        request([(3, 8)], [(4, 41)]),
        request([(1, 16), (2, 17), (5, 8)], [(6, 1)]),
    ]
    workload = Workload.from_requests(made)

    alone = curve_of(workload, 16)
    whole = curve_of(workload, 16, with_outputs=True)

    assert (alone.max_hit_tokens, alone.capacity_for(1.0)) == (16, 16)
    assert (whole.max_hit_tokens, whole.capacity_for(1.0)) == (32, 80)


def test_numbers_answer_numbers() -> None:
    """One capacity gives one whole number, several give as many."""
    made = [request([(1, 33)]), request([(1, 33)])]
    curve = curve_of(Workload.from_requests(made), 16)

    assert (curve.hit_tokens(31.9), curve.hit_tokens(-1), curve.hit_tokens(1e30)) == (
        16, 0, 32,
    )  # fmt: skip
    assert isinstance(curve.hit_tokens(31.9), int)
    assert curve.hit_tokens(np.array([[16.0], [32.0]])).tolist() == [[16], [32]]


def test_nothing_is_said_of_a_trace_that_says_nothing() -> None:
    """Without names of contents there is no curve."""
    workload = replace(Workload.from_requests([request([(1, 8)])]), has_sharing=False)

    assert hit_curve(workload, block_size=16) is None


@pytest.mark.parametrize("made", [[], [request([(1, 8)])], [request([(1, 16)])] * 3])
def test_nothing_to_find_needs_no_capacity(made: list[Request]) -> None:
    """Without a block in common the curve is flat, and so it is without a request."""
    curve = curve_of(Workload.from_requests(made), 16)

    assert curve.max_hit_tokens == curve.hit_tokens(1e9) == curve.capacity_for(1.0) == 0


def test_nonsense_is_refused() -> None:
    """Neither blocks without tokens nor shares beyond all of it make sense."""
    workload = Workload.from_requests([request([(1, 8)])])

    with pytest.raises(UsageError, match="block size is 0, must be at least 1"):
        hit_curve(workload, block_size=0)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="must be between 0 and 1"):
            curve_of(workload, 16).capacity_for(share)


def test_lengths_that_all_differ_cost_no_more() -> None:
    """Each use of a run leaves two parts at most, however many lengths it is cut to."""
    lengths = np.random.default_rng(1).integers(1, 1_000_000, 20_000).tolist()
    workload = Workload.from_requests([request([(1, length)]) for length in lengths])
    shared = shared_tokens(workload, with_outputs=False)
    assert shared is not None

    curve = curve_of(workload, 1)  # blocks one by one: 10**10 of them

    assert curve.max_hit_tokens == np.minimum(shared, workload.input_tokens - 1).sum()


@pytest.mark.data
@pytest.mark.parametrize("num_gpu_blocks", [8_000, 60_000, 200_000])
def test_replays_one_at_a_time_find_as_much(data_dir: Path, num_gpu_blocks: int) -> None:
    """The block manager finds what the curve says, to 1 token in 10,000."""
    trace = data_dir / "traces" / "mooncake" / "conversation_trace.jsonl"
    workload = open_trace(trace).select(slice(1500))
    config = resolve_config(
        model="Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        block_size=16,
        max_model_len=131_072,
        num_gpu_blocks_override=num_gpu_blocks,
    )
    curve = curve_of(workload, config.block_size, with_outputs=True)

    result = replay(workload, config, max_concurrency=1)

    found = int(np.nansum(result.requests.column("num_cached_tokens")))
    expected = curve.hit_tokens((config.num_gpu_blocks - 1) * config.block_size)
    assert found == pytest.approx(expected, rel=1e-4)
    assert 0 < found < curve.max_hit_tokens
