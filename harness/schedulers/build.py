"""A scheduler and its block manager from plain knobs."""

from allocators.block_space_manager import BlockSpaceManager
from allocators.kv_cache_manager import KVCacheManager
from allocators.offload_tier import OffloadTier
from harness.schedulers.batch import PreemptionMode
from harness.schedulers.limits import Limits
from harness.schedulers.offloading import Offloading
from harness.schedulers.scheduler_v0 import SchedulerV0
from harness.schedulers.scheduler_v1 import SchedulerV1


def build_scheduler_v0(
    *,
    block_size: int,
    num_gpu_blocks: int,
    num_cpu_blocks: int,
    watermark: float,
    enable_prefix_caching: bool,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    enable_chunked_prefill: bool,
    preemption_mode: PreemptionMode | None,
    dies_like_vllm: bool = False,
) -> SchedulerV0:
    """A scheduler with empty queues and a pool of free blocks."""
    manager = BlockSpaceManager(
        block_size, num_gpu_blocks, num_cpu_blocks, watermark, enable_prefix_caching
    )
    return SchedulerV0(
        manager,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        preemption_mode=preemption_mode,
        dies_like_vllm=dies_like_vllm,
    )


def build_scheduler_v1(
    *,
    block_size: int,
    num_gpu_blocks: int,
    enable_prefix_caching: bool,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    enable_chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    watermark: float = 0.0,
    scheduler_reserve_full_isl: bool = True,
    scheduling_policy: str = "fcfs",
    async_scheduling: bool = False,
    sliding_window: int | None = None,
    num_cpu_blocks: int = 0,
    waits_like_vllm: bool = False,
) -> SchedulerV1:
    """A scheduler with empty queues and a pool of free blocks, the null block aside.

    With ``num_cpu_blocks`` prompts are offloaded to so many; this needs prefix caching
    and full attention.
    """
    num_steps_ahead = 2 if async_scheduling else 1
    manager = KVCacheManager(
        block_size,
        num_gpu_blocks,
        enable_caching=enable_prefix_caching,
        max_model_len=max_model_len,
        watermark=watermark,
        sliding_window=sliding_window,
        max_step_tokens=max_num_batched_tokens * num_steps_ahead,
    )
    offloading = None
    if num_cpu_blocks:
        tier = OffloadTier(num_cpu_blocks)
        offloading = Offloading(tier, block_size, num_gpu_blocks)
    limits = Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        by_priority=scheduling_policy == "priority",
        is_async=async_scheduling,
        waits_like_vllm=waits_like_vllm,
    )
    return SchedulerV1(manager, limits, offloading)
