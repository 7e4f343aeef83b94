"""How long a kernel takes on a GPU: closed forms with a few coefficients for each kind.

Coefficients are shares of the GPU's rates, and latencies in seconds. They are condensed
from published latencies by ``benchmarks/condense_ops.py``; ``data/kernels.toml`` holds
what it prints, docs/step_time.md the errors on shapes that were kept out. Each form but
that of all-reduces takes numbers or numpy arrays.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from profiles.errors import ProfileError

ARITHMETIC = {"bfloat16": 1, "fp8": 2, "fp8_block": 2, "nvfp4": 4, "int4": 1}
"""Dense arithmetic in a type of weights, over that of bf16.

Source: NVIDIA datasheets of Hopper, Ada and Blackwell; int4 is multiplied as bf16.
"""

CUSTOM_ALL_REDUCE_BYTES = 8 * 2**20
"""Messages from here on go to NCCL. Source: vLLM 0.14 ``custom_all_reduce.py``."""

ONE_SHOT_BYTES = {
    2: CUSTOM_ALL_REDUCE_BYTES,
    4: 512 * 1024,
    6: 256 * 1024,
    8: 256 * 1024,
}
"""Below, every GPU reads all others' data at once, by the number of GPUs.

Other numbers of GPUs have no kernel but NCCL's.

Source: vLLM 0.14 ``csrc/custom_all_reduce.cuh``.
"""

# Numbers or arrays of them: the forms do not care.
Numbers = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The rates that coefficients are shares of: bytes and operations in a second."""

    bytes_per_s: float
    bf16_flop_per_s: float
    link_bytes_per_s: float


