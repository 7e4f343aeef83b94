"""Every knob of a run, with the defaults of the vLLM version in force filled in."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from harness.errors import ConfigError, UsageError
from harness.schedulers.batch import PreemptionMode
from profiles.capacity import BlockPlan, plan_blocks
from profiles.errors import CapacityError
from profiles.gpu import KnownError, load_gpu
from profiles.model import ModelProfile, load_model
from profiles.vllm_version import (
    DEFAULT_V0_VERSION,
    V0_WATERMARK,
    V0Defaults,
    v0_defaults,
    v0_support,
)

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
V0_BLOCK_SIZES = (8, 16, 32)
"""Choices of ``--block-size`` in the versions that policy v0 is exact for.

Source: tests/data/published/vllm_knobs.csv, row 0.4.3.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A run's engine: policy, hardware and knobs, nothing left open.

    Attributes:
        swap_space: GiB of CPU memory for swapped blocks, per GPU.
        preemption_mode: Forced, or ``None``: recompute groups of one, swap others.
        kv_cache_gib: Memory of the KV cache on each GPU.
        num_fitting_gpu_blocks: Blocks that the utilization leaves room for, where the
            number was given and the model fits; else ``None``.
        block_bytes: Bytes of one block on one GPU.
        longest_model_len: Longest sequence that the model takes.
        gpu_memory_gib: Memory of one GPU as vLLM sees it.
        source_of_num_gpu_blocks: ``estimated``, ``kv_cache_gib`` or ``override``.
        step_time_error: Known error of the step times, where it was measured.
        notes: What the user should know about how knobs were resolved.
    """

    policy: str
    engine: str
    vllm_version: str
    model: str
    gpu: str
    tensor_parallel_size: int
    gpu_memory_utilization: float
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    kv_cache_gib: float
    num_fitting_gpu_blocks: int | None
    block_bytes: int
    longest_model_len: int
    gpu_memory_gib: float
    source_of_num_gpu_blocks: str
    swap_space: float
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float
    preemption_mode: PreemptionMode | None
    step_time_error: KnownError | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All knobs, for a record of the run."""
        return asdict(self) | {"notes": list(self.notes)}


def resolve_config(
    *,
    model: str,
    gpu: str,
    policy: str = "v0",
    engine: str = "sim",
    vllm_version: str | None = None,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float | None = None,
    kv_cache_gib: float | None = None,
    num_gpu_blocks_override: int | None = None,
    num_cpu_blocks_override: int | None = None,
    block_size: int | None = None,
    swap_space: float | None = None,
    enable_prefix_caching: bool | None = None,
    enable_chunked_prefill: bool | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    watermark: float | None = None,
    preemption_mode: str | None = None,
) -> EngineConfig:
    """Fill in what was not given, as that vLLM version would, and refuse nonsense.

    Raises:
        UsageError: A policy, engine or version that is not there.
        ConfigError: Knobs with which vLLM would not start.
        ProfileError: An unknown model or GPU, or one that does not fit.
    """
    version = _v0_version(policy, engine, vllm_version)
    if kv_cache_gib is not None and num_gpu_blocks_override is not None:
        raise UsageError(
            "--kv-cache-gib and --num-gpu-blocks-override both set the number of GPU"
            " blocks; give one of them"
        )
    if swap_space is not None and num_cpu_blocks_override is not None:
        raise UsageError(
            "--swap-space and --num-cpu-blocks-override both set the number of CPU"
            " blocks; give one of them"
        )
    model_profile, gpu_profile = load_model(model), load_gpu(gpu)
    model_len = _max_model_len(model_profile, max_model_len)
    defaults = v0_defaults(
        version,
        max_model_len=model_len,
        enable_prefix_caching=bool(enable_prefix_caching),
        enable_chunked_prefill=enable_chunked_prefill,
    )
    given = {
        "gpu_memory_utilization": gpu_memory_utilization,
        "block_size": block_size,
        "swap_space": swap_space,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "watermark": watermark,
    }
    knobs = _Knobs.filled(given, defaults)
    knobs.check(model_len, chunked=defaults.enable_chunked_prefill)
    plan_of = partial(
        plan_blocks,
        model_profile,
        gpu_profile,
        block_size=knobs.block_size,
        gpu_memory_utilization=knobs.gpu_memory_utilization,
        swap_space_gib=knobs.swap_space,
        tensor_parallel_size=tensor_parallel_size,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        max_num_seqs=knobs.max_num_seqs,
    )
    plan = plan_of(
        kv_cache_gib=kv_cache_gib,
        num_gpu_blocks_override=num_gpu_blocks_override,
        num_cpu_blocks_override=num_cpu_blocks_override,
    )
    config = EngineConfig(
        policy=policy,
        engine=engine,
        vllm_version=version,
        model=model_profile.name,
        gpu=gpu_profile.name,
        tensor_parallel_size=tensor_parallel_size,
        num_gpu_blocks=plan.num_gpu_blocks,
        num_cpu_blocks=plan.num_cpu_blocks,
        kv_cache_gib=plan.kv_cache_gib,
        num_fitting_gpu_blocks=_num_fitting(plan, plan_of),
        longest_model_len=model_profile.max_model_len,
        block_bytes=plan.block_bytes,
        gpu_memory_gib=gpu_profile.memory_gib,
        source_of_num_gpu_blocks=plan.source_of_num_gpu_blocks,
        enable_prefix_caching=defaults.enable_prefix_caching,
        enable_chunked_prefill=defaults.enable_chunked_prefill,
        max_model_len=model_len,
        preemption_mode=_preemption_mode(preemption_mode),
        step_time_error=gpu_profile.known_error,
        **asdict(knobs),
    )
    return replace(config, notes=(*_notes(config, watermark), *_check_start(config)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knobs:
    """Scheduler and pool knobs, none open any more."""

    gpu_memory_utilization: float
    block_size: int
    swap_space: float
    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float

    @classmethod
    def filled(cls, given: dict[str, Any], defaults: V0Defaults) -> "_Knobs":
        """Knobs as given, the version's default where one was not."""
        by_default = asdict(defaults) | {"swap_space": defaults.swap_space_gib}
        return cls(
            **{
                name: by_default[name] if value is None else value
                for name, value in given.items()
            }
        )

    def check(self, max_model_len: int, *, chunked: bool) -> None:
        """Refuse what vLLM refuses at start.

        Source: vLLM 0.5.5, ``vllm/config.py``, ``SchedulerConfig``.
        """
        tokens = self.max_num_batched_tokens
        if self.block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"block_size is {self.block_size}; it must be one of"
                f" {', '.join(map(str, BLOCK_SIZES))}"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(
                f"watermark is {self.watermark:g}; it is a share of the blocks, from 0 to"
                " below 1 (vLLM's v0 uses 0.01)"
            )
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}; give 1 or more")
        if tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({tokens}) is below max_num_seqs"
                f" ({self.max_num_seqs}), and vLLM does not start; raise the first or"
                " lower the second"
            )
        if not chunked and tokens < max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens ({tokens}) is below max_model_len"
                f" ({max_model_len}), and vLLM does not start without chunked prefill;"
                f" lower max_model_len to {tokens} or use --enable-chunked-prefill"
            )


