"""How the weights of a model are quantised, and what that takes per parameter."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from profiles.errors import ProfileError

FP8_BLOCK = (128, 128)
FP32_BYTES, FP16_BYTES, FP8_BYTES = 4, 2, 1

SAME_METHOD = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "modelopt_fp4": "modelopt",
    "fbgemm_fp8": "fp8",
}
"""Names of kernels, for checkpoints of another name.

Source: vLLM 0.32.0 ``--quantization``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Linear layers in fewer bits; embeddings and the language head keep the dtype.

    Attributes:
        method: As in ``quantization_config`` or ``--quantization``.
        weight_type: ``fp8``, ``fp8_block``, ``nvfp4``, ``mxfp4``, ``int4`` or ``int8``.
        bytes_per_param: Of a quantised parameter, its share of scales and zeros included.
        ignored: Modules that keep the dtype, as the checkpoint names them.
        hidden_multiple: The engine pads the hidden size of quantised experts to this.
    """

    method: str
    weight_type: str
    bytes_per_param: float
    ignored: tuple[str, ...] = ()
    hidden_multiple: int = 1

    def has_quantized(self, module: str) -> bool:
        """Whether a linear layer such as ``model.layers.0.mlp.up_proj`` is quantised."""
        return not _is_ignored(module, self.ignored)


def read_quantization(config: Mapping[str, Any]) -> Quantization:
    """The quantisation that a ``quantization_config`` describes.

    Raises:
        ProfileError: Its method is unknown, or a key of it is missing or not understood.
    """
    method = config.get("quant_method")
    bytes_per_param = _BYTES_PER_PARAM.get(SAME_METHOD.get(str(method), str(method)))
    if bytes_per_param is None:
        raise ProfileError(
            f"quantization_config.quant_method is {method!r}; it must be one of"
            f" {', '.join(_BYTES_PER_PARAM)}; take a checkpoint of one of these"
        )
    try:
        num_bytes = bytes_per_param(config)
        return Quantization(
            method=str(method),
            weight_type=_weight_type(str(method), config),
            bytes_per_param=num_bytes,
            ignored=_ignored(config),
            hidden_multiple=256 if method == "mxfp4" else 1,
        )
    except KeyError as missing:
        raise ProfileError(
            f"quantization_config has no {missing}; {method} needs it; add the key as"
            " the published config.json has it"
        ) from missing


def requantized(
    current: Quantization | None, method: str, name: str
) -> Quantization | None:
    """The quantisation under ``--quantization method`` of a checkpoint.

    fp8 is what the engine makes of a checkpoint as it loads it. For awq and gptq it is
    that of a checkpoint in 4 bits with a scale for each 128 parameters, as most have.

    Raises:
        ProfileError: The checkpoint is quantised otherwise, or would have to be.
    """
    wanted = SAME_METHOD.get(method, method)
    if current is not None:
        if wanted != SAME_METHOD.get(current.method, current.method):
            raise ProfileError(
                f"{name} is quantised with {current.method}; {method} would need another"
                " checkpoint; leave quantization out, or name that checkpoint"
            )
        return current
    if wanted not in _DERIVED:
        raise ProfileError(
            f"{name} is not quantised; of its parameters alone only"
            f" {', '.join(_DERIVED)} follow, not {method}; name the quantised checkpoint,"
            " or give the path of its config.json"
        )
    return read_quantization({"quant_method": wanted, **_DERIVED[wanted]})


def _fp8_bytes(config: Mapping[str, Any]) -> float:
    """A byte each, and an fp32 scale per block; one per tensor weighs nothing."""
    block = config.get("weight_block_size")
    return FP8_BYTES + (FP32_BYTES / (block[0] * block[1]) if block else 0)


def _grouped_bytes(
    bits: int, group_size: int, scale_bytes: int, *, has_zeros: bool
) -> float:
    """Bits, and a scale and perhaps a zero point for each group; -1 is a whole row."""
    num_bytes = bits / 8
    if group_size > 0:
        num_bytes += (scale_bytes + (bits / 8 if has_zeros else 0)) / group_size
    return num_bytes


def _int_bytes(config: Mapping[str, Any]) -> float:
    """AWQ and GPTQ: fp16 scales and zero points of as many bits as the weights.

    Source: arXiv 2306.00978 and 2210.17323; AutoAWQ and AutoGPTQ store both per group.
    """
    bits, group_size = config["bits"], config["group_size"]
    return _grouped_bytes(bits, group_size, FP16_BYTES, has_zeros=True)


def _mxfp4_bytes(config: Mapping[str, Any]) -> float:
    """Four bits, and a scale of a byte for 32. Source: OCP MX specification 1.0, 5.2."""
    return _grouped_bytes(4, 32, FP8_BYTES, has_zeros=False)


def _modelopt_bytes(config: Mapping[str, Any]) -> float:
    """NVFP4: four bits, and an fp8 scale for 16 (one fp32 per tensor weighs nothing)."""
    if config["quant_algo"] == "FP8":
        return FP8_BYTES
    if config["quant_algo"] != "NVFP4":
        raise ProfileError(
            f"quantization_config.quant_algo is {config['quant_algo']!r}; it must be FP8"
            " or NVFP4; take a checkpoint of one of these"
        )
    return _grouped_bytes(4, 16, FP8_BYTES, has_zeros=False)


def _compressed_bytes(config: Mapping[str, Any]) -> float:
    """What the groups of layers agree on.

    Raises:
        ProfileError: They are quantised in different ways.
    """
    sizes = {
        _scheme_bytes(group["weights"]) for group in config["config_groups"].values()
    }
    if len(sizes) != 1:
        raise ProfileError(
            "quantization_config.config_groups quantises layers in different ways; one"
            " way for all is understood; take such a checkpoint"
        )
    return sizes.pop()


def _scheme_bytes(weights: Mapping[str, Any]) -> float:
    strategy = weights.get("strategy", "channel")
    if strategy == "block":
        block = weights.get("block_structure") or FP8_BLOCK
        return _fp8_bytes({"weight_block_size": block})
    is_fp4 = weights["num_bits"] == 4 and weights.get("type") == "float"
    return _grouped_bytes(
        weights["num_bits"],
        weights["group_size"] if strategy in ("group", "tensor_group") else -1,
        FP8_BYTES if is_fp4 else FP16_BYTES,
        has_zeros=not weights.get("symmetric", True),
    )


def _weight_type(method: str, config: Mapping[str, Any]) -> str:
    """What the parameters are; the config has been understood before."""
    match SAME_METHOD.get(method, method):
        case "fp8":
            return "fp8_block" if config.get("weight_block_size") else "fp8"
        case "modelopt":
            return {"FP8": "fp8", "NVFP4": "nvfp4"}[config["quant_algo"]]
        case "mxfp4":
            return "mxfp4"
        case "compressed-tensors":
            return _scheme_type(next(iter(config["config_groups"].values()))["weights"])
    return f"int{config['bits']}"


def _scheme_type(weights: Mapping[str, Any]) -> str:
    if weights.get("type") != "float":
        return f"int{weights['num_bits']}"
    if weights["num_bits"] == 4:
        return "nvfp4"
    return "fp8_block" if weights.get("strategy") == "block" else "fp8"


_BYTES_PER_PARAM = {
    "fp8": _fp8_bytes,
    "awq": _int_bytes,
    "gptq": _int_bytes,
    "mxfp4": _mxfp4_bytes,
    "modelopt": _modelopt_bytes,
    "compressed-tensors": _compressed_bytes,
}

_DERIVED: dict[str, dict[str, Any]] = {
    "fp8": {},
    "awq": {"bits": 4, "group_size": 128},
    "gptq": {"bits": 4, "group_size": 128},
}


def _ignored(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules of the three keys in use; mxfp4 is of experts only.

    Source: vLLM 0.11.0 quantization/mxfp4.py.
    """
    keys = ("modules_to_not_convert", "ignore", "exclude_modules")
    given = [name for key in keys for name in config.get(key) or ()]
    if config["quant_method"] == "mxfp4":
        given.append("self_attn")
    return tuple(given)


@lru_cache(maxsize=65536)
def _is_ignored(module: str, ignored: tuple[str, ...]) -> bool:
    return any(_names(pattern, module) for pattern in ignored)


def _names(pattern: str, module: str) -> bool:
    """Whether a pattern names a module or one that it is part of."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    pattern = pattern.removeprefix("language_model.")
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return f".{pattern}." in f".{module}."
