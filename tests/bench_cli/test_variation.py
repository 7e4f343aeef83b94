"""Tests for :mod:`bench_cli.variation`."""

import pytest

from bench_cli.variation import SIZE_KNOBS, Variation, parse_variation
from harness.errors import UsageError


@pytest.mark.parametrize(
    ("text", "knob", "values"),
    [
        ("block_size=16,32", "block_size", (16, 32)),
        ("--block-size=16..64", "block_size", (16, 32, 64)),
        ("tensor_parallel_size=1..8", "tensor_parallel_size", (1, 2, 4, 8)),
        ("max_num_seqs=100..300..100", "max_num_seqs", (100, 200, 300)),
        ("swap_space=4", "swap_space", (4.0,)),
        (
            "gpu_memory_utilization=0.8..0.9..0.05",
            "gpu_memory_utilization",
            (0.8, 0.85, 0.9),
        ),
        ("kv_cache_gib=5..5", "kv_cache_gib", (5.0,)),
    ],
)
def test_values_are_read(text: str, knob: str, values: tuple[float, ...]) -> None:
    """Lists as they are, whole numbers by doubling, and steps where they are named."""
    assert parse_variation(text, SIZE_KNOBS) == Variation(knob, values)


def test_a_range_of_shares_has_both_ends() -> None:
    """Nine values, evenly apart."""
    values = parse_variation("gpu_memory_utilization=0.8..0.96", SIZE_KNOBS).values

    assert values == (0.8, 0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block_size", "cannot read"),
        ("block_size=", "cannot read"),
        ("model=a,b", "cannot vary model; it can vary gpu_memory_utilization"),
        ("block_size=16.5", "'16.5' is none"),
        ("block_size=32..16", "goes down"),
        ("max_num_seqs=0..4", "above 0"),
        ("max_num_seqs=1..4..0", "above 0"),
        ("block_size=1..2..3..4", "cannot read the range"),
        ("swap_space=1..2..0.0000000001", "at most 200 values"),
        ("max_model_len=1..999999999999..1", "at most 200 values"),
        ("swap_space=x", "'x' is none"),
        ("swap_space=nan", "'nan' is none"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    """The message says what can be varied, or how it is written."""
    with pytest.raises(UsageError, match=message):
        parse_variation(text, SIZE_KNOBS)
