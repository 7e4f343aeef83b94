"""The blocks of a run: planned from memory, and what there is to say of their number."""

from harness.config.engine_config import EngineConfig
from harness.config.knobs import GivenKnobs, Limits, Scheduling
from profiles.capacity import BlockPlan, GivenSizes, plan_blocks, rank_layouts
from profiles.errors import CapacityError
from profiles.gpu import GpuProfile
from profiles.memory import Deployment
from profiles.model import ModelProfile
from profiles.vllm_v1 import num_offload_blocks


def plan_pool(
    model: ModelProfile,
    gpu: GpuProfile,
    vllm_version: str,
    knobs: GivenKnobs,
    limits: Limits,
    scheduling: Scheduling,
) -> tuple[BlockPlan, int | None]:
    """Blocks on GPU and CPU, and how many would fit where the number was given.

    Raises:
        CapacityError: No block fits, or a value means nothing.
    """
    deployment = deployment_of(vllm_version, knobs, limits)
    given = given_sizes(model, deployment, knobs, scheduling)
    plan = plan_blocks(model, gpu, deployment, given)
    if plan.source_of_num_gpu_blocks == "estimated":
        return plan, None
    return plan, _num_fitting(model, gpu, deployment)


def deployment_of(vllm_version: str, knobs: GivenKnobs, limits: Limits) -> Deployment:
    """What the memory of an engine depends on."""
    return Deployment(
        block_size=limits.block_size,
        gpu_memory_utilization=limits.gpu_memory_utilization,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        vllm_version=vllm_version,
        enable_chunked_prefill=limits.enable_chunked_prefill,
        tensor_parallel_size=knobs.get("tensor_parallel_size", 1),
        pipeline_parallel_size=knobs.get("pipeline_parallel_size", 1),
        enforce_eager=knobs.get("enforce_eager", False),
        num_draft_layers=knobs.get("num_draft_layers", 0),
    )


def given_sizes(
    model: ModelProfile,
    deployment: Deployment,
    knobs: GivenKnobs,
    scheduling: Scheduling,
) -> GivenSizes:
    """The sizes among the knobs.

    Raises:
        CapacityError: Not one block fits into the offload tier.
    """
    num_cpu_blocks = knobs.get("num_cpu_blocks_override")
    offloading_gib = knobs.get("kv_offloading_size")
    if offloading_gib is not None:
        layouts = rank_layouts(model, deployment)
        num_cpu_blocks = num_offload_blocks(
            offloading_gib,
            max(layout.block_bytes for layout in layouts),
            deployment.tensor_parallel_size,
        )
    return GivenSizes(
        kv_cache_gib=knobs.get("kv_cache_gib"),
        num_gpu_blocks_override=knobs.get("num_gpu_blocks_override"),
        num_cpu_blocks_override=num_cpu_blocks,
        swap_space_gib=scheduling.swap_space or 0.0,
    )


def note_on_pool(config: EngineConfig) -> list[str]:
    """A note if more GPU blocks were given than fit."""
    fitting = config.num_fitting_gpu_blocks
    if fitting is None or config.num_gpu_blocks <= fitting:
        return []
    return [
        f"{config.num_gpu_blocks:,} GPU blocks are more than fit on this GPU: about"
        f" {fitting:,} at utilization {config.gpu_memory_utilization:g}"
    ]


def _num_fitting(
    model: ModelProfile, gpu: GpuProfile, deployment: Deployment
) -> int | None:
    """Blocks that would fit where the number was given; None where the model does not."""
    try:
        return plan_blocks(model, gpu, deployment).num_gpu_blocks
    except CapacityError:
        return None
