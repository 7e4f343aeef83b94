"""What policy v0 makes of the knobs that were given."""

from harness.config.engine_config import NO_START, EngineConfig
from harness.config.knobs import GivenKnobs, Limits, Scheduling, longest_sequence
from harness.config.pool import note_on_pool
from harness.config.version import InForce
from harness.errors import ConfigError, UsageError
from harness.schedulers.batch import PreemptionMode
from profiles.model import ModelProfile
from profiles.vllm_version import (
    DEFAULT_V0_VERSION,
    V0_OPTION_SINCE,
    V0_WATERMARK,
    parse_version,
    v0_defaults,
    v0_support,
)

V0_BLOCK_SIZES = (8, 16, 32)
"""Choices of ``--block-size`` in the versions that policy v0 is exact for.

Source: tests/data/published/vllm_knobs.csv, row 0.4.3.
"""


def settle_v0(
    chosen: InForce, model: ModelProfile, knobs: GivenKnobs
) -> tuple[Limits, Scheduling]:
    """The knobs of a v0 engine, none open any more.

    Raises:
        UsageError: A knob that v0 does not have, or a model that it cannot run.
        ConfigError: Knobs with which vLLM would not start.
    """
    _refuse_what_came_later(chosen.vllm_version, knobs)
    _refuse_window(model)
    max_model_len = longest_sequence(model, knobs.get("max_model_len"))
    defaults = v0_defaults(
        chosen.vllm_version,
        max_model_len=max_model_len,
        enable_prefix_caching=bool(knobs.get("enable_prefix_caching")),
        enable_chunked_prefill=knobs.get("enable_chunked_prefill"),
    )
    limits = Limits.filled(knobs, defaults, max_model_len)
    limits.check("vLLM's v0 uses 0.01")
    swap_space = knobs.get("swap_space")
    return limits, Scheduling(
        swap_space=defaults.swap_space_gib if swap_space is None else swap_space,
        kv_offloading_size=0.0,
        enable_prefix_caching=defaults.enable_prefix_caching,
        async_scheduling=False,
        scheduling_policy="fcfs",
        long_prefill_token_threshold=0,
        scheduler_reserve_full_isl=False,
        sliding_window=None,
        preemption_mode=_preemption_mode(knobs.get("preemption_mode")),
    )


def notes_v0(config: EngineConfig, knobs: GivenKnobs) -> list[str]:
    """Where the replay is not exactly that vLLM, or the pool not one that it has.

    Raises:
        ConfigError: vLLM would not start with the number of blocks that was estimated.
    """
    notes = []
    watermark = knobs.get("watermark")
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
    notes += note_on_pool(config) + note_on_block_size_v0(config.block_size)
    return notes + _check_start(config)


def note_on_block_size_v0(block_size: int) -> list[str]:
    """A note on a block size that v0 does not have."""
    if block_size in V0_BLOCK_SIZES:
        return []
    return [
        f"vLLM {DEFAULT_V0_VERSION} does not offer block size {block_size};"
        f" it has {', '.join(map(str, V0_BLOCK_SIZES))}"
    ]


def _refuse_what_came_later(version: str, knobs: GivenKnobs) -> None:
    v0_has = {
        "--async-scheduling": (
            knobs.get("async_scheduling"),
            "schedules a step when the last one has ended",
        ),
        "--long-prefill-token-threshold": (
            knobs.get("long_prefill_token_threshold"),
            "cuts a prompt to the budget alone",
        ),
        "--scheduler-reserve-full-isl": (
            knobs.get("scheduler_reserve_full_isl"),
            "admits a prompt only where all of it fits",
        ),
        "--performance-mode": (
            knobs.get("performance_mode"),
            "has one set of defaults",
        ),
        "--kv-offloading-size": (
            knobs.get("kv_offloading_size"),
            "swaps instead, into --swap-space",
        ),
    }
    for flag, (value, does) in v0_has.items():
        if value is not None:
            raise UsageError(
                f"{flag} belongs to policy v1; v0 {does}; leave it out or use --policy v1"
            )
    _refuse_priorities(version, knobs.get("scheduling_policy"))


def _refuse_priorities(version: str, order: str | None) -> None:
    """Refuse another order than that of arrival, whether or not that vLLM has one."""
    if order in (None, "fcfs"):
        return
    since = V0_OPTION_SINCE["scheduling_policy"]
    if parse_version(version) < since:
        raise UsageError(
            f"vLLM {version} has no --scheduling-policy; it came with {since}; leave it"
            " out or give a later --vllm-version"
        )
    raise UsageError(
        f"--scheduling-policy {order} is not replayed with policy v0, though vLLM"
        f" {version} has it there: requests are taken in order of arrival; leave it out,"
        " or use --policy v1 with a version that has it there (0.9.2 on)"
    )


def _refuse_window(model: ModelProfile) -> None:
    if model.sliding_window is not None:
        raise UsageError(
            f"{model.name} has a sliding window of {model.sliding_window:,} tokens, which"
            " policy v0 does not replay; use --policy v1 or a model without a window"
        )


def _preemption_mode(mode: str | None) -> PreemptionMode | None:
    if mode is not None and mode not in list(PreemptionMode):
        raise UsageError(f"unknown preemption mode {mode}; recompute and swap are there")
    return None if mode is None else PreemptionMode(mode)


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
        f"{NO_START}: max_model_len {config.max_model_len:,} exceeds the"
        f" {num_tokens:,} tokens of {config.num_gpu_blocks:,} GPU blocks; {remedy}"
    )
    if config.source_of_num_gpu_blocks == "estimated":
        raise ConfigError(message)
    return [message]
