"""Tests for :mod:`profiles.model_config`."""

from collections.abc import Mapping
from typing import Any

import pytest

from profiles.errors import ProfileError
from profiles.model import ModelProfile
from profiles.model_config import ModelConfigError, read_config
from profiles.model_family import FAMILIES
from profiles.weights import weight_bytes

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "vocab_size": 640,
    "max_position_embeddings": 4096,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def read(model_type: str | None = "llama", **keys: Any) -> ModelProfile:
    """A small model of a type."""
    config = {"model_type": model_type, **SMALL, **keys}
    return read_config(config, name="small", source="a/config.json")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_type_is_read(model_type: str) -> None:
    """Each known type gives a model whose weights are its parameters."""
    model = read(model_type)
    rope = model.max_model_len * model.rotary_dim * 2

    assert weight_bytes(model) == 2 * model.num_params + rope
    assert model.has_experts == FAMILIES[model_type].has_experts


# Windows of six layers as transformers fills them in, w a window and - none.
WINDOWS = [
    ("llama", {"sliding_window": 8}, "------"),
    ("mistral", {"sliding_window": 8}, "wwwwww"),
    ("mistral", {"sliding_window": None}, "------"),
    ("phi3", {"sliding_window": 4096}, "------"),
    ("qwen2", {"sliding_window": 8, "max_window_layers": 4}, "------"),
    (
        "qwen2",
        {"sliding_window": 8, "max_window_layers": 4, "use_sliding_window": True},
        "----ww",
    ),
    ("gemma2", {"sliding_window": 8}, "w-w-w-"),
    ("gemma3_text", {"sliding_window": 8}, "wwwww-"),
    ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}, "w-w-w-"),
    ("gpt_oss", {"sliding_window": 8}, "w-w-w-"),
    (
        "llama",
        {
            "sliding_window": 8,
            "layer_types": ["full_attention"] * 5 + ["sliding_attention"],
        },
        "-----w",
    ),
]


@pytest.mark.parametrize(("model_type", "keys", "expected"), WINDOWS)
def test_windows_are_read_as_the_models_code_does(
    model_type: str, keys: dict[str, Any], expected: str
) -> None:
    """Which layers have a window follows from the type and the keys together."""
    windows = read(model_type, **keys).layer_windows

    assert "".join("w" if window else "-" for window in windows) == expected


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"type": "longrope"}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16_384),
        ({"type": "dynamic", "factor": 2.0}, 8192),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
            4096,
        ),
        ({"type": "yarn", "factor": 4.0}, 16_384),
    ],
)
def test_a_rope_may_stretch_the_context(
    rope: dict[str, Any] | None, expected: int
) -> None:
    """Some ropes reach past max_position_embeddings; in others it is the reach."""
    assert read(rope_scaling=rope).max_model_len == expected


def test_first_layers_may_be_dense() -> None:
    """DeepSeek's first layers have one MLP; its shared experts are one MLP together."""
    model = read(
        "deepseek_v3",
        first_k_dense_replace=2,
        n_shared_experts=3,
        moe_intermediate_size=32,
    )

    assert model.experts is not None
    assert model.experts.layers == frozenset({2, 3, 4, 5})
    assert model.experts.shared_intermediate_size == 96


def test_experts_may_be_in_every_other_layer() -> None:
    """Qwen's sparse layers are each step-th but those named as dense."""
    model = read("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3])

    assert model.experts is not None
    assert model.experts.layers == frozenset({1, 5})


def test_a_model_that_sees_is_read_as_its_decoder() -> None:
    """Of a model with a vision tower the text model and the quantisation are read."""
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32}
    nested = {
        "model_type": "gemma3",
        "quantization_config": quantization,
        "text_config": {"model_type": "gemma3_text", **SMALL},
    }
    model = read_config(nested, name="small", source="a/config.json")

    assert model.num_params == read("gemma3_text").num_params
    assert model.quantization is not None


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"model_type": "mamba2"}, "model_type", "is 'mamba2'; it must be one of"),
        ({"model_type": None}, "model_type", "is missing; it must be one of"),
        ({"hidden_size": None}, "hidden_size", "is missing; add it"),
        ({"vocab_size": "many"}, "vocab_size", "is 'many'; it must be a whole number"),
        ({"layer_types": ["linear_attention"] * 6}, "layer_types", "without them"),
        ({"layer_types": ["full_attention"]}, "layer_types", "each of the 6 layers"),
        ({"word_embed_proj_dim": 32}, "word_embed_proj_dim", "is 32"),
        (
            {"model_type": "mixtral", "num_local_experts": None},
            "num_local_experts",
            "add",
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    keys: dict[str, Any], key: str, message: str
) -> None:
    """The error names the file, the key and what to do."""
    with pytest.raises(ModelConfigError, match=message) as raised:
        read(**{"model_type": "llama", **keys})

    assert (raised.value.source, raised.value.key) == ("a/config.json", key)


def int4(strategy: str = "group", **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    scheme = {"num_bits": 4, "type": "int", "strategy": strategy, **weights}
    groups = {"group_0": {"weights": scheme}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("config", "bytes_per_param"),
    [
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 1 + 3 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 0.5),
        ({"quant_method": "mxfp4"}, 0.5 + 1 / 32),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
        (int4(group_size=128), 0.5 + 2 / 128),
        (int4(group_size=128, symmetric=False), 0.5 + 2.5 / 128),
        (int4("tensor_group", type="float", group_size=16), 0.5 + 1 / 16),
        (int4("channel", num_bits=8), 1),
        (int4("block", num_bits=8, type="float"), 1 + 4 / 16384),
    ],
)
def test_scales_and_zero_points_are_shared_out(
    config: Mapping[str, Any], bytes_per_param: float
) -> None:
    """A quantised parameter takes its bits and its share of what its group keeps."""
    quantization = read(quantization_config=config).quantization

    assert quantization is not None
    assert quantization.bytes_per_param == pytest.approx(bytes_per_param)


@pytest.mark.parametrize(
    ("ignored", "is_quantized"),
    [
        ([], True),
        (["lm_head"], True),
        (["self_attn"], False),
        (["model.layers.3.self_attn"], False),
        (["model.layers.3.self_attn.q_proj"], False),
        (["model.layers.33.self_attn"], True),
        (["re:.*self_attn.*"], False),
        (["model.layers.3.self_attn*"], False),
        (["model.layers.*.self_attn"], False),
        (["language_model.model.layers.3.self_attn"], False),
    ],
)
def test_ignored_modules_keep_the_dtype(ignored: list[str], is_quantized: bool) -> None:
    """A checkpoint names what it left alone in full, in part or by pattern."""
    config = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    quantization = read(quantization_config=config).quantization

    assert quantization is not None
    assert quantization.has_quantized("model.layers.3.self_attn.q_proj") == is_quantized


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "aqlm"}, "is 'aqlm'; it must be one of fp8, awq"),
        ({"quant_method": "awq"}, "has no 'bits'; awq needs it"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "must be FP8 or NVFP4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4}},
                    "b": {"weights": {"num_bits": 8}},
                },
            },
            "in different ways",
        ),
    ],
)
def test_an_unknown_quantization_is_refused(config: dict[str, Any], message: str) -> None:
    """What the weights take is never guessed."""
    with pytest.raises(ProfileError, match=message):
        read(quantization_config=config)
