"""The flags of an engine, and the configuration that they ask for."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from bench_cli import engine_options as options

if TYPE_CHECKING:
    from harness.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """Which model runs where, and the knobs of its engine; None where not given."""

    model: options.Model = "meta-llama/Llama-3.1-8B"
    gpu: options.Gpu = "H100-80GB"
    tensor_parallel_size: options.TensorParallelSize = 1
    dtype: options.Dtype = None
    quantization: options.QuantizationMethod = None
    vllm_version: options.VllmVersion = None
    policy: options.PolicyName = None
    engine: options.EngineName = options.Engine.SIM
    kv_cache_dtype: options.KvCacheDtype = None
    gpu_memory_utilization: options.GpuMemoryUtilization = None
    kv_cache_gib: options.KvCacheGib = None
    num_gpu_blocks_override: options.NumGpuBlocks = None
    num_cpu_blocks_override: options.NumCpuBlocks = None
    block_size: options.BlockSize = None
    swap_space: options.SwapSpace = None
    kv_offloading_size: options.KvOffloadingSize = None
    enable_prefix_caching: options.PrefixCaching = None
    enable_chunked_prefill: options.ChunkedPrefill = None
    max_model_len: options.MaxModelLen = None
    max_num_seqs: options.MaxNumSeqs = None
    max_num_batched_tokens: options.MaxNumBatchedTokens = None
    enforce_eager: options.EnforceEager = False
    watermark: options.Watermark = None
    long_prefill_token_threshold: options.LongPrefillTokenThreshold = None
    scheduler_reserve_full_isl: options.SchedulerReserveFullIsl = None
    async_scheduling: options.AsyncScheduling = None
    scheduling_policy: options.SchedulingPolicyName = None
    preemption_mode: options.Preemption = None

    def knobs(self) -> dict[str, Any]:
        """The flags by name, as ``resolve_config`` takes them: choices as plain text."""
        return {
            name: value.value if isinstance(value, Enum) else value
            for name, value in asdict(self).items()
        }

    def resolve(self) -> "EngineConfig":
        """The configuration, all that was not given filled in.

        Raises:
            UsageError: A policy, engine, version or knob that is not there.
            ConfigError: Knobs with which vLLM would not start.
            ProfileError: An unknown model, GPU or type, or one that does not fit.
        """
        from harness.config import resolve_config  # brings numpy; help does not need it

        return resolve_config(**self.knobs())
