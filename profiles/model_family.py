"""What the code of each ``model_type`` adds to a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Says = bool | str
"""A fact of all models of a family, or the key of config.json that tells it."""

Windows = Literal["none", "all", "upper", "alternate", "pattern"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What config.json leaves to the code of a ``model_type``.

    Attributes:
        windows: Layers with ``sliding_window`` where ``layer_types`` does not tell: all,
            those from ``max_window_layers`` on, every other one, or all but each
            ``sliding_window_pattern``-th.
        has_rope: Positions are rotated; else they are learned.
        defaults: Of keys that config.json may leave out.

    Source: transformers 5.19, ``configuration_*.py`` and ``modeling_*.py`` of each.
    """

    qkv_bias: Says = False
    o_bias: Says = False
    mlp_bias: Says = False
    lm_head_bias: Says = False
    qk_norm: Says = False
    has_wide_qk_norm: bool = False
    has_norm_bias: bool = False
    has_sinks: bool = False
    num_norms_per_layer: int = 2
    is_mlp_gated: bool = True
    has_rope: bool = True
    has_experts: bool = False
    has_router_bias: bool = False
    has_shared_gate: bool = False
    windows: Windows = "none"
    defaults: Mapping[str, Any] | None = None


_TIED = {"tie_word_embeddings": True}
_GEMMA = {**_TIED, "head_dim": 256}
_GEMMA_2 = {**_GEMMA, "sliding_window": 4096}
_GEMMA_3 = {
    **_GEMMA_2,
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
}
_ALL_ATTENTION: dict[str, Says] = {
    "qkv_bias": "attention_bias",
    "o_bias": "attention_bias",
}
_LLAMA = Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_GEMMA_3_TEXT = Family(
    qk_norm=True, num_norms_per_layer=4, windows="pattern", defaults=_GEMMA_3
)
_DEEPSEEK_V3 = Family(has_experts=True, has_router_bias=True)

FAMILIES = {
    "deepseek_v2": Family(has_experts=True),
    "deepseek_v3": _DEEPSEEK_V3,
    "gemma": Family(defaults=_GEMMA),
    "gemma2": Family(num_norms_per_layer=4, windows="alternate", defaults=_GEMMA_2),
    "gemma3": _GEMMA_3_TEXT,
    "gemma3_text": _GEMMA_3_TEXT,
    "glm4": Family(
        qkv_bias="attention_bias",
        num_norms_per_layer=4,
        defaults={"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5},
    ),
    "glm4_moe": Family(
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        has_experts=True,
        has_router_bias=True,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias=True,
        has_sinks=True,
        has_experts=True,
        has_router_bias=True,
        windows="alternate",
        defaults={"attention_bias": True, "head_dim": 64, "sliding_window": 128},
    ),
    "granite": _LLAMA,
    "granitemoe": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", has_experts=True
    ),
    "internlm2": Family(qkv_bias="bias", o_bias="bias"),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": _LLAMA,
    "mistral": Family(windows="all", defaults={"sliding_window": 4096}),
    "mixtral": Family(has_experts=True, windows="all"),
    "olmo2": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", has_wide_qk_norm=True
    ),
    "opt": Family(
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        has_norm_bias=True,
        is_mlp_gated=False,
        has_rope=False,
        defaults=_TIED,
    ),
    "phi": Family(
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        lm_head_bias=True,
        has_norm_bias=True,
        num_norms_per_layer=1,
        is_mlp_gated=False,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "phi3": Family(windows="all"),
    "phimoe": Family(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        lm_head_bias="lm_head_bias",
        has_norm_bias=True,
        has_experts=True,
        windows="all",
    ),
    "qwen2": Family(qkv_bias=True, windows="upper"),
    "qwen2_moe": Family(
        qkv_bias=True, has_experts=True, has_shared_gate=True, windows="upper"
    ),
    "qwen3": Family(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        qk_norm=True,
        windows="upper",
        defaults={"head_dim": 128},
    ),
    "qwen3_moe": Family(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        qk_norm=True,
        has_experts=True,
        windows="upper",
    ),
    "starcoder2": Family(
        qkv_bias="use_bias",
        o_bias="use_bias",
        mlp_bias="use_bias",
        has_norm_bias=True,
        is_mlp_gated=False,
        windows="all",
        defaults={**_TIED, "use_bias": True},
    ),
}