def joined(one_s: Numbers, other_s: Numbers, sharpness: float) -> Numbers:
    """Time of two demands that overlap: the longer, or more where both are close."""
    longer = (one_s + other_s + abs(one_s - other_s)) / 2
    shorter = one_s + other_s - longer
    return longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``(m, k) @ (k, n)``, quantising the activations included.

    Attributes:
        wave_s_per_k: One output tile for each of the k columns: what the last, partly
            filled wave of tiles costs, whatever m is.
        activation_efficiency: Of reading and writing activations.
        sharpness: How little reading weights and arithmetic disturb each other.
    """

    latency_s: float
    wave_s_per_k: float
    memory_efficiency: float
    compute_efficiency: float
    activation_efficiency: float
    sharpness: float

    def seconds(
        self,
        chip: Chip,
        *,
        m: Numbers,
        n: Numbers,
        k: Numbers,
        weight_bytes: float,
        arithmetic: float,
    ) -> Numbers:
        """Seconds; ``weight_bytes`` of a parameter, ``arithmetic`` over that of bf16."""
        memory = chip.bytes_per_s * self.memory_efficiency
        compute = chip.bf16_flop_per_s * arithmetic * self.compute_efficiency
        activations = chip.bytes_per_s * self.activation_efficiency
        return (
            self.latency_s
            + self.wave_s_per_k * k
            + joined(
                n * k * weight_bytes / memory, 2 * m * n * k / compute, self.sharpness
            )
            + 2 * m * (n + k) / activations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts of a layer, under the mildest skew that was measured."""

    latency_s: float
    memory_efficiency: float
    compute_efficiency: float
    activation_efficiency: float
    sharpness: float

    def seconds(
        self,
        chip: Chip,
        *,
        num_tokens: Numbers,
        hidden: Numbers,
        inter: Numbers,
        num_experts: Numbers,
        topk: Numbers,
        weight_bytes: float,
        arithmetic: float,
    ) -> Numbers:
        """Seconds; ``inter`` is the rank's share of an expert's width.

        Weights are read of the experts that uniform routing is expected to touch.
        """
        touched = num_experts * (1 - (1 - topk / num_experts) ** num_tokens)
        params = 3 * hidden * inter
        moved = num_tokens * topk * (2 * hidden + 3 * inter) * 2
        memory = chip.bytes_per_s * self.memory_efficiency
        compute = chip.bf16_flop_per_s * arithmetic * self.compute_efficiency
        return (
            self.latency_s
            + joined(
                touched * params * weight_bytes / memory,
                2 * num_tokens * topk * params / compute,
                self.sharpness,
            )
            + moved / (chip.bytes_per_s * self.activation_efficiency)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttention:
    """Attention of decoding sequences in a layer, affine in the tokens that they read.

    Attributes:
        pair_s: Each sequence and KV head.
        split: So many of these pairs reach half of the bandwidth, many reach all of it.
    """

    latency_s: float
    pair_s: float
    memory_efficiency: float
    split: float

    def fixed_s(self, num_pairs: Numbers) -> Numbers:
        """Seconds before any token is read."""
        return self.latency_s + self.pair_s * num_pairs

    def seconds_per_byte(self, chip: Chip, num_pairs: Numbers) -> Numbers:
        """Seconds for each byte of KV cache."""
        share = self.memory_efficiency / (1 + self.split / num_pairs)
        return 1 / (chip.bytes_per_s * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """Attention of prefilling sequences in a layer.

    Attributes:
        memory_efficiency: Of reading queries, keys and values and writing the outcome.
        serial_s_per_token: Of the longest sequence, whose tiles follow one another.
    """

    latency_s: float
    compute_efficiency: float
    memory_efficiency: float
    serial_s_per_token: float

    def arithmetic_s(self, chip: Chip, flop: Numbers) -> Numbers:
        """Seconds for so many operations on pairs of tokens."""
        return flop / (chip.bf16_flop_per_s * self.compute_efficiency)

    def moving_s(self, chip: Chip, num_bytes: Numbers) -> Numbers:
        """Seconds for what the queries read and write beside the KV cache."""
        return num_bytes / (chip.bytes_per_s * self.memory_efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """The sum of a vector over all GPUs, by vLLM's kernel or by NCCL, as vLLM chooses."""

    latency_s: float
    latency_per_gpu_s: float
    one_shot_efficiency: float
    two_shot_latency_s: float
    two_shot_efficiency: float
    nccl_latency_s: float
    nccl_efficiency: float

    def seconds(
        self, chip: Chip, num_gpus: int, num_bytes: float, *, has_links: bool = True
    ) -> float:
        """Seconds; ``num_bytes`` is the message of one GPU.

        Without links between all of them, more than two GPUs leave it to NCCL.

        Source: vLLM 0.14 ``custom_all_reduce.py``.
        """
        direct_s = (num_gpus - 1) * num_bytes / chip.link_bytes_per_s
        ring_s = direct_s * 2 / num_gpus
        has_own = num_gpus in ONE_SHOT_BYTES and (has_links or num_gpus == 2)
        if num_bytes >= CUSTOM_ALL_REDUCE_BYTES or not has_own:
            return self.nccl_latency_s + ring_s / self.nccl_efficiency
        base_s = self.latency_s + self.latency_per_gpu_s * num_gpus
        if num_bytes < ONE_SHOT_BYTES[num_gpus]:
            return base_s + direct_s / self.one_shot_efficiency
        return base_s + self.two_shot_latency_s + ring_s / self.two_shot_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """All kinds of kernels on one GPU, by the type of weights or of the KV cache.

    Attributes:
        source: Where the latencies are from.
    """

    gemm: Mapping[str, Gemm]
    experts: Mapping[str, Experts]
    generation: Mapping[str, DecodeAttention]
    context: Mapping[str, PrefillAttention]
    all_reduce: AllReduce
    source: str = ""


_FORMS: dict[str, Callable[..., Any]] = {
    "gemm": Gemm,
    "experts": Experts,
    "generation": DecodeAttention,
    "context": PrefillAttention,
    "all_reduce": AllReduce,
}
_TYPED = tuple(kind for kind in _FORMS if kind != "all_reduce")


def read_kernels(table: Mapping[str, Any], lent: Kernels | None = None) -> Kernels:
    """The kernels that a table such as those of ``kernels.toml`` describes.

    Its keys are a kind and a type, such as ``gemm_fp8``.

    Args:
        table: Coefficients by key, and perhaps a ``source``.
        lent: Kernels that stand in for kinds and types that the table lacks.

    Raises:
        ProfileError: A key or coefficient is missing, unknown, or no number above 0.
    """
    source = table.get("source", "")
    if not isinstance(source, str):
        raise ProfileError(f"kernels: source is {source!r}; give a text in quotes")
    found = _lent_forms(lent)
    for key, coefficients in table.items():
        if key != "source":
            kind, of_type = _kind_and_type(key)
            found[kind][of_type] = _read_form(key, kind, coefficients)
    for kind in _TYPED:
        if "bfloat16" not in found[kind]:
            raise ProfileError(f"kernels: {kind}_bfloat16 is missing; add it")
    if "" not in found["all_reduce"]:
        raise ProfileError("kernels: all_reduce is missing; add it")
    all_reduce = found.pop("all_reduce")[""]
    return Kernels(**found, all_reduce=all_reduce, source=source)


def _lent_forms(lent: Kernels | None) -> dict[str, dict[str, Any]]:
    if lent is None:
        return {kind: {} for kind in _FORMS}
    typed = {kind: dict(getattr(lent, kind)) for kind in _TYPED}
    return typed | {"all_reduce": {"": lent.all_reduce}}


def _kind_and_type(key: str) -> tuple[str, str]:
    if key == "all_reduce":
        return key, ""
    for kind in _TYPED:
        if key.startswith(f"{kind}_") and key.removeprefix(f"{kind}_") in ARITHMETIC:
            return kind, key.removeprefix(f"{kind}_")
    raise ProfileError(
        f"kernels: {key} is not known; it is all_reduce or one of"
        f" {', '.join(_TYPED)} with a type, as in gemm_bfloat16"
    )


def _read_form(key: str, kind: str, coefficients: Any) -> Any:
    form = _FORMS[kind]
    names = {part.name for part in fields(form)}  # type: ignore[arg-type]
    if not isinstance(coefficients, dict) or set(coefficients) != names:
        raise ProfileError(f"kernels: {key} needs {', '.join(sorted(names))}; no others")
    for name, value in coefficients.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise ProfileError(
                f"kernels: {name} of {key} is {value!r}; give a number above 0"
            )
    return form(**coefficients)
