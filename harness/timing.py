"""From a configuration to the durations of its steps and copies."""

from harness.config import EngineConfig
from profiles.copies import V0_SWAP, copy_method
from profiles.engine_overhead import EngineOverhead, engine_overhead
from profiles.gpu import GpuProfile, load_gpu
from profiles.step_time import RooflineStepTime


def build_step_time(
    config: EngineConfig,
    *,
    gpu: GpuProfile | None = None,
    overhead: EngineOverhead | None = None,
) -> RooflineStepTime:
    """The durations of the configuration's steps and copies.

    Args:
        config: Engine, resolved.
        gpu: In place of the configuration's.
        overhead: In place of what the configuration's engine adds to its kernels.
    """
    model = config.model_profile()
    method = V0_SWAP
    if config.policy == "v1" and config.num_cpu_blocks:
        method = copy_method("v1", config.vllm_version, has_experts=model.has_experts)
    return RooflineStepTime(
        model,
        gpu or load_gpu(config.gpu),
        tensor_parallel_size=config.tensor_parallel_size,
        block_size=config.block_size,
        overhead=overhead or config_overhead(config),
        copy_method=method,
        enforce_eager=config.enforce_eager,
    )


def config_overhead(config: EngineConfig) -> EngineOverhead:
    """What the configuration's engine adds to its kernels, whatever the GPU."""
    return engine_overhead(
        config.policy, config.vllm_version, async_scheduling=config.async_scheduling
    )