def _v0_version(policy: str, engine: str, version: str | None) -> str:
    """The vLLM version in force."""
    if policy == "v1":
        raise UsageError(
            "--policy v1 is not there yet; this version has --policy v0 only, which"
            " replays what vLLM up to 0.6.3 decides"
        )
    if policy != "v0":
        raise UsageError(f"unknown policy {policy}; v0 is there")
    if engine != "sim":
        raise UsageError(
            f"--engine {engine} is not there yet; this version has --engine sim only"
        )
    version = version or DEFAULT_V0_VERSION
    if v0_support(version) == "none":
        raise UsageError(
            f"vLLM {version} has no v0 engine; policy v0 covers versions up to 0.10"
            f" (exactly up to {DEFAULT_V0_VERSION})"
        )
    return version


def _num_fitting(plan: BlockPlan, plan_of: Callable[[], BlockPlan]) -> int | None:
    """Blocks that would fit where the number was given; None where the model does not."""
    if plan.source_of_num_gpu_blocks == "estimated":
        return None
    try:
        return plan_of().num_gpu_blocks
    except CapacityError:
        return None


def _max_model_len(model: ModelProfile, max_model_len: int | None) -> int:
    """The longest sequence; the model's own limit unless a lower one is asked for.

    Source: vLLM 0.5.5, ``vllm/config.py``, ``_get_and_verify_max_len``.
    """
    if max_model_len is None:
        return model.max_model_len
    if not 1 <= max_model_len <= model.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}; {model.name} takes 1 to"
            f" {model.max_model_len} tokens"
        )
    return max_model_len


def _preemption_mode(mode: str | None) -> PreemptionMode | None:
    if mode is not None and mode not in list(PreemptionMode):
        raise UsageError(f"unknown preemption mode {mode}; recompute and swap are there")
    return None if mode is None else PreemptionMode(mode)


def _notes(config: EngineConfig, watermark: float | None) -> list[str]:
    notes = []
    if v0_support(config.vllm_version) == "approximate":
        notes.append(
            f"approximate: decisions are those of vLLM 0.5.5 to {DEFAULT_V0_VERSION};"
            f" {config.vllm_version} has a scheduler of this kind with other details"
        )
    if watermark is not None and watermark != V0_WATERMARK:
        notes.append(
            f"vLLM's v0 has no option for the watermark: {V0_WATERMARK} is built in,"
            f" {watermark:g} shows what another value would do"
        )
    fitting = config.num_fitting_gpu_blocks
    if fitting is not None and config.num_gpu_blocks > fitting:
        notes.append(
            f"{config.num_gpu_blocks:,} GPU blocks are more than fit on this GPU: about"
            f" {fitting:,} at utilization {config.gpu_memory_utilization:g}"
        )
    if config.block_size not in V0_BLOCK_SIZES:
        notes.append(
            f"vLLM {DEFAULT_V0_VERSION} does not offer block size {config.block_size};"
            f" it has {', '.join(map(str, V0_BLOCK_SIZES))}"
        )
    return notes


def _check_start(config: EngineConfig) -> list[str]:
    """Whether one sequence of the full length fits, as vLLM asks at start.

    Where the number of blocks is our estimate, that vLLM would not start is an error;
    where it was given, it is a note, and the replay shows what would happen.

    Source: vLLM 0.5.5, ``vllm/worker/worker.py``, ``raise_if_cache_size_invalid``.
    """
    num_tokens = config.num_gpu_blocks * config.block_size
    if num_tokens >= config.max_model_len:
        return []
    remedy = f"it starts with --max-model-len {num_tokens}"
    if config.enable_chunked_prefill:  # a shorter length alone could end it
        remedy += " --enable-chunked-prefill"
    message = (
        f"vLLM would not start: max_model_len {config.max_model_len:,} exceeds the"
        f" {num_tokens:,} tokens of {config.num_gpu_blocks:,} GPU blocks; {remedy}"
    )
    if config.source_of_num_gpu_blocks == "estimated":
        raise ConfigError(message)
    return [message]
