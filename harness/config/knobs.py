"""Knobs as a user gives them, and the checks that both policies share."""

from dataclasses import dataclass, fields
from typing import TypedDict

from harness.errors import ConfigError
from harness.schedulers.batch import PreemptionMode
from profiles.model import ModelProfile
from profiles.vllm_v1 import V1Defaults
from profiles.vllm_version import V0Defaults

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class GivenKnobs(TypedDict, total=False):
    """Knobs that somebody set; what is left out or None is open."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    enforce_eager: bool
    num_draft_layers: int
    performance_mode: str | None
    gpu_memory_utilization: float | None
    kv_cache_gib: float | None
    num_gpu_blocks_override: int | None
    num_cpu_blocks_override: int | None
    block_size: int | None
    swap_space: float | None
    kv_offloading_size: float | None
    enable_prefix_caching: bool | None
    enable_chunked_prefill: bool | None
    async_scheduling: bool | None
    scheduling_policy: str | None
    long_prefill_token_threshold: int | None
    scheduler_reserve_full_isl: bool | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    watermark: float | None
    preemption_mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The knobs that bound a batch and a pool, none open any more."""

    gpu_memory_utilization: float
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float
    enable_chunked_prefill: bool

    @classmethod
    def filled(
        cls, knobs: GivenKnobs, defaults: V0Defaults | V1Defaults, max_model_len: int
    ) -> "Limits":
        """Limits as given, the version's default where one was not."""
        names = {limit.name for limit in fields(cls)} - {"max_model_len"}
        given = {n: v for n, v in knobs.items() if n in names and v is not None}
        by_default = {name: getattr(defaults, name) for name in names}
        return cls(**(by_default | given), max_model_len=max_model_len)

    def check(self, default_watermark: str) -> None:
        """Refuse what vLLM refuses at start.

        Source: vLLM 0.5.5, ``vllm/config.py``, and 0.32.0, ``vllm/config/scheduler.py``,
        ``SchedulerConfig``.
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
                f" below 1 ({default_watermark})"
            )
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}; give 1 or more")
        if tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({tokens}) is below max_num_seqs"
                f" ({self.max_num_seqs}), and vLLM does not start; raise the first or"
                " lower the second"
            )
        if not self.enable_chunked_prefill and tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens ({tokens}) is below max_model_len"
                f" ({self.max_model_len}), and vLLM does not start without chunked"
                f" prefill; lower max_model_len to {tokens} or use"
                " --enable-chunked-prefill"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """What else a policy settles; see :class:`EngineConfig` for each field."""

    swap_space: float | None
    kv_offloading_size: float
    enable_prefix_caching: bool
    async_scheduling: bool
    scheduling_policy: str
    long_prefill_token_threshold: int
    scheduler_reserve_full_isl: bool
    sliding_window: int | None
    preemption_mode: PreemptionMode | None


def longest_sequence(model: ModelProfile, max_model_len: int | None) -> int:
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
