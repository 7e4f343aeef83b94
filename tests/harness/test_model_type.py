"""Tests for the types of a model among the knobs of a run, and what they change."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.config import EngineConfig, model_of, resolve_config
from harness.config.model_type import ModelTypes
from harness.errors import ConfigError
from profiles.errors import CapacityError, ProfileError
from profiles.memory import GIB
from profiles.model import load_model
from profiles.weights import weight_bytes

POLICIES = ("v0", "v1")
TYPES = ("dtype", "quantization", "kv_cache_dtype")


def resolve(**knobs: Any) -> EngineConfig:
    """Resolve for an 8B model on an H100, with room for any of its types."""
    chosen = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "max_model_len": 8192}
    return resolve_config(**(chosen | knobs))


@pytest.mark.parametrize("policy", POLICIES)
def test_types_that_nobody_gave_stay_open(policy: str) -> None:
    """The configuration names none of them, and its model is the checkpoint's."""
    config = resolve(policy=policy)

    assert [getattr(config, name) for name in TYPES] == [None, None, None]
    assert not config.enforce_eager
    assert config.model_profile() == load_model("Llama-3.1-8B")


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_is_what_is_left_open(policy: str) -> None:
    """``auto`` is kept as given and sizes as nothing does."""
    spelled = resolve(policy=policy, dtype="auto", kv_cache_dtype="auto").to_dict()

    assert spelled == resolve(policy=policy).to_dict() | {
        "dtype": "auto",
        "kv_cache_dtype": "auto",
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cache_of_fp8_has_twice_the_blocks(policy: str) -> None:
    """Each takes half the bytes of the same memory."""
    whole, half = (resolve(policy=policy, kv_cache_dtype=kv) for kv in (None, "fp8"))

    assert 2 * half.block_bytes == whole.block_bytes
    assert half.kv_cache_gib == whole.kv_cache_gib
    assert half.num_gpu_blocks - 2 * whole.num_gpu_blocks in (0, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_float32_takes_twice_the_weights_and_twice_the_blocks_bytes(policy: str) -> None:
    """What 15 GiB more of weights leave holds half as many blocks."""
    short, wide = (resolve(policy=policy, dtype=d) for d in (None, "float32"))

    weights_gib = weight_bytes(load_model("Llama-3.1-8B")) / GIB
    lost_gib = short.kv_cache_gib - wide.kv_cache_gib
    assert wide.block_bytes == 2 * short.block_bytes
    assert weights_gib <= lost_gib < weights_gib + 3  # activations are as wide
    assert wide.num_gpu_blocks == wide.kv_cache_gib * GIB // wide.block_bytes


def test_a_cache_can_be_narrower_than_its_weights() -> None:
    """``--kv-cache-dtype`` counts whatever the dtype is."""
    config = resolve(dtype="float32", kv_cache_dtype="fp8")

    assert config.block_bytes == load_model("Llama-3.1-8B").block_bytes(16) // 2


def test_weights_in_fewer_bits_leave_more_blocks() -> None:
    """A quantised checkpoint's bytes are those that the pool is planned beside."""
    whole, quantized = resolve(), resolve(quantization="awq")

    model = load_model("Llama-3.1-8B")
    saved = weight_bytes(model) - weight_bytes(model.with_types(quantization="awq"))
    more = (quantized.num_gpu_blocks - whole.num_gpu_blocks) * whole.block_bytes
    assert quantized.block_bytes == whole.block_bytes
    assert abs(more - saved) <= whole.block_bytes


def test_without_cuda_graphs_there_is_room_for_more_blocks() -> None:
    """Where the version counts them; step times are without them, too: no note."""
    with_graphs, eager = (
        resolve(vllm_version="0.32.0", enforce_eager=e) for e in (False, True)
    )

    assert eager.enforce_eager
    assert eager.num_gpu_blocks > with_graphs.num_gpu_blocks
    assert eager.notes == with_graphs.notes == ()


@pytest.mark.parametrize(
    ("dtype", "is_noted"), [("float32", True), ("float", True), ("half", False)]
)
def test_wide_arithmetic_is_not_timed_and_says_so(dtype: str, is_noted: bool) -> None:
    """Step times are those of 16 bits."""
    notes = resolve(dtype=dtype).notes

    assert any(f"sizes are those of {dtype}; steps" in n for n in notes) == is_noted


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"dtype": "float32"},
        {"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"},
        {"dtype": "half", "quantization": "awq", "kv_cache_dtype": "auto"},
    ],
)
def test_a_stored_configuration_means_the_model_that_was_sized(
    types: dict[str, str],
) -> None:
    """From the JSON of a run its model is built again, types included."""
    config = resolve(num_gpu_blocks_override=1000, **types)

    stored = json.loads(json.dumps(config.to_dict()))
    model = load_model("Llama-3.1-8B").with_types(**types)
    assert model_of(stored) == config.model_profile() == model
    assert config.block_bytes == model.block_bytes(config.block_size)


