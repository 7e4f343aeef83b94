"""A v0 scheduler and its block manager from plain knobs."""

from allocators.block_space_manager import BlockSpaceManager
from harness.schedulers.batch import PreemptionMode
from harness.schedulers.scheduler_v0 import SchedulerV0


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
