"""Tests for :mod:`results.kv_usage`."""

from collections.abc import Callable

import pytest

from results.kv_usage import kv_usage, usage_over_time
from results.record import StepRecord

MakeStep = Callable[..., StepRecord]


def test_mean_usage_is_weighted_by_time(make_step: MakeStep) -> None:
    """Three times as long counts three times, and idle time counts as empty."""
    steps = [
        make_step(start_ns=0, end_ns=10, num_used_blocks=8, num_used_blocks_end=8),
        make_step(start_ns=50, end_ns=80, num_used_blocks=4, num_used_blocks_end=4),
    ]

    usage = kv_usage(steps, num_gpu_blocks=10, block_size=16)

    assert usage.mean_usage == pytest.approx((8 * 10 + 4 * 30) / 80 / 10)
    assert usage.peak_usage == 0.8


def test_growth_within_a_stretch_counts(make_step: MakeStep) -> None:
    """Blocks taken during a stretch raise the peak, and the mean by half."""
    step = make_step(num_steps=40, num_used_blocks=2, num_used_blocks_end=6)

    usage = kv_usage([step], num_gpu_blocks=10, block_size=16)

    assert usage.peak_usage == 0.6
    assert usage.mean_usage == pytest.approx(0.4)


def test_fragmentation_is_the_share_of_empty_slots(make_step: MakeStep) -> None:
    """60 tokens in 4 blocks of 16 leave 4 of 64 slots empty; idle time is left out."""
    steps = [
        make_step(start_ns=0, end_ns=10),
        make_step(
            start_ns=90,
            end_ns=100,
            num_used_blocks=0,
            num_used_blocks_end=0,
            num_used_tokens=0,
        ),
    ]

    usage = kv_usage(steps, num_gpu_blocks=10, block_size=16)

    assert usage.fragmentation == pytest.approx(4 / 64)


def test_fragmentation_counts_the_tokens_of_later_steps(make_step: MakeStep) -> None:
    """Two sequences that decode for five steps have written 8 tokens by the last."""
    step = make_step(num_steps=5, num_decode_seqs=2, num_used_tokens=52)

    usage = kv_usage([step], num_gpu_blocks=10, block_size=16)

    assert usage.fragmentation == pytest.approx(1 - (52 + 60) / 2 / 64)


def test_no_step_leaves_everything_empty() -> None:
    """Where nothing ran there is no usage to speak of."""
    usage = kv_usage([], num_gpu_blocks=10, block_size=16)

    assert (usage.peak_usage, usage.mean_usage, usage.fragmentation) == (None,) * 3
    assert usage_over_time([], num_gpu_blocks=10, num_points=4) == []


def test_course_over_time_keeps_the_mean(make_step: MakeStep) -> None:
    """Each part of the run has its own mean, whichever steps it cuts through."""
    steps = [
        make_step(start_ns=0, end_ns=30, num_used_blocks=10, num_used_blocks_end=10),
        make_step(start_ns=30, end_ns=40, num_used_blocks=2, num_used_blocks_end=2),
    ]

    parts = usage_over_time(steps, num_gpu_blocks=10, num_points=2)

    assert parts == pytest.approx([1.0, 0.6])
