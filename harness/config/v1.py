"""What policy v1 makes of the knobs that were given."""

from dataclasses import dataclass

from harness.config.engine_config import NO_START, EngineConfig
from harness.config.knobs import GivenKnobs, Limits, Scheduling, longest_sequence
from harness.config.pool import note_on_pool
from harness.config.version import InForce
from harness.errors import ConfigError, NotReplayedError, UsageError
from profiles.gpu import GpuProfile
from profiles.model import ModelProfile
from profiles.vllm_v1 import (
    DEFAULT_V1_VERSION,
    OPTION_SINCE,
    SWAP_SPACE_REMOVED,
    V1Defaults,
    has_option,
    offered_block_sizes,
    v1_defaults,
    v1_support,
)
from profiles.vllm_version import parse_version

SCHEDULING_POLICIES = ("fcfs", "priority")
BACKEND_BLOCK_SIZE = 16
"""FlashAttention takes multiples of it. Source: vLLM 0.32.0, ``flash_attn.py``."""


def settle_v1(
    chosen: InForce, model: ModelProfile, gpu: GpuProfile, knobs: GivenKnobs
) -> tuple[Limits, Scheduling]:
    """The knobs of a v1 engine, none open any more.

    Raises:
        UsageError: A knob that v1, or this version of it, does not have.
        ConfigError: Knobs with which vLLM would not start.
    """
    _refuse_what_is_gone(chosen.vllm_version, knobs)
    _refuse_what_came_later(chosen.vllm_version, knobs)
    max_model_len = longest_sequence(model, knobs.get("max_model_len"))
    defaults = v1_defaults(
        chosen.vllm_version,
        gpu=gpu,
        max_model_len=max_model_len,
        enable_chunked_prefill=knobs.get("enable_chunked_prefill"),
        max_num_seqs=knobs.get("max_num_seqs"),
        max_num_batched_tokens=knobs.get("max_num_batched_tokens"),
        performance_mode=knobs.get("performance_mode"),
        num_gpus=knobs.get("tensor_parallel_size", 1)
        * knobs.get("pipeline_parallel_size", 1),
    )
    limits = Limits.filled(knobs, defaults, max_model_len)
    limits.check("vLLM's default is 0")
    scheduling = _scheduling(model, knobs, defaults, max_model_len)
    _refuse_a_tier_apart(model, knobs, scheduling)
    return limits, scheduling


def notes_v1(config: EngineConfig, knobs: GivenKnobs) -> list[str]:
    """Where the replay is not exactly that vLLM, or the pool not one that it has.

    Raises:
        ConfigError: vLLM would not start with the number of blocks that was estimated.
    """
    notes = []
    if v1_support(config.vllm_version) == "approximate":
        notes.append(
            f"approximate: decisions are those of vLLM {DEFAULT_V1_VERSION};"
            f" {config.vllm_version} has a scheduler of this kind with other details"
        )
    if knobs.get("swap_space") is not None:
        notes.append(
            f"--swap-space has no effect: vLLM {config.vllm_version} takes it and does"
            " not swap"
        )
    notes += note_on_pool(config)
    notes += note_on_block_size_v1(config.vllm_version, config.block_size)
    return notes + _check_start(config)


def _refuse_a_tier_apart(
    model: ModelProfile, knobs: GivenKnobs, scheduling: Scheduling
) -> None:
    """Refuse an offload tier beside what it is not replayed with.

    vLLM runs both: without prefix caching its tier finds blocks all the same.

    Source: vLLM 0.32.0 ``v1/engine/core.py``, ``request_block_hasher``.
    """
    tier = [
        f"--{name.replace('_', '-')}"
        for name in ("kv_offloading_size", "num_cpu_blocks_override")
        if knobs.get(name)
    ]
    if not tier:
        return
    if not scheduling.enable_prefix_caching:
        raise NotReplayedError(
            "vLLM has an offload tier without prefix caching too, and blockbench does not"
            f" replay it: leave out --no-enable-prefix-caching, or {tier[0]}"
        )
    if model.sliding_window is not None:
        raise NotReplayedError(
            f"{model.name} has a sliding window, with which an offload tier is not"
            f" replayed; leave out {tier[0]}"
        )


def _scheduling(
    model: ModelProfile, knobs: GivenKnobs, defaults: V1Defaults, max_model_len: int
) -> Scheduling:
    caching = knobs.get("enable_prefix_caching")
    is_async = knobs.get("async_scheduling")
    reserves = knobs.get("scheduler_reserve_full_isl")
    return Scheduling(
        swap_space=None,
        kv_offloading_size=knobs.get("kv_offloading_size") or 0.0,
        enable_prefix_caching=(
            defaults.enable_prefix_caching if caching is None else caching
        ),
        async_scheduling=defaults.async_scheduling if is_async is None else is_async,
        scheduling_policy=_scheduling_policy(knobs.get("scheduling_policy")),
        long_prefill_token_threshold=_prefill_threshold(
            knobs.get("long_prefill_token_threshold"), max_model_len
        ),
        scheduler_reserve_full_isl=(
            defaults.scheduler_reserve_full_isl if reserves is None else reserves
        ),
        sliding_window=model.sliding_window,
        preemption_mode=None,
    )


