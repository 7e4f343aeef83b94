"""What there is now, as ``blockbench tune`` starts from it: flags and a command."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.serve_line import ServeLine, option_words, settings_of
from bench_cli.shell_word import Word
from bench_cli.tune_words import shown
from harness.config import EngineConfig, no_start, resolve_config
from harness.config.version import in_force
from harness.errors import ConfigError, UsageError
from profiles.default_engine import CASTS_BF16_SINCE, has_both_engines, refuses_bf16
from profiles.errors import ProfileError
from profiles.gpu import load_gpu
from profiles.model import load_model
from profiles.option_range import why_lacking
from profiles.serve_option import GIB, OPTIONS, why_not
from profiles.vllm_v1 import has_option


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The present settings.

    Attributes:
        given: Knobs with flags, by name.
        current: Those of the command that are replayed.
        command: The command without what its vLLM lacks or does nothing with; None where
            none was given.
        unreplayed: Options of knobs that stay in a line though no replay heeds them.
        start: The engine.
        notes: What a reader should know of all this.
    """

    given: dict[str, Any]
    current: dict[str, Any]
    command: ServeLine | None
    unreplayed: tuple[str, ...]
    start: EngineConfig
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Sorted:
    """Options of a command, by what its vLLM makes of them."""

    knobs: dict[str, Any] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    unreplayed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def present_of(flags: EngineFlags, current: ServeLine | None) -> Present:
    """The present settings; a number of blocks as the memory that it is.

    From 0.8 to 0.10 the policy is that of a plain ``vllm serve`` on that GPU with these
    options, unless the command or a flag says another.

    Raises:
        UsageError: Flags that contradict each other or the present command.
        ConfigError, ProfileError: The present settings cannot start.
    """
    given, notes = _given(flags), []
    if current is not None:
        notes += _settle_model(given, current.model)
        _refuse_contradictions(given, current.knobs)
        if given.get("policy") is None and "policy" in current.knobs:
            given["policy"] = current.knobs["policy"]
    version = in_force(given.get("policy"), given.get("vllm_version")).vllm_version
    had = _had(current, version)
    notes += had.notes
    notes += _settle_engine(given, had, version)
    heard = _heard(had, version, given.get("policy"))
    notes += heard.notes
    notes += _settle_dtype(given, heard.knobs, version)
    start = resolve_config(**{**given, **heard.knobs})
    _check_starts(start)
    _blocks_as_memory(start, given, heard.knobs)
    return Present(
        given=given,
        current=heard.knobs,
        command=None if current is None else _with(current, had, heard),
        unreplayed=tuple(heard.unreplayed),
        start=start,
        notes=tuple(note for note in notes if note not in start.notes),
    )


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


def _settle_model(given: dict[str, Any], present: str) -> list[str]:
    """The model of the command, unless a flag names another; a note where that may be.

    Raises:
        UsageError: Both are known, and not the same.
    """
    if given["model"] == EngineFlags().model:
        given["model"] = present
    simulated, started = _known(given["model"]), _known(present)
    if given["model"] == present or (simulated == started and simulated is not None):
        return []
    if simulated is not None and started is not None:
        raise UsageError(
            f"--model {given['model']} is another model than {present}, which the present"
            " command starts; leave --model out, or write it into the command"
        )
    return [
        f"whether {present} is {given['model']}: the latter is simulated, and the line"
        " starts the former"
    ]


def _known(model: str) -> str | None:
    """The id of a bundled model; None for a file, a folder or another name."""
    if Path(model).expanduser().exists():
        return None
    try:
        return load_model(model).name
    except ProfileError:
        return None


def _refuse_contradictions(given: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    for name, value in current.items():
        if given.get(name, value) != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"the present command has {name} {shown(value)}, and {flag} says"
                f" {shown(given[name])}; give one of them"
            )


def _had(current: ServeLine | None, version: str) -> _Sorted:
    """What the version's parser takes of a command."""
    found = _Sorted()
    if current is None:
        return found
    for name, value in current.knobs.items():
        if name == "policy":
            continue
        why = why_lacking(OPTIONS[name].vllm_name, version)
        if why:
            found.notes.append(_lacking(OPTIONS[name].flag, version, why))
        else:
            found.knobs[name] = value
    is_left_out = False
    for raw in current.kept:
        word = Word.read(raw)
        if word.is_flag:
            flag = word.value.partition("=")[0]
            why = why_lacking(flag, version)
            is_left_out = bool(why)
            if why:
                found.notes.append(_lacking(flag, version, why))
        if not is_left_out:
            found.kept.append(raw)
    return found


