"""The command that starts vLLM, as a person runs it: read, and written again."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_cli.shell_word import Word
from harness.errors import UsageError
from profiles.default_engine import has_both_engines, why_v0
from profiles.gpu_profile import GpuProfile
from profiles.serve_option import (
    CONFIG_MODEL_SINCE,
    CONFIG_SINCE,
    CONFIG_SWITCHES_SINCE,
    GIB,
    OPTIONS,
    SERVE_SINCE,
    ServeOption,
    needs_offloading_backend,
    switch_form,
    why_not,
)
from profiles.vllm_version import parse_version

ONE_LINE = " "
CONTINUED = " \\\n  "
"""Puts each option on a line of its own."""

_IN_FULL = {"-pp": "--pipeline-parallel-size", "-sc": "--speculative-config"}

BACKEND_FLAG = "--kv-offloading-backend"
API_SERVER = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLine:
    """What a command that starts vLLM says.

    Attributes:
        model: Its name, or the folder that it is in.
        knobs: Those that it sets, by name, as ``resolve_config`` takes them; ``policy``
            among them where the command chooses the engine.
        kept: Options that are not modelled, in order, each word as it was written, quotes
            and all.
        environment: Variables that it sets for vLLM, written likewise, without the one
            that chooses the engine.
    """

    model: str
    knobs: dict[str, Any] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeYaml:
    """A file for ``vllm serve --config``, and the command that reads it.

    Attributes:
        text: The file.
        line: The command, with all that such a file of that version cannot say.
    """

    text: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a start of vLLM consists of, checked against a version."""

    model: str
    options: list[tuple[ServeOption, Any]]
    version: str
    policy: str
    kept: list[Word]
    environment: Sequence[str]
    gpu: GpuProfile | None
    is_told: bool

    @property
    def has_serve(self) -> bool:
        """Whether there is a ``vllm serve``."""
        return parse_version(self.version) >= SERVE_SINCE

    def head(self) -> str:
        """The command up to its options, the model left out."""
        first = list(self.environment)
        if self.is_told or self._is_other_by_itself():
            first.append(f"VLLM_USE_V1={'0' if self.policy == 'v0' else '1'}")
        first.append("vllm serve" if self.has_serve else f"python -m {API_SERVER}")
        return " ".join(first)

    def _is_other_by_itself(self) -> bool:
        """Whether the version would run its other engine if nobody told it."""
        if not has_both_engines(self.version):
            return False
        given = {option.vllm_name: value for option, value in self.options}
        settings = given | settings_of(self.kept)
        reason = why_v0(self.version, gpu=self.gpu, options=settings)
        return (reason is not None) != (self.policy == "v0")

    def head_and_model(self) -> str:
        """The command up to its options."""
        before = "" if self.has_serve else "--model "
        return f"{self.head()} {before}{shlex.quote(self.model)}"

    def needs_backend(self) -> bool:
        """Whether the offload tier has to be told whose it is."""
        has_tier = any(option.knob == "kv_offloading_size" for option, _ in self.options)
        is_told = any(word.value.startswith(BACKEND_FLAG) for word in self.kept)
        return has_tier and needs_offloading_backend(self.version) and not is_told

    def kept_groups(self) -> list[str]:
        """The options that are kept, each with its values."""
        groups: list[str] = []
        for word in self.kept:
            if word.is_flag or not groups:
                groups.append(word.raw)
            else:
                groups[-1] += f" {word.raw}"
        return groups


def serve_line(
    model: str,
    changed: Mapping[str, Any],
    *,
    version: str,
    policy: str,
    kept: Sequence[str] = (),
    environment: Sequence[str] = (),
    gpu: GpuProfile | None = None,
    is_told: bool = False,
    between: str = ONE_LINE,
) -> str:
    """The command that starts a version of vLLM with some knobs set and no others.

    ``changed`` are knobs by name; one that is None, or an offload tier of 0 GiB, is left
    out. ``kept`` and
    ``environment`` come back as they are. The engine is named where the version would run
    its other one on that GPU, and where ``is_told``. ``between`` is ``ONE_LINE`` or
    ``CONTINUED``.

    Raises:
        UsageError: The version has no such option, or not that value of it.
        ProfileError: The text is no version.
    """
    start = _start(model, changed, version, policy, kept, environment, gpu, is_told)
    parts = [start.head_and_model()]
    for option, value in start.options:
        parts += _on_the_line(option, value, version)
    if start.needs_backend():
        parts.append(f"{BACKEND_FLAG} native")
    return between.join(parts + start.kept_groups())