def _refuse_what_is_gone(version: str, knobs: GivenKnobs) -> None:
    if knobs.get("preemption_mode") is not None:
        raise UsageError(
            "--preemption-mode belongs to policy v0; v1 always recomputes what it"
            " preempts, and --kv-offloading-size keeps computed blocks on the CPU; leave"
            " it out or use --policy v0"
        )
    is_removed = parse_version(version) >= SWAP_SPACE_REMOVED
    if knobs.get("swap_space") is not None and is_removed:
        raise UsageError(
            f"vLLM {version} has no --swap-space; {SWAP_SPACE_REMOVED} removed it, and v1"
            " never swapped; use --kv-offloading-size (GiB over all GPUs) or --policy v0"
        )


def _refuse_what_came_later(version: str, knobs: GivenKnobs) -> None:
    given = {
        "async_scheduling": knobs.get("async_scheduling"),
        "kv_offloading_size": knobs.get("kv_offloading_size"),
        "performance_mode": knobs.get("performance_mode"),
        "scheduler_reserve_full_isl": knobs.get("scheduler_reserve_full_isl"),
        "watermark": knobs.get("watermark"),
    }
    for name, value in given.items():
        if value is not None and not has_option(name, version):
            raise UsageError(
                f"vLLM {version} has no --{name.replace('_', '-')}; it came with"
                f" {OPTION_SINCE[name]}; leave it out or give a later --vllm-version"
            )
    has_tier = has_option("kv_offloading_size", version)
    if knobs.get("num_cpu_blocks_override") and not has_tier:
        raise UsageError(
            f"vLLM {version} keeps no blocks on the CPU, and --num-cpu-blocks-override"
            f" would be blocks of --kv-offloading-size, which came with"
            f" {OPTION_SINCE['kv_offloading_size']}; leave it out"
        )


def _scheduling_policy(policy: str | None) -> str:
    if policy is not None and policy not in SCHEDULING_POLICIES:
        raise UsageError(
            f"unknown scheduling policy {policy}; {' and '.join(SCHEDULING_POLICIES)} are"
            " there"
        )
    return policy or SCHEDULING_POLICIES[0]


def _prefill_threshold(threshold: int | None, max_model_len: int) -> int:
    """Most tokens of a prefill in a step; 0 for no limit.

    Source: vLLM 0.32.0, ``vllm/config/scheduler.py``.
    """
    if threshold is None:
        return 0
    if not 0 <= threshold <= max_model_len:
        raise ConfigError(
            f"long_prefill_token_threshold is {threshold}; vLLM starts with 0 (no limit)"
            f" to max_model_len ({max_model_len}); lower it or leave it out"
        )
    return threshold


def note_on_block_size_v1(version: str, block_size: int) -> list[str]:
    """A note on a block size that a version, or its usual backend, does not have."""
    sizes = offered_block_sizes(version)
    if sizes is not None and block_size not in sizes:
        return [
            f"vLLM {version} does not offer block size {block_size};"
            f" it has {', '.join(map(str, sizes))}"
        ]
    if sizes is None and block_size % BACKEND_BLOCK_SIZE:
        return [
            f"vLLM {version} takes the block sizes of its attention backend,"
            f" and FlashAttention has multiples of {BACKEND_BLOCK_SIZE};"
            f" {block_size} shows what another would do"
        ]
    return []


def _check_start(config: EngineConfig) -> list[str]:
    """Whether one sequence of the full length fits, as vLLM asks at start.

    Where the number of blocks is our estimate, that vLLM would not start is an error;
    where it was given, it is a note, and the replay shows what would happen.
    """
    needed = _Needed.by_longest_sequence(config)
    num_usable = config.num_gpu_blocks - 1  # block 0 is never handed out
    if needed.num_blocks <= num_usable:
        return []
    num_tokens = (num_usable - needed.num_extra) * config.block_size
    message = (
        f"{NO_START}: a sequence of max_model_len"
        f" {config.max_model_len:,} needs {needed.num_blocks:,} GPU blocks, and of"
        f" {config.num_gpu_blocks:,} one is set aside; "
    )
    if num_tokens > 0:
        message += f"it starts with --max-model-len {num_tokens}"
    else:
        message += f"it starts with {needed.num_blocks + 1:,} blocks"
    if config.source_of_num_gpu_blocks == "estimated":
        raise ConfigError(message)
    return [message]


@dataclass(frozen=True, slots=True)
class _Needed:
    """Blocks that one sequence can hold at a time, and how many of them pad a window."""

    num_blocks: int
    num_extra: int

    @classmethod
    def by_longest_sequence(cls, config: EngineConfig) -> "_Needed":
        """Blocks for a sequence of the full length.

        With a window it holds the window and what is in flight, in two batches where
        scheduling is asynchronous, and one block more, as a window may begin inside one.

        Source: vLLM 0.32.0, ``v1/kv_cache_interface.py``.
        """
        num_tokens, num_extra = config.max_model_len, 0
        if config.sliding_window is not None:
            num_batches = 2 if config.async_scheduling else 1
            in_flight = num_batches * config.max_num_batched_tokens
            num_tokens = min(num_tokens, config.sliding_window - 1 + in_flight)
            num_extra = 1
        return cls(-(-num_tokens // config.block_size) + num_extra, num_extra)
