"""Tests for :mod:`profiles.kv_layout`."""

import dataclasses

import pytest

from profiles.kv_layout import kv_layout
from profiles.model import load_model

LLAMA_8B = load_model("Llama-3.1-8B")
GIB = 2**30


def test_a_draft_head_adds_a_layer() -> None:
    """51.63 GiB hold 410,128 tokens of Llama-3.1-8B with EAGLE (vllm issue 19996).

    Without the head's layer they would be 422,944.
    """
    with_head = kv_layout(LLAMA_8B, block_size=16, num_draft_layers=1)
    without = kv_layout(LLAMA_8B, block_size=16)
    num_tokens = [
        layout.num_tokens(int(51.63 * GIB // layout.block_bytes))
        for layout in (with_head, without)
    ]

    assert num_tokens[0] == pytest.approx(410_128, abs=80)
    assert num_tokens[1] == pytest.approx(422_944, abs=80)


def test_heads_are_copied_once_there_are_too_few() -> None:
    """Four KV heads on eight GPUs are one on each: a token takes as much as on four."""
    model = dataclasses.replace(LLAMA_8B, num_kv_heads=4)
    four, eight = (
        kv_layout(model, block_size=16, tensor_parallel_size=size) for size in (4, 8)
    )

    assert four.block_bytes == eight.block_bytes


def _mixed(*windows: int | None) -> dict[str, object]:
    return {"num_layers": len(windows), "layer_windows": windows}


def test_layers_of_one_kind_are_one_group() -> None:
    """With or without a window there is one pool that every layer takes part in."""
    windowed = dataclasses.replace(LLAMA_8B, layer_windows=(4096,) * 32)
    full, window = kv_layout(LLAMA_8B, block_size=16), kv_layout(windowed, block_size=16)

    assert full.group_windows == (None,)
    assert window.group_windows == (4096,)
    assert full.block_bytes == window.block_bytes == 32 * 2 * 8 * 128 * 2 * 16


def test_kinds_of_layers_are_groups_of_equal_size() -> None:
    """Five windowed layers to one that is not are six groups of as many layers."""
    mixed = dataclasses.replace(LLAMA_8B, **_mixed(*([1024] * 5 + [None]) * 4))
    layout = kv_layout(mixed, block_size=16)

    assert layout.num_layers == 4
    assert sorted(layout.group_windows, key=str) == [1024] * 5 + [None]
    assert layout.num_tokens(60) == 160
    billed_as_full = kv_layout(mixed, block_size=16, has_groups=False)
    assert billed_as_full.num_layers == 24


def test_almost_equal_kinds_are_padded() -> None:
    """Twelve and thirteen layers are two groups of thirteen."""
    mixed = dataclasses.replace(LLAMA_8B, **_mixed(*([512, None] * 12 + [None])))
    layout = kv_layout(mixed, block_size=16)

    assert (layout.num_layers, layout.num_groups) == (13, 2)


def test_a_window_bounds_what_a_request_holds() -> None:
    """Window less one and a step's tokens, in whole blocks, and one block more."""
    windowed = dataclasses.replace(LLAMA_8B, layer_windows=(4096,) * 32)
    layout = kv_layout(windowed, block_size=16)

    assert layout.num_request_blocks(100_000, 8192) == (4095 + 8192 + 15) // 16 + 1
    assert layout.num_request_blocks(160, 8192) == 11
    assert kv_layout(LLAMA_8B, block_size=16).num_request_blocks(161, 8192) == 11
