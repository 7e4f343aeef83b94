"""From the config.json of a checkpoint to the profile of its model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.architecture import ModelProfile
from profiles.errors import ProfileError
from profiles.layer import Experts, Mla
from profiles.model_family import FAMILIES, Family, Says, Windows
from profiles.quantization import read_quantization


class ModelConfigError(ProfileError):
    """A config.json that no profile can be read from.

    Attributes:
        source: The file, or the entry of a file.
        key: What is missing or not understood.
    """

    def __init__(self, source: str, key: str, what_is: str, remedy: str) -> None:
        self.source = source
        self.key = key
        super().__init__(f"{source}: {key} {what_is}; {remedy}")


ATTENTION_LAYERS = {"full_attention": False, "sliding_attention": True}
"""Kinds of ``layer_types`` with a KV cache that grows, and whether they have a window."""

UNSCALED_ROPES = ("default", "su", "longrope", "llama3", "mrope")
"""Ropes whose ``max_position_embeddings`` says how far they reach.

Source: vLLM 0.32.0 config/model.py ``_get_and_verify_max_len``.
"""


@dataclass(frozen=True, slots=True)
class _Config:
    """Keys of a config.json, the defaults of its family below them."""

    keys: Mapping[str, Any]
    source: str

    def get(self, key: str, default: Any = None) -> Any:
        value = self.keys.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number.

        Raises:
            ModelConfigError: It is missing without a default, or is something else.
        """
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing", "add it as the published file has it")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(
                key, f"is {value!r}", "it must be a whole number of at least 1"
            )
        return value

    def says(self, fact: Says) -> bool:
        return bool(self.get(fact, False)) if isinstance(fact, str) else fact

    def error(self, key: str, what_is: str, remedy: str) -> ModelConfigError:
        return ModelConfigError(self.source, key, what_is, remedy)


def read_config(raw: Mapping[str, Any], *, name: str, source: str) -> ModelProfile:
    """The profile of the model that a config.json describes.

    Of a model that also sees, only the decoder of text is read.

    Args:
        raw: The file's content.
        name: The model's.
        source: What to call the file in errors and in the profile.

    Raises:
        ProfileError: The model is of an unknown kind, or a key is missing.
    """
    keys = _text_keys(raw)
    family = _family(keys, source)
    config = _Config({**(family.defaults or {}), **keys}, source)
    _check_opt(config)
    num_heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", config.count("hidden_size") // num_heads)
    max_model_len = _max_model_len(config)
    mla = _mla(config)
    quantized = config.get("quantization_config")
    return ModelProfile(
        name=name,
        num_layers=config.count("num_hidden_layers"),
        hidden_size=config.count("hidden_size"),
        num_attention_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", num_heads),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else head_dim,
        intermediate_size=_intermediate_size(config),
        vocab_size=config.count("vocab_size"),
        tie_word_embeddings=config.says("tie_word_embeddings"),
        max_model_len=max_model_len,
        is_mlp_gated=family.is_mlp_gated,
        has_qkv_bias=config.says(family.qkv_bias),
        has_o_bias=config.says(family.o_bias),
        has_mlp_bias=config.says(family.mlp_bias),
        has_lm_head_bias=config.says(family.lm_head_bias),
        has_norm_bias=family.has_norm_bias,
        has_sinks=family.has_sinks,
        qk_norm=config.says(family.qk_norm),
        has_wide_qk_norm=family.has_wide_qk_norm,
        num_norms_per_layer=family.num_norms_per_layer,
        num_positions=0 if family.has_rope else max_model_len + OPT_EXTRA_POSITIONS,
        rotary_dim=_rotary_dim(config, family, mla, head_dim),
        layer_windows=_layer_windows(config, family.windows, max_model_len),
        mla=mla,
        experts=_experts(config, family) if family.has_experts else None,
        quantization=read_quantization(quantized) if quantized else None,
        source=source,
    )


OPT_EXTRA_POSITIONS = 2
"""Rows that OPT's table of positions has before the first. Source: modeling_opt.py."""


