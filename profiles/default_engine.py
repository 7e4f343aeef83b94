"""Which engine a plain ``vllm serve`` runs, in the versions that have two."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profiles.gpu_profile import FIRST_WITH_BF16, GpuProfile
from profiles.vllm_v1 import FIRST_V1
from profiles.vllm_version import VllmVersion, parse_version

V0_GONE = VllmVersion(0, 11)
"""First without v0. Source: ``engine/arg_utils.py`` of 0.10.2 and 0.11.0."""

CASTS_BF16_SINCE = VllmVersion(0, 9)
"""First that takes float16 by itself where a GPU has no bfloat16; before, it refuses.

Source: ``vllm/config.py`` of 0.8.5 and 0.9.0, ``_get_and_verify_dtype``.
"""


@dataclass(frozen=True, slots=True)
class WhyV0:
    """What keeps a version from running v1 by itself.

    Attributes:
        what: As ``--preemption-mode swap``.
        is_optional: ``VLLM_USE_V1=1`` runs v1 all the same; else vLLM refuses to start.
    """

    what: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fallback:
    """An option with which v0 runs.

    Attributes:
        until: The first version that runs v1 with it, or lacks the option.
        unless: Values, in small letters, that change nothing.
        only: Values that do; empty for all others.
        optional_until: Up to this version ``VLLM_USE_V1=1`` runs v1 all the same.
    """

    until: VllmVersion
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    optional_until: VllmVersion = FIRST_V1

    def holds(self, release: VllmVersion, value: str) -> bool:
        """Whether v0 runs with this value."""
        is_meant = value in self.only if self.only else value not in self.unless
        return release < self.until and is_meant


_FALLBACKS = {
    "preemption_mode": _Fallback(until=V0_GONE),
    "scheduling_policy": _Fallback(until=VllmVersion(0, 9, 2), unless=("fcfs",)),
    "long_prefill_token_threshold": _Fallback(until=VllmVersion(0, 8, 3), unless=("0",)),
    "num_scheduler_steps": _Fallback(until=VllmVersion(0, 10, 1), unless=("1",)),
    "scheduler_delay_factor": _Fallback(until=V0_GONE, unless=("0", "0.0")),
    "max_num_partial_prefills": _Fallback(until=V0_GONE, unless=("1",)),
    "max_long_partial_prefills": _Fallback(until=V0_GONE, unless=("1",)),
    "disable_async_output_proc": _Fallback(until=V0_GONE),
    "enable_prompt_adapter": _Fallback(until=VllmVersion(0, 10)),
    "enable_prompt_embeds": _Fallback(until=V0_GONE),
    "enable_lora": _Fallback(
        until=VllmVersion(0, 8, 3), optional_until=VllmVersion(0, 8, 3)
    ),
    "pipeline_parallel_size": _Fallback(
        until=VllmVersion(0, 9, 1), unless=("1",), optional_until=VllmVersion(0, 8, 3)
    ),
    "speculative_model": _Fallback(until=VllmVersion(0, 8, 3)),
    "num_speculative_tokens": _Fallback(until=VllmVersion(0, 8, 3)),
    "speculative_config": _Fallback(until=VllmVersion(0, 9)),
    "kv_transfer_config": _Fallback(until=VllmVersion(0, 8, 5)),
    "cpu_offload_gb": _Fallback(until=VllmVersion(0, 8, 3), unless=("0", "0.0")),
    "dtype": _Fallback(until=VllmVersion(0, 9, 2), only=("float32", "float")),
    "quantization": _Fallback(until=VllmVersion(0, 9), only=("gguf",)),
    "load_format": _Fallback(until=V0_GONE, only=("sharded_state",)),
    "guided_decoding_backend": _Fallback(
        until=VllmVersion(0, 10, 1), only=("outlines", "lm-format-enforcer")
    ),
    "otlp_traces_endpoint": _Fallback(until=VllmVersion(0, 10, 2)),
    "collect_detailed_traces": _Fallback(until=VllmVersion(0, 10, 2)),
}
"""By the name of the option.

Source: ``_is_v1_supported_oracle`` in ``engine/arg_utils.py`` of 0.8.0 to 0.11.0.
"""

_AMD_SINCE = VllmVersion(0, 9, 2)
_HOST_SINCE = VllmVersion(0, 9, 1)
_OLD_GPU_SINCE = VllmVersion(0, 10, 2)
_FP8_CACHE_SINCE = VllmVersion(0, 8, 2)
_FP8_CACHE_ON_B200_SINCE = VllmVersion(0, 10)
"""First versions that run v1 there. Source: the same; ``platforms/cuda.py`` of 0.10."""


def has_both_engines(version: str) -> bool:
    """Whether a version has v0 and v1, and runs v1 where nothing keeps it from it."""
    return FIRST_V1 <= parse_version(version) < V0_GONE


def why_v0(
    version: str, *, gpu: GpuProfile | None, options: Mapping[str, Any]
) -> WhyV0 | None:
    """What makes a version with both engines run v0; None where it runs v1.

    Args:
        version: Of vLLM.
        gpu: What it runs on; None where that is not known, as for one that can do all.
        options: Values of options by name, those at None or not told left aside.

    Raises:
        ProfileError: The text is no version.
    """
    if not has_both_engines(version):
        return None
    release = parse_version(version)
    return next(_reasons(release, gpu, options), None)


def refuses_bf16(version: str, gpu: GpuProfile) -> bool:
    """Whether a bfloat16 model needs ``--dtype half`` to start there."""
    return not gpu.has_bf16 and parse_version(version) < CASTS_BF16_SINCE


def _reasons(
    release: VllmVersion, gpu: GpuProfile | None, options: Mapping[str, Any]
) -> Iterator[WhyV0]:
    """All that keeps it from v1, what cannot be overruled first."""
    found = [*_by_option(release, options), *_by_gpu(release, gpu, options)]
    yield from sorted(found, key=lambda reason: reason.is_optional)


def _by_option(release: VllmVersion, options: Mapping[str, Any]) -> Iterator[WhyV0]:
    for name, fallback in _FALLBACKS.items():
        value = options.get(name)
        if value is None or not fallback.holds(release, str(value).lower()):
            continue
        text = "" if value in ("", True) else f" {value}"
        yield WhyV0(
            f"--{name.replace('_', '-')}{text}", release < fallback.optional_until
        )


def _by_gpu(
    release: VllmVersion, gpu: GpuProfile | None, options: Mapping[str, Any]
) -> Iterator[WhyV0]:
    if gpu is None:
        return
    if (gpu.is_host and release < _HOST_SINCE) or (gpu.is_amd and release < _AMD_SINCE):
        yield WhyV0("the CPU backend" if gpu.is_host else "a GPU of AMD", True)
    capability = gpu.compute_capability
    if capability is None:
        return
    if capability < FIRST_WITH_BF16 and release < _OLD_GPU_SINCE:
        yield WhyV0(f"compute capability {'.'.join(map(str, capability))}, below 8.0")
    cache = str(options.get("kv_cache_dtype") or "auto")
    if cache != "auto" and not _has_fp8_cache(release, capability):
        yield WhyV0(f"--kv-cache-dtype {cache} on a {gpu.name}")


def _has_fp8_cache(release: VllmVersion, capability: tuple[int, int]) -> bool:
    """Whether v1 reads a cache of fp8: with FlashAttention 3, or on Blackwell."""
    if capability == (10, 0):
        return release >= _FP8_CACHE_ON_B200_SINCE
    return capability[0] == 9 and release >= _FP8_CACHE_SINCE
