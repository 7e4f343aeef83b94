"""Tests for :mod:`profiles.pipeline`."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import CapacityError
from profiles.model import load_model
from profiles.pipeline import stages

LLAMA_8B = load_model("Llama-3.1-8B")


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "counts"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        (62, 4, [15, 16, 16, 15]),
        (61, 4, [15, 15, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 2, [3, 2]),
    ],
)
def test_what_is_over_goes_before_the_last(
    num_layers: int, num_stages: int, counts: list[int]
) -> None:
    """The stages are those that vLLM 0.32.0 gives out."""
    model = dataclasses.replace(
        LLAMA_8B, num_layers=num_layers, layer_windows=(None,) * num_layers
    )

    assert [len(layers) for layers in stages(model, num_stages)] == counts


@given(num_stages=st.integers(1, 32))
def test_stages_cover_all_layers_once(num_stages: int) -> None:
    """In order, without a gap, and as even as can be."""
    of_stages = stages(LLAMA_8B, num_stages)
    counts = [len(layers) for layers in of_stages]

    assert [layer for layers in of_stages for layer in layers] == list(range(32))
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("num_stages", [0, 33])
def test_more_stages_than_layers_are_refused(num_stages: int) -> None:
    """Every stage needs a layer."""
    with pytest.raises(CapacityError, match="give 1 to 32"):
        stages(LLAMA_8B, num_stages)