def _text_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the text model; of those around it only the quantisation."""
    inner = raw.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(raw)
    outer = {
        key: raw[key]
        for key in ("model_type", "quantization_config", "tie_word_embeddings")
        if key in raw
    }
    return {**outer, **inner}


def _family(keys: Mapping[str, Any], source: str) -> Family:
    model_type = keys.get("model_type")
    if model_type not in FAMILIES:
        raise ModelConfigError(
            source,
            "model_type",
            "is missing" if model_type is None else f"is {model_type!r}",
            f"it must be one of {', '.join(FAMILIES)}; describe the model as one of these"
            " if it is built like it, else its sizes are not known here",
        )
    return FAMILIES[model_type]


def _check_opt(config: _Config) -> None:
    """Refuse the one OPT with projections around the decoder."""
    width = config.get("word_embed_proj_dim", config.count("hidden_size"))
    if width != config.count("hidden_size"):
        raise config.error(
            "word_embed_proj_dim",
            f"is {width}",
            f"only {config.count('hidden_size')}, the hidden_size, is understood; take"
            " another model (of OPT all but 350m)",
        )


def _intermediate_size(config: _Config) -> int:
    key = "ffn_dim" if config.get("model_type") == "opt" else "intermediate_size"
    return config.count(key)


def _rotary_dim(config: _Config, family: Family, mla: Mla | None, head_dim: int) -> int:
    if not family.has_rope:
        return 0
    if mla is not None:
        return mla.qk_rope_head_dim
    return int(head_dim * config.get("partial_rotary_factor", 1.0))


def _mla(config: _Config) -> Mla | None:
    if config.get("kv_lora_rank") is None:
        return None
    return Mla(
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
        q_lora_rank=config.get("q_lora_rank"),
    )


def _experts(config: _Config, family: Family) -> Experts:
    width_key = "moe_intermediate_size"
    if config.get(width_key) is None:
        width_key = "intermediate_size"
    width = config.count(width_key)
    shared = config.get("n_shared_experts", 0) * width
    return Experts(
        num_experts=config.count(_experts_key(config)),
        num_experts_per_token=config.count(
            "num_experts_per_tok", config.get("experts_per_token")
        ),
        intermediate_size=width,
        shared_intermediate_size=config.get("shared_expert_intermediate_size", shared),
        has_shared_gate=family.has_shared_gate,
        has_router_bias=family.has_router_bias,
        has_bias=config.says(family.mlp_bias),
        layers=_expert_layers(config),
    )


def _experts_key(config: _Config) -> str:
    keys = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((key for key in keys if config.get(key) is not None), keys[0])


def _expert_layers(config: _Config) -> frozenset[int]:
    """Layers past the first dense ones, at the family's two ways of leaving some out.

    Source: modeling_deepseek.py (``moe_layer_freq``), modeling_qwen2_moe.py
    (``decoder_sparse_step``, ``mlp_only_layers``).
    """
    first = config.get("first_k_dense_replace", 0)
    every = config.get("moe_layer_freq", 1)
    step = config.get("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers", ())
    return frozenset(
        layer
        for layer in range(config.count("num_hidden_layers"))
        if layer >= first
        and layer % every == 0
        and (layer + 1) % step == 0
        and layer not in dense
    )


def _layer_windows(
    config: _Config, windows: Windows, max_model_len: int
) -> tuple[int | None, ...]:
    """Window of each layer; one as long as the context is none."""
    num_layers = config.count("num_hidden_layers")
    types = config.get("layer_types")
    if types is not None:
        has_window = [_is_sliding(config, kind) for kind in types]
    elif config.get("sliding_window") is None:
        return (None,) * num_layers
    else:
        has_window = [_has_window(config, windows, layer) for layer in range(num_layers)]
    if len(has_window) != num_layers:
        raise config.error(
            "layer_types",
            f"has {len(has_window)} entries",
            f"it must have one for each of the {num_layers} layers",
        )
    window = config.count("sliding_window") if any(has_window) else max_model_len
    shown = window if window < max_model_len else None
    return tuple(shown if has else None for has in has_window)


def _is_sliding(config: _Config, kind: str) -> bool:
    if kind not in ATTENTION_LAYERS:
        raise config.error(
            "layer_types",
            f"has {kind!r}",
            f"only {' and '.join(ATTENTION_LAYERS)} are understood; layers of another"
            " kind keep a state that is not cut into blocks of tokens: take a model"
            " without them",
        )
    return ATTENTION_LAYERS[kind]


def _has_window(config: _Config, windows: Windows, layer: int) -> bool:
    """Source: transformers 5.19, how each configuration fills in ``layer_types``."""
    if windows == "upper":
        first: int = config.get("max_window_layers", 28)
        return config.says("use_sliding_window") and layer >= first
    if windows == "alternate":
        return layer % 2 == 0
    if windows == "pattern":
        return (layer + 1) % config.count("sliding_window_pattern") != 0
    return windows == "all"


def _max_model_len(config: _Config) -> int:
    """Tokens that the positions reach to, stretched where the rope says so.

    Source: vLLM 0.32.0 config/model.py ``_get_and_verify_max_len``.
    """
    positions = config.count("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    is_gemma_3 = str(config.get("model_type")).startswith("gemma3")
    if kind in UNSCALED_ROPES or is_gemma_3:
        return positions
    if kind in ("yarn", "deepseek_yarn"):
        positions = rope.get("original_max_position_embeddings", positions)
    return int(positions * rope.get("factor", 1))
