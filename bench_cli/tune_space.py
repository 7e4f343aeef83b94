"""The space that ``blockbench tune`` searches: all there is, or what ``--space`` says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench_cli.variation import ENGINE_KNOBS, EXAMPLES, parse_variation
from harness.config import EngineConfig
from harness.errors import UsageError
from harness.tuning.space import SEARCHED_IF_NAMED, Space, space_of, with_value

SPACE_EXAMPLES = "block_size=16|32, max_num_seqs=64..1024"

MOST_OF_HOST = 0.7
"""Of the host's memory, for blocks; vLLM's v0 warns above 0.4 and refuses above 0.7."""

SHARED_UTILIZATIONS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
"""What is tried besides where others need the GPU too; those that fit no model cost
nothing."""

UTILIZATION_STEP = 0.01
"""Between them: the least of a GPU that is shared is looked for to a hundredth."""

_POOL_KNOBS = ("kv_cache_gib", "num_gpu_blocks_override")
"""With one of these given, the utilization decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSpace:
    """What was asked of the space.

    Attributes:
        text: As ``block_size=16|32, max_num_seqs=64..1024``; None for all there is.
        is_shared: Others need the GPU too.
        host_memory_gib: Of the machine that will serve; None if not known.
    """

    text: str | None = None
    is_shared: bool = False
    host_memory_gib: float | None = None


def space_and_fixed(
    given: Mapping[str, Any],
    current: Mapping[str, Any],
    start: EngineConfig,
    wanted: WantedSpace,
) -> tuple[Space, dict[str, Any]]:
    """What is searched, and the knobs that are the same in all trials.

    Args:
        given: Knobs that have flags of their own.
        current: Those of the present command.
        start: The present engine.
        wanted: What was asked of the space.

    Raises:
        UsageError: The space cannot be read, or contradicts the flags.
    """
    named = {} if wanted.text is None else parse_space(wanted.text)
    start_of = {n: value_of(start, n) for n in ENGINE_KNOBS if hasattr(start, n)}
    choices = dict(space_of(start.policy, start.vllm_version, start_of).choices)
    _bound_by_host(choices, start, wanted.host_memory_gib)
    if wanted.is_shared:
        least = {*SHARED_UTILIZATIONS, *choices["gpu_memory_utilization"]}
        choices["gpu_memory_utilization"] = tuple(sorted(least))
    for name, values in named.items():
        _refuse_named(name, given, choices, start)
        choices[name] = with_value(values, value_of(start, name))
    _refuse_idle_utilization(given, current, named, wanted)
    if any(given.get(n) or current.get(n) for n in _POOL_KNOBS):
        del choices["gpu_memory_utilization"]
    open_ = {n: v for n, v in choices.items() if given.get(n) is None and len(v) > 1}
    fixed = {n: v for n, v in given.items() if n not in open_}
    for name, value in current.items():
        if name not in open_:
            fixed.setdefault(name, value)
    return Space(open_), fixed


def _bound_by_host(
    choices: dict[str, tuple[Any, ...]],
    start: EngineConfig,
    host_memory_gib: float | None,
) -> None:
    """Leave out tiers that would take too much of the host; what there is stays.

    Swap space is that of each GPU, an offload tier that of all.
    """
    if host_memory_gib is None:
        return
    for name in choices.keys() & {"kv_offloading_size", "swap_space"}:
        num_parts = start.tensor_parallel_size if name == "swap_space" else 1
        most = MOST_OF_HOST * host_memory_gib / num_parts
        within = tuple(value for value in choices[name] if value <= most)
        choices[name] = with_value(within, value_of(start, name))


def _refuse_named(
    name: str, given: Mapping[str, Any], choices: Mapping[str, Any], start: EngineConfig
) -> None:
    if name not in choices and name not in SEARCHED_IF_NAMED:
        raise UsageError(
            f"--space: {name} is not searched with vLLM {start.vllm_version};"
            f" {', '.join((*choices, *SEARCHED_IF_NAMED))} are"
        )
    if given.get(name) is not None:
        raise UsageError(
            f"--space gives values of {name}, and --{name.replace('_', '-')} fixes it;"
            " leave one of them out"
        )


def _refuse_idle_utilization(
    given: Mapping[str, Any],
    current: Mapping[str, Any],
    named: Mapping[str, Any],
    wanted: WantedSpace,
) -> None:
    """Refuse to look for a utilization that is fixed, or that decides nothing."""
    asking = "--shared-gpu" if wanted.is_shared else "--space gpu_memory_utilization"
    if not wanted.is_shared and "gpu_memory_utilization" not in named:
        return
    fixed = ("gpu_memory_utilization",) if given.get("gpu_memory_utilization") else ()
    pools = tuple(n for n in _POOL_KNOBS if given.get(n) or current.get(n))
    for name in fixed + pools:
        raise UsageError(
            f"{asking} looks for a gpu_memory_utilization, and --{name.replace('_', '-')}"
            f" {'fixes it' if name in fixed else 'sets the blocks without it'}; leave one"
            " of them out"
        )


def value_of(config: EngineConfig, name: str) -> Any:
    """A knob of an engine, by the name that it is searched by."""
    value = getattr(config, name)
    return "auto" if value is None and name == "kv_cache_dtype" else value


def parse_space(text: str) -> dict[str, tuple[Any, ...]]:
    """The values in ``block_size=16|32, max_num_seqs=64..1024``, by knob.

    Raises:
        UsageError: It cannot be read.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for part in text.split(","):
        try:
            variation = parse_variation(part.replace("|", ","), ENGINE_KNOBS)
        except UsageError as error:
            said = str(error).replace("--vary", "--space", 1)
            raise UsageError(said.replace(EXAMPLES, SPACE_EXAMPLES)) from error
        if variation.knob in found:
            raise UsageError(f"--space names {variation.knob} twice; keep one")
        found[variation.knob] = variation.values
    return found
