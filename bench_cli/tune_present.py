"""The present settings: flags and the command that starts vLLM, put together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.serve_line import ServeLine
from bench_cli.tune_space import heeded
from bench_cli.tune_words import shown
from harness.config import EngineConfig, no_start, resolve_config
from harness.config.version import in_force
from harness.errors import ConfigError, UsageError
from profiles.serve_option import GIB, runs_v1_unless_told


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The present settings.

    Attributes:
        given: Knobs that have flags, and were set.
        current: Those of the present command.
        start: The engine.
    """

    given: dict[str, Any]
    current: dict[str, Any]
    start: EngineConfig


def present_of(flags: EngineFlags, current: ServeLine | None) -> Present:
    """The present settings; a number of blocks as the memory that it is.

    Raises:
        UsageError: Flags that contradict the command.
        ConfigError, ProfileError: vLLM would not start.
    """
    given = _given(_as_current(flags, current))
    knobs = {} if current is None else dict(current.knobs)
    _refuse_contradictions(given, knobs)
    knobs.pop("policy", None)
    start = resolve_config(**{**given, **heeded(knobs, _policy_of(given))})
    _check_starts(start)
    if start.source_of_num_gpu_blocks == "override":
        for each in (given, knobs):  # blocks of other sizes are as much memory
            if each.pop("num_gpu_blocks_override", None) is not None:
                each["kv_cache_gib"] = (
                    (start.num_gpu_blocks + 0.5) * start.block_bytes / GIB
                )
    return Present(given=given, current=knobs, start=start)


def _check_starts(start: EngineConfig) -> None:
    """Refuse a pool, given as it is, with which a replay goes on and vLLM does not."""
    if reason := no_start(start):
        raise ConfigError(reason)


def _given(flags: EngineFlags) -> dict[str, Any]:
    """Knobs that somebody set; one that is as it is by itself may be set otherwise."""
    plain = EngineFlags().knobs()
    always = ("model", "gpu", "engine")
    knobs = flags.knobs()
    if knobs["num_cpu_blocks_override"] is not None:
        raise UsageError(
            "vLLM has no option for --num-cpu-blocks-override; give --swap-space (v0) or"
            " --kv-offloading-size (v1) instead"
        )
    return {n: v for n, v in knobs.items() if n in always or v != plain[n]}


def _as_current(flags: EngineFlags, current: ServeLine | None) -> EngineFlags:
    """The flags, with the model and the engine that the present command has.

    From 0.8 to 0.10 a plain ``vllm serve`` runs v1.
    """
    if current is not None and flags.model == EngineFlags().model:
        flags = replace(flags, model=current.model)
    if flags.policy is not None:
        return flags
    from bench_cli.engine_options import Policy

    policy = None if current is None else current.knobs.get("policy")
    if policy is not None:
        return replace(flags, policy=Policy(policy))
    version = flags.vllm_version
    if version is not None and runs_v1_unless_told(version):
        return replace(flags, policy=Policy.V1)
    return flags


def _refuse_contradictions(given: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    for name, value in current.items():
        if given.get(name, value) != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"the present command has {name} {shown(value)}, and {flag} says"
                f" {shown(given[name])}; give one of them"
            )


def _policy_of(given: Mapping[str, Any]) -> str:
    """The policy that is in force."""
    return in_force(given.get("policy"), given.get("vllm_version")).policy
