"""From the knobs that were given to a configuration."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Unpack

from harness.config.engine_config import EngineConfig
from harness.config.knobs import GivenKnobs, Limits, Scheduling
from harness.config.model_type import ModelTypes
from harness.config.pool import plan_pool
from harness.config.v0 import notes_v0, settle_v0
from harness.config.v1 import notes_v1, settle_v1
from harness.config.version import InForce, in_force
from harness.errors import UsageError
from profiles.errors import UnknownNameError
from profiles.gpu import GpuProfile, load_gpu
from profiles.model import ModelProfile, load_model
from profiles.step_time import known_error

BYTES_OF_TIMED_PARAM = 2
"""Step times are fitted to arithmetic of so many bytes. Source: docs/step_time.md."""


def resolve_config(
    *,
    model: str,
    gpu: str,
    policy: str | None = None,
    engine: str = "sim",
    vllm_version: str | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    **knobs: Unpack[GivenKnobs],
) -> EngineConfig:
    """Fill in what was not given, as that vLLM version would, and refuse nonsense.

    Raises:
        UsageError: A policy, engine, version or knob that is not there.
        ConfigError: Knobs with which vLLM would not start.
        ProfileError: An unknown model, GPU or type, or one that does not fit.
    """
    types = ModelTypes(
        dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    gpu_profile = load_gpu(gpu)
    chosen = in_force(
        policy, vllm_version, gpu=gpu_profile, options={**knobs, **asdict(types)}
    )
    if engine != "sim":
        raise UsageError(_not_simulated(engine))
    refuse_two_sources(chosen.policy, knobs)
    model_profile = types.load(model)
    types.check(chosen.vllm_version, gpu_profile, model_profile)
    _refuse_mixed_windows(model_profile)
    limits, scheduling = settle(chosen, model_profile, gpu_profile, knobs)
    notes_of = notes_v0 if chosen.policy == "v0" else notes_v1
    config = _with_pool(
        chosen, model_profile, gpu_profile, types, knobs, limits, scheduling
    )
    strange = notes_on_calibration(config, gpu_profile)
    return replace(
        config,
        model=reference(model, load_model),
        gpu=reference(gpu, load_gpu),
        step_time_error=None if strange else config.step_time_error,
        notes=(
            *chosen.notes,
            *types.notes(chosen.vllm_version, gpu_profile),
            *_notes_on_times(config, model_profile),
            *strange,
            *notes_of(config, knobs),
        ),
    )


def _not_simulated(engine: str) -> str:
    if engine in ("vllm", "server"):
        return (
            f"--engine {engine} runs a real engine, which is configured by itself and not"
            " from profiles; blockbench run replays on it: here leave it out"
        )
    return f"--engine {engine} is no engine; there are sim, vllm and server"


def reference(given: str, load: Callable[[str], ModelProfile | GpuProfile]) -> str:
    """By what a profile is loaded again: its name, or the file that somebody gave."""
    profile = load(given)
    try:
        return profile.name if load(profile.name) == profile else given
    except UnknownNameError:
        return given


def settle(
    chosen: InForce, model: ModelProfile, gpu: GpuProfile, knobs: GivenKnobs
) -> tuple[Limits, Scheduling]:
    """The knobs of an engine, none open any more.

    Raises:
        UsageError: A knob that the policy, or this version, does not have.
        ConfigError: Knobs with which vLLM would not start.
    """
    if chosen.policy == "v0":
        return settle_v0(chosen, model, knobs)
    return settle_v1(chosen, model, gpu, knobs)


def _with_pool(
    chosen: InForce,
    model: ModelProfile,
    gpu: GpuProfile,
    types: ModelTypes,
    knobs: GivenKnobs,
    limits: Limits,
    scheduling: Scheduling,
) -> EngineConfig:
    plan, num_fitting = plan_pool(
        model, gpu, chosen.vllm_version, knobs, limits, scheduling
    )
    return EngineConfig(
        policy=chosen.policy,
        engine="sim",
        vllm_version=chosen.vllm_version,
        model=model.name,
        gpu=gpu.name,
        tensor_parallel_size=knobs.get("tensor_parallel_size", 1),
        enforce_eager=knobs.get("enforce_eager", False),
        num_gpu_blocks=plan.num_gpu_blocks,
        num_cpu_blocks=plan.num_cpu_blocks,
        kv_cache_gib=plan.kv_cache_gib,
        num_fitting_gpu_blocks=num_fitting,
        longest_model_len=model.max_model_len,
        block_bytes=plan.block_bytes,
        gpu_memory_gib=gpu.memory_gib,
        source_of_num_gpu_blocks=plan.source_of_num_gpu_blocks,
        step_time_error=known_error(
            model, gpu, enforce_eager=knobs.get("enforce_eager", False)
        ),
        **asdict(types),
        **asdict(limits),
        **asdict(scheduling),
    )


def refuse_two_sources(policy: str, knobs: GivenKnobs) -> None:
    """Refuse two knobs that set the same number of blocks.

    Raises:
        UsageError: Names them.
    """

    def given(*names: str) -> bool:
        return all(knobs.get(name) is not None for name in names)

    if given("kv_cache_gib", "num_gpu_blocks_override"):
        raise UsageError(
            "--kv-cache-gib and --num-gpu-blocks-override both set the number of GPU"
            " blocks; give one of them"
        )
    memory = "swap_space" if policy == "v0" else "kv_offloading_size"
    if given(memory, "num_cpu_blocks_override"):
        raise UsageError(
            f"--{memory.replace('_', '-')} and --num-cpu-blocks-override both set the"
            " number of CPU blocks; give one of them"
        )


def _notes_on_times(config: EngineConfig, model: ModelProfile) -> list[str]:
    """Where step times are of another kind of engine than the one that was sized."""
    if model.bytes_per_param <= BYTES_OF_TIMED_PARAM:
        return []
    return [
        f"sizes are those of {config.dtype}; steps are timed as if computed in 16 bits,"
        " and take longer"
    ]


def engine_knob(config: EngineConfig, name: str) -> str | int | bool | None:
    """What an engine was told; of a type that nobody gave, ``auto``."""
    value: str | int | bool | None = getattr(config, name)
    is_type = name in ("dtype", "quantization", "kv_cache_dtype")
    return "auto" if is_type and value is None else value


def notes_on_calibration(config: EngineConfig, gpu: GpuProfile) -> list[str]:
    """Where step times were calibrated for another engine than this one."""
    if gpu.calibration is None:
        return []
    others = [
        f"{name.replace('_', ' ')} {value} (here {engine_knob(config, name)})"
        for name, value in gpu.calibration.made_for.items()
        if engine_knob(config, name) != value
    ]
    if not others:
        return []
    return [
        f"{gpu.name} was calibrated for {', '.join(others)}; what it says of this engine"
        " nobody measured: blockbench calibrate with figures of this one"
    ]


def _refuse_mixed_windows(model: ModelProfile) -> None:
    if model.mixes_windows:
        raise UsageError(
            f"{model.name} mixes full and sliding-window layers: vLLM keeps several cache"
            " groups for it, which blockbench does not replay; choose a model whose"
            " layers are alike, such as meta-llama/Llama-3.1-8B or"
            " mistralai/Mistral-7B-v0.1"
        )