def serve_yaml(
    model: str,
    changed: Mapping[str, Any],
    *,
    version: str,
    policy: str,
    kept: Sequence[str] = (),
    environment: Sequence[str] = (),
    gpu: GpuProfile | None = None,
    is_told: bool = False,
    path: str = "serve.yaml",
    between: str = ONE_LINE,
) -> ServeYaml:
    """The same as a file; what is kept, keys of an API among it, stays on the line.

    Raises:
        UsageError: As ``serve_line`` does; or such a file cannot be used.
        ProfileError: The text is no version.
    """
    start = _start(model, changed, version, policy, kept, environment, gpu, is_told)
    _refuse_config(start, path)
    has_model = parse_version(version) >= CONFIG_MODEL_SINCE
    entries = [f"model: {json.dumps(model, ensure_ascii=False)}"] if has_model else []
    parts = [start.head() if has_model else start.head_and_model()]
    parts.append(f"--config {shlex.quote(path)}")
    for option, value in start.options:
        if _fits_in_file(option, version):
            entries += _in_the_file(option, value, version)
        else:
            parts += _on_the_line(option, value, version)
    if start.needs_backend():
        entries.append(f'{BACKEND_FLAG.removeprefix("--")}: "native"')
    parts[0:2] = [" ".join(parts[0:2])]
    text = "".join(f"{entry}\n" for entry in entries) or "{}\n"
    return ServeYaml(text, between.join(parts + start.kept_groups()))


def _start(
    model: str,
    changed: Mapping[str, Any],
    version: str,
    policy: str,
    kept: Sequence[str],
    environment: Sequence[str],
    gpu: GpuProfile | None,
    is_told: bool,
) -> _Start:
    given = {knob: value for knob, value in changed.items() if value is not None}
    if given.get("kv_offloading_size") == 0:
        del given["kv_offloading_size"]  # no tier, which is what leaving it out means
    if "num_cpu_blocks_override" in given:
        raise UsageError(
            "vLLM has no option for --num-cpu-blocks-override; give --swap-space (v0) or"
            " --kv-offloading-size (v1) instead"
        )
    unknown = given.keys() - OPTIONS.keys()
    assert not unknown, f"no option for {unknown}"
    options = [(option, given[knob]) for knob, option in OPTIONS.items() if knob in given]
    for option, value in options:
        if reason := why_not(option, value, version, policy):
            raise UsageError(f"{reason}; leave it out or give another --vllm-version")
    return _Start(
        model=model,
        options=options,
        version=version,
        policy=policy,
        kept=[Word.read(raw) for raw in kept],
        environment=environment,
        gpu=gpu,
        is_told=is_told,
    )


def settings_of(kept: Sequence[Word]) -> dict[str, str]:
    """Values of options that are not modelled, by name; empty for a switch."""
    found: dict[str, str] = {}
    name = ""
    for word in kept:
        if word.is_flag:
            flag, _, value = word.value.partition("=")
            flag = _IN_FULL.get(flag, flag)
            name = flag.lstrip("-").partition(".")[0].replace("-", "_")
            found[name] = value
        elif name and not found[name]:
            found[name] = word.value
    return found


def _refuse_config(start: _Start, path: str) -> None:
    if parse_version(start.version) < CONFIG_SINCE:
        raise UsageError(
            f"vLLM {start.version} has no --config; it came with {CONFIG_SINCE}; use the"
            " command"
        )
    if not re.search(r"\.ya?ml$", path):
        raise UsageError(f"{path} must end in .yaml or .yml for vLLM; rename it")
    if any(re.match(r"--config(=|$)", word.value) for word in start.kept):
        raise UsageError(
            "the command reads a --config already, and vLLM takes one; use the command,"
            " or add the advised options to that file"
        )


def option_words(option: ServeOption, value: Any, version: str) -> list[str]:
    """An option and its value as words of a command."""
    return [
        word
        for part in _on_the_line(option, value, version)
        for word in part.split(" ", 1)
    ]


def _on_the_line(option: ServeOption, value: Any, version: str) -> list[str]:
    """The option as it is typed; nothing where a switch is off by default for good."""
    if option.kind != "switch":
        return [f"{option.flag} {shlex.quote(_text(option, value))}"]
    form = switch_form(option, version)
    if form == "true_false":
        return [f"{option.flag}={value}"]
    if value:
        return [option.flag]
    return [f"--no-{option.key}"] if form == "on_off" else []


def _fits_in_file(option: ServeOption, version: str) -> bool:
    is_bare = option.kind == "switch" and switch_form(option, version) != "true_false"
    return not is_bare or parse_version(version) >= CONFIG_SWITCHES_SINCE


def _in_the_file(option: ServeOption, value: Any, version: str) -> list[str]:
    if option.kind == "text":
        return [f"{option.key}: {json.dumps(value, ensure_ascii=False)}"]
    if option.kind != "switch":
        return [f"{option.key}: {_text(option, value)}"]
    form = switch_form(option, version)
    if form == "true_false":  # as text: a YAML false would be passed over
        return [f'{option.key}: "{value}"']
    if value:
        return [f"{option.key}: true"]
    return [f"no-{option.key}: true"] if form == "on_off" else []


def _text(option: ServeOption, value: Any) -> str:
    """A value as vLLM reads it."""
    if option.knob == "kv_cache_gib":
        return str(round(value * GIB))
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value)
