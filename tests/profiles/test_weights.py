"""Tests for :mod:`profiles.weights`: what vLLM printed, and how ranks share weights."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import CapacityError
from profiles.model import ModelProfile, known_models, load_model
from profiles.weights import rope_cache_bytes, weight_bytes

GIB = 2**30

# What vLLM printed for a rank, in GiB (it wrote GB up to 0.8). Source: memory.csv and
# kv_ground_truth.csv of the project's shared measurements: the benchmark or issue named.
PRINTED_BF16 = {
    ("Llama-3.1-8B", 1): 14.99,  # llm-d-benchmark, vLLM 0.11.0
    ("Meta-Llama-3-8B", 1): 14.96,  # vllm#12330
    ("Qwen3-0.6B", 1): 1.12,  # llm-d-benchmark
    ("Qwen3-32B", 1): 61.03,  # llm-d-benchmark
    ("Qwen3-32B", 2): 30.59,  # llm-d-benchmark
    ("Qwen2-7B-Instruct", 2): 7.1217,  # vllm#17395
    ("Qwen2.5-32B-Instruct", 1): 61.0374,  # vllm#16301
    ("granite-3.1-3b-a800m-instruct", 1): 6.1501,  # production-stack, vLLM 0.7.2
}
PRINTED_QUANTIZED = {
    ("gpt-oss-20b", 1): 13.47,  # llm-d-benchmark
    ("nvidia/Llama-3.3-70B-Instruct-FP4", 1): 39.88,  # InferenceX, vLLM 0.15.0
    ("CodeLlama-34B-Instruct-AWQ", 1): 17.056,  # vllm#6509
    ("Qwen3-30B-A3B-FP8", 1): 29.09,  # vllm#25350
}


@pytest.mark.parametrize(
    ("name", "size", "printed"), [(*key, gib) for key, gib in PRINTED_BF16.items()]
)
def test_weights_are_what_vllm_printed(name: str, size: int, printed: float) -> None:
    """In 16 bits the estimate is within half a percent of the log."""
    num_bytes = weight_bytes(load_model(name), tensor_parallel_size=size)

    assert num_bytes / GIB == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize(
    ("name", "size", "printed"), [(*key, gib) for key, gib in PRINTED_QUANTIZED.items()]
)
def test_quantized_weights_are_what_vllm_printed(
    name: str, size: int, printed: float
) -> None:
    """With scales, zero points and padding the estimate is within half a percent too."""
    num_bytes = weight_bytes(load_model(name), tensor_parallel_size=size)

    assert num_bytes / GIB == pytest.approx(printed, rel=0.005)


models = st.sampled_from(known_models()).map(load_model)
sizes = st.sampled_from([2, 4, 8])


@given(model=models, size=sizes)
def test_ranks_together_hold_all_weights(model: ModelProfile, size: int) -> None:
    """Each rank holds at least its share of the model, and less than all of it."""
    try:
        share = weight_bytes(model, tensor_parallel_size=size)
    except CapacityError:
        return
    whole = weight_bytes(model)

    assert whole / size <= share < whole


@given(model=models, data=st.data())
def test_stages_together_hold_all_weights(
    model: ModelProfile, data: st.DataObject
) -> None:
    """Two stages hold the model, its rope twice and a tied table twice."""
    cut = data.draw(st.integers(1, model.num_layers - 1))
    first = weight_bytes(model, layers=range(cut), has_head=False)
    last = weight_bytes(model, layers=range(cut, model.num_layers), has_embedding=False)
    padded_vocab = -(-model.vocab_size // 64) * 64
    table = padded_vocab * model.hidden_size * model.bytes_per_param
    twice = rope_cache_bytes(model) + (table if model.tie_word_embeddings else 0)

    assert first + last == weight_bytes(model) + twice


@given(model=models)
def test_unquantized_weights_are_the_parameters(model: ModelProfile) -> None:
    """One rank in 16 bits holds two bytes a parameter, padding and the rope."""
    plain = dataclasses.replace(model, quantization=None)
    num_tables = 1 if model.tie_word_embeddings else 2
    padding = -model.vocab_size % 64 * model.hidden_size * num_tables
    expected = 2 * (model.num_params + padding) + rope_cache_bytes(model)

    assert weight_bytes(plain) == expected


def test_kv_heads_are_held_twice_once_they_run_out() -> None:
    """Eight ranks with four KV heads hold each head's projections twice."""
    model = load_model("Qwen3-30B-A3B")
    four = model.layer_modules(0, 4)[1]
    eight = model.layer_modules(0, 8)[1]

    assert (four.name, four.num_weights) == (eight.name, eight.num_weights)


def test_latent_projections_are_whole_on_every_rank() -> None:
    """What leads to a latent vector is not shared out; what leads away from it is."""
    shares = {
        whole.name.split(".")[-1]: whole.num_weights // part.num_weights
        for whole, part in zip(
            load_model("DeepSeek-R1").layer_modules(0),
            load_model("DeepSeek-R1").layer_modules(0, 8),
            strict=True,
        )
    }

    assert shares == {
        "q_a_proj": 1,
        "kv_a_proj_with_mqa": 1,
        "q_b_proj": 8,
        "kv_b_proj": 8,
        "o_proj": 8,
        "gate_proj": 8,
        "up_proj": 8,
        "down_proj": 8,
    }


def test_fp32_takes_twice_the_bytes() -> None:
    """Everything that is not quantised follows the dtype."""
    model = load_model("Llama-3.1-8B")

    assert weight_bytes(model.with_types(dtype="float32")) == 2 * weight_bytes(model)


def test_heads_that_cannot_be_shared_are_refused() -> None:
    """A rank of three has no third of 32 heads."""
    with pytest.raises(CapacityError, match="32 attention heads"):
        weight_bytes(load_model("Llama-3.1-8B"), tensor_parallel_size=3)
