"""Tests for :mod:`bench_cli.tune_words`: why a value, beside what others would give."""

from typing import Any

import pytest

from bench_cli.tune_words import decided, known_of, why
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


def tier_words(advised: float = 0.0, **facts: Any) -> str:
    """What is said of a tier of which these facts are known."""
    known = {
        "stages": [
            {
                "from_gib": 8.0 * place,
                "size_gib": 8.0 * (place + 1),
                "hit_tokens": tokens,
                "saved_s": 1.0,
            }
            for place, tokens in enumerate(facts.pop("hits", []))
        ],
        "recomputed": [],
        "traffic": None,
        "crossover_tokens": 16,
        "mean_prompt_tokens": 900,
        "block_size": 16,
    }
    return "; ".join(known_of("kv_offloading_size", advised, known | facts))


def test_a_tier_that_finds_more_is_said_with_both_its_ends() -> None:
    """A part that finds nothing is left out, and the next is not taken for it."""
    said = tier_words(hits=[0, 239_000, 0, 5_000])

    assert "8 to 16 GiB 239k tokens (1.0 s of prefill), 24 to 32 GiB 5.0k tok" in said
    assert "0 to 8" not in said


def test_no_tier_finds_more_is_said_of_what_was_looked_at() -> None:
    """Up to the largest of them, and as what is expected."""
    said = tier_words(hits=[0, 0])

    assert said.startswith("no tier up to 16 GiB is expected to find more than the GPU d")


def test_a_tier_that_spares_preempted_requests_says_so() -> None:
    """They find in it what they would compute again; where there is none, nothing."""
    rows = [{"value": 0.0, "tokens": 60_000}, {"value": 8.0, "tokens": 1_200}]
    words = "preempted requests compute 1.2k tokens again for 60.0k without it"

    assert words in tier_words(8.0, hits=[0], recomputed=rows)
    assert "preempted" not in tier_words(0.0, hits=[0], recomputed=rows)
    assert "preempted" not in tier_words(8.0, hits=[0], recomputed=rows[::-1][:1])


def test_prompts_shorter_than_a_block_have_none_to_load() -> None:
    """That they are computed sooner is not the reason."""
    short = {"crossover_tokens": None, "mean_prompt_tokens": 100}

    said = tier_words(**short, block_size=128)
    assert said.endswith("prompts of 100 tokens have no whole block of 128 to load")
    assert tier_words(**short).endswith("100 tokens are computed sooner than loaded")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("over_limits", [8.94, 6.3], "the median request at 8.9x -> 6.3x its limits"),
        ("over_limits", [None, 6.3], "the median request at n/a -> 6.3x its limits"),
        ("ttft_p99", [1.5, 0.75], "ttft_p99 at 1.5x -> 0.75x its limit"),
        ("finished", [900, 1200], "900 -> 1,200 requests finished"),
    ],
)
def test_what_decided_is_said_of_both_sides(
    name: str, values: list[float | None], words: str
) -> None:
    """Times over a limit, or requests."""
    assert decided({"name": name, "values": values}) == words