def _lacking(flag: str, version: str, why: str) -> str:
    return (
        f"vLLM {version} has no {flag} ({why}), and does not start with the present"
        f" command: left out of the line{_instead(flag, version)}"
    )


def _instead(flag: str, version: str) -> str:
    if flag != "--swap-space" or not has_option("kv_offloading_size", version):
        return ""
    return "; --kv-offloading-size is what keeps blocks on the CPU now"


def _settle_engine(given: dict[str, Any], had: _Sorted, version: str) -> list[str]:
    """The engine that runs, where a version has two; what there is to say of that."""
    if not has_both_engines(version):
        return []
    names = {knob: option.vllm_name for knob, option in OPTIONS.items()}
    knobs = {names.get(n, n): v for n, v in {**had.knobs, **given}.items()}
    chosen = in_force(
        given.get("policy"),
        given.get("vllm_version"),
        gpu=load_gpu(given["gpu"]),
        options={**settings_of([Word.read(raw) for raw in had.kept]), **knobs},
    )
    given["policy"] = chosen.policy
    return list(chosen.notes)


def _heard(had: _Sorted, version: str, policy: str | None) -> _Sorted:
    """What an engine, and its replay, make of the options that a version has."""
    policy = in_force(policy, version).policy
    found = _Sorted()
    for name, value in had.knobs.items():
        option = OPTIONS[name]
        reason = why_not(option, value, version, policy)
        is_unreplayed = policy == "v0" and name == "scheduling_policy" and value != "fcfs"
        if not reason and not is_unreplayed:
            found.knobs[name] = value
        elif policy == "v0":
            words = option_words(option, value, version)
            found.unreplayed += words
            found.notes.append(
                f"{' '.join(words)} is not replayed with v0 (requests are taken in the"
                " order of arrival, prompts cut by the budget alone): kept in the line"
            )
        elif name == "swap_space":
            found.notes.append(
                f"vLLM {version} takes --swap-space and does not swap: left out of the"
                f" line{_instead('--swap-space', version)}"
            )
        else:
            found.notes.append(f"{reason}: left out of the line")
    return found


def _settle_dtype(
    given: dict[str, Any], current: Mapping[str, Any], version: str
) -> list[str]:
    """The type that a version does not take by itself where a GPU has no bfloat16."""
    told = {"dtype": "auto"} | {n: v for n, v in {**current, **given}.items() if v}
    if told["dtype"] != "auto" or not refuses_bf16(version, load_gpu(given["gpu"])):
        return []
    given["dtype"] = "half"
    return [
        f"vLLM {version} does not start on a {given['gpu']} with a model of bfloat16:"
        f" --dtype half is in the line, which {CASTS_BF16_SINCE} and later do without"
    ]


def _check_starts(start: EngineConfig) -> None:
    """Refuse a pool, given as it is, with which a replay goes on and vLLM does not."""
    if reason := no_start(start):
        raise ConfigError(reason)


def _blocks_as_memory(start: EngineConfig, *knobs: dict[str, Any]) -> None:
    """Blocks of other sizes are as much memory."""
    if start.source_of_num_gpu_blocks != "override":
        return
    for each in knobs:
        if each.pop("num_gpu_blocks_override", None) is not None:
            each["kv_cache_gib"] = (start.num_gpu_blocks + 0.5) * start.block_bytes / GIB


def _with(current: ServeLine, had: _Sorted, heard: _Sorted) -> ServeLine:
    """The command with what is left of its options, the numbers as they were."""
    policy = {n: v for n, v in current.knobs.items() if n == "policy"}
    knobs = {n: v for n, v in current.knobs.items() if _is_left(n, heard.knobs)}
    return replace(current, knobs=policy | knobs, kept=tuple(had.kept))


def _is_left(name: str, heard: Mapping[str, Any]) -> bool:
    is_memory = name == "num_gpu_blocks_override" and "kv_cache_gib" in heard
    return name in heard or is_memory
