"""Tests for :mod:`profiles.model`."""

import dataclasses

import pytest

from profiles.errors import CapacityError, UnknownNameError
from profiles.model import known_models, load_model

# Totals that Hugging Face prints beside each repository's safetensors files.
PUBLISHED_PARAMS = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-3-1b-pt": 999_885_952,
}


@pytest.mark.parametrize(("name", "num_params"), PUBLISHED_PARAMS.items())
def test_parameters_follow_from_the_architecture(name: str, num_params: int) -> None:
    """The count from layers and sizes is the published one to the last parameter."""
    assert load_model(name).num_params == num_params


def test_every_bundled_model_is_checked_against_a_published_total() -> None:
    """No model enters the table without a published parameter count."""
    assert set(known_models()) == set(PUBLISHED_PARAMS)


@pytest.mark.parametrize(
    "name",
    ["Llama-3.1-8B", "LLAMA-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"],
)
def test_one_model_has_many_names(name: str) -> None:
    """Case, owner and ``-Instruct`` do not change the profile."""
    assert load_model(name) is load_model("meta-llama/Llama-3.1-8B")


def test_unknown_model_names_its_neighbour() -> None:
    """A misspelt id is refused with the nearest one."""
    with pytest.raises(UnknownNameError, match="did you mean Qwen/Qwen3-8B"):
        load_model("Qwen/Qwen-8B")


def test_tied_embeddings_are_counted_once() -> None:
    """Tying saves exactly one table of vocabulary by hidden size."""
    model = load_model("Qwen3-8B")
    tied = dataclasses.replace(model, tie_word_embeddings=True)

    assert model.num_params - tied.num_params == 151_936 * 4096


@pytest.mark.parametrize(
    ("tensor_parallel_size", "expected_bytes"),
    [(1, 131_072), (2, 65_536), (8, 16_384), (16, 16_384), (32, 16_384)],
)
def test_kv_heads_are_copied_once_they_run_out(
    tensor_parallel_size: int, expected_bytes: int
) -> None:
    """Beyond as many GPUs as KV heads the cache of a token shrinks no more."""
    model = load_model("Llama-3.1-8B")

    assert model.kv_bytes_per_token(tensor_parallel_size) == expected_bytes
    assert model.block_bytes(16, tensor_parallel_size) == 16 * expected_bytes


@pytest.mark.parametrize("tensor_parallel_size", [0, -2, 3, 64])
def test_tensor_parallel_size_divides_the_heads(tensor_parallel_size: int) -> None:
    """Heads that cannot be shared out evenly are refused with their number."""
    with pytest.raises(CapacityError, match="32 attention heads"):
        load_model("Llama-3.1-8B").kv_bytes_per_token(tensor_parallel_size)


def test_windows_are_of_all_layers_or_mixed() -> None:
    """Mistral's layers share one window; where layers differ, the model says that."""
    mistral = load_model("Mistral-7B-v0.1")
    mixed = {name for name in known_models() if load_model(name).mixes_windows}

    assert (mistral.sliding_window, mistral.mixes_windows) == (4096, False)
    assert mixed == {"google/gemma-2-9b", "google/gemma-3-1b-pt"}
    assert {load_model(name).sliding_window for name in mixed} == {None}