def test_a_run_from_before_these_options_means_its_checkpoint() -> None:
    """Keys that are missing are types that nobody gave."""
    stored = resolve().to_dict()
    for name in (*TYPES, "enforce_eager"):
        del stored[name]

    assert model_of(stored) == load_model("Llama-3.1-8B")


def test_a_file_is_found_again_under_other_types(tmp_path: Path) -> None:
    """The configuration of a user's own model names its file, not a model of its name."""
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps(
            {
                "_name_or_path": "meta-llama/Llama-3.1-8B",
                "model_type": "llama",
                "num_hidden_layers": 2,
                "hidden_size": 256,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 512,
                "vocab_size": 1000,
                "max_position_embeddings": 8192,
                "tie_word_embeddings": False,
            }
        )
    )

    of_file = resolve(model=str(path), kv_cache_dtype="fp8")
    of_name = resolve(kv_cache_dtype="fp8")

    assert of_file.model == str(path)
    assert of_file.model_profile().num_layers == 2
    assert of_name.model == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("knobs", "error", "message"),
    [
        ({"dtype": "bf16"}, ProfileError, "dtype is 'bf16'; it must be auto or one of"),
        (
            {"kv_cache_dtype": "fp8", "vllm_version": "0.2.7"},
            ConfigError,
            "vLLM 0.2.7 has no --kv-cache-dtype fp8; it has auto",
        ),
        (
            {"kv_cache_dtype": "bfloat16", "policy": "v0"},
            ConfigError,
            "vLLM 0.6.3 has no --kv-cache-dtype bfloat16; it has auto, fp8, fp8_e4m3",
        ),
        (
            {"kv_cache_dtype": "fp8", "gpu": "V100-32GB"},
            ConfigError,
            "V100-32GB has no attention that reads a KV cache of fp8; leave out",
        ),
        ({"dtype": "bfloat16", "gpu": "T4"}, ConfigError, "give --dtype float16"),
        (
            {"model": "Qwen2.5-7B-Instruct-AWQ", "quantization": "fp8"},
            ProfileError,
            "is quantised with awq; fp8 would need another checkpoint",
        ),
        (
            {"model": "DeepSeek-V2-Lite", "vllm_version": "0.7.0"},
            ConfigError,
            "keeps whole heads of deepseek-ai/DeepSeek-V2-Lite",
        ),
        ({"dtype": "float32", "gpu": "RTX-4090"}, CapacityError, "weights (29.98)"),
    ],
)
def test_types_that_are_not_there_are_refused_in_words(
    knobs: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A type that a version, a GPU or a checkpoint lacks is named with the remedy."""
    with pytest.raises(error, match=re.escape(message)):
        resolve(**knobs)


def test_types_have_the_names_of_their_options() -> None:
    """Every one of them is a key of a configuration."""
    config = resolve(dtype="half", kv_cache_dtype="fp8").to_dict()

    assert ModelTypes(**{name: config[name] for name in TYPES}) == ModelTypes(
        dtype="half", kv_cache_dtype="fp8"
    )
