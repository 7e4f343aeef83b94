"""Tests for :mod:`bench_cli.tune_words`: why a value, beside what others would give."""

from typing import Any

import pytest

from bench_cli.tune_words import why
from harness.tuning.evidence import FIGURES, Row


def row(value: Any, standing: str, ttft_mean: float, **more: Any) -> Row:
    """A replay with a knob at a value."""
    figures = dict.fromkeys(FIGURES) | {"ttft_mean": ttft_mean}
    return Row(
        value=value,
        is_advised=more.get("is_advised", False),
        is_start=more.get("is_start", False),
        figures=figures,
        num_gpu_blocks=1000,
        standing=standing,
    )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([row(8.0, "better", 0.9)], "8 would give TTFT -10 %, which may be chance"),
        (
            [row(4.0, "worse", 1.2), row(8.0, "better", 0.9)],
            "8 would give TTFT -10 %, which may be chance",
        ),
        ([row(8.0, "worse", 1.2)], "8 would give TTFT +20 %"),
        ([row(8.0, "as good", 1.0)], "8 does as well"),
        (
            [row(4.0, "worse", 1.2, is_start=True), row(8.0, "better", 0.9)],
            "4 would give TTFT +20 %",
        ),
    ],
)
def test_what_is_better_and_not_advised_may_be_chance(
    others: list[Row], words: str
) -> None:
    """It is the most telling, after what there is now."""
    rows = [row(0.0, "as good", 1.0, is_advised=True), *others]

    assert why("kv_offloading_size", rows, {}) == words
