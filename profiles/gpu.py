"""Facts about GPUs: memory, rates, and the share of each rate that kernels reach."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from profiles.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class KnownError:
    """How far predictions were from published figures that the fit had not seen.

    Attributes:
        fraction: Median of the absolute relative errors.
        num_rows: Published rows behind it.
        against: Which rows.
    """

    fraction: float
    num_rows: int
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """One GPU as an engine meets it; each figure has an entry in ``sources``.

    Rates are decimal (GB, TFLOP), dense, and of one direction; an efficiency is the
    share of the rate named beside it that kernels reach.

    Attributes:
        memory_gib: Total memory as vLLM and torch see it, less than the box says.
        pcie_gb_per_s: Rate of a large pinned copy between CPU and GPU.
        copy_overhead_ns: Cost of one ``cudaMemcpyAsync`` beside its bytes.
        attention_latency_ns: Attention of a layer before it reads any context.
        all_reduce_latency_ns: One all-reduce of an empty message.
        known_error: Of step times on this GPU; None when never compared.
    """

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    memory_bandwidth_gb_per_s: float
    bf16_tflop_per_s: float
    pcie_gb_per_s: float
    copy_overhead_ns: int
    nvlink_gb_per_s: float
    memory_efficiency: float
    compute_efficiency: float
    attention_memory_efficiency: float
    attention_compute_efficiency: float
    attention_latency_ns: int
    nvlink_efficiency: float
    all_reduce_latency_ns: int
    known_error: KnownError | None
    sources: Mapping[str, str]


def load_gpu(name: str) -> GpuProfile:
    """Return the profile that a name or alias means, whatever its case.

    Raises:
        UnknownNameError: No profile has this name.
    """
    profiles = _by_alias()
    key = _key(name)
    if key not in profiles:
        raise UnknownNameError("GPU", name, known_gpus())
    return profiles[key]


def known_gpus() -> tuple[str, ...]:
    """Names of all bundled profiles, in the order of the data file."""
    return tuple(dict.fromkeys(gpu.name for gpu in _by_alias().values()))


def _key(name: str) -> str:
    """Fold case, separators and the vendor, so that aliases need not repeat them."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower()).removeprefix("nvidia-")


@cache
def _by_alias() -> dict[str, GpuProfile]:
    text = (files("profiles") / "data" / "gpus.toml").read_text(encoding="utf-8")
    gpus = [_gpu(row) for row in tomllib.loads(text)["gpu"]]
    return {_key(name): gpu for gpu in gpus for name in (gpu.name, *gpu.aliases)}


def _gpu(row: dict[str, Any]) -> GpuProfile:
    error = row.pop("known_error", None)
    aliases = tuple(row.pop("aliases"))
    known_error = None if error is None else KnownError(**error)
    return GpuProfile(**row, aliases=aliases, known_error=known_error)
