"""The blocks of a run: planned from memory, and what there is to say of their number."""

from collections.abc import Callable
from functools import partial

from harness.config.engine_config import EngineConfig
from harness.config.knobs import GivenKnobs, Limits, Scheduling
from profiles.capacity import BlockPlan, plan_blocks
from profiles.errors import CapacityError
from profiles.gpu import GpuProfile
from profiles.model import ModelProfile
from profiles.vllm_v1 import num_offload_blocks


def plan_pool(
    model: ModelProfile,
    gpu: GpuProfile,
    knobs: GivenKnobs,
    limits: Limits,
    scheduling: Scheduling,
) -> tuple[BlockPlan, int | None]:
    """Blocks on GPU and CPU, and how many would fit where the number was given.

    Raises:
        CapacityError: No block fits, or a value means nothing.
    """
    num_ranks = knobs.get("tensor_parallel_size", 1)
    plan_of = partial(
        plan_blocks,
        model,
        gpu,
        block_size=limits.block_size,
        gpu_memory_utilization=limits.gpu_memory_utilization,
        swap_space_gib=scheduling.swap_space or 0.0,
        tensor_parallel_size=num_ranks,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
    )
    num_cpu_blocks = knobs.get("num_cpu_blocks_override")
    offloading_gib = knobs.get("kv_offloading_size")
    if offloading_gib is not None:
        block_bytes = model.block_bytes(limits.block_size, num_ranks)
        num_cpu_blocks = num_offload_blocks(offloading_gib, block_bytes, num_ranks)
    plan = plan_of(
        kv_cache_gib=knobs.get("kv_cache_gib"),
        num_gpu_blocks_override=knobs.get("num_gpu_blocks_override"),
        num_cpu_blocks_override=num_cpu_blocks,
    )
    return plan, _num_fitting(plan, plan_of)


def note_on_pool(config: EngineConfig) -> list[str]:
    """A note if more GPU blocks were given than fit."""
    fitting = config.num_fitting_gpu_blocks
    if fitting is None or config.num_gpu_blocks <= fitting:
        return []
    return [
        f"{config.num_gpu_blocks:,} GPU blocks are more than fit on this GPU: about"
        f" {fitting:,} at utilization {config.gpu_memory_utilization:g}"
    ]


def _num_fitting(plan: BlockPlan, plan_of: Callable[[], BlockPlan]) -> int | None:
    """Blocks that would fit where the number was given; None where the model does not."""
    if plan.source_of_num_gpu_blocks == "estimated":
        return None
    try:
        return plan_of().num_gpu_blocks
    except CapacityError:
        return None
