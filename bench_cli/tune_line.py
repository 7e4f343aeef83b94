"""The line that ``blockbench tune`` advises, and the file for ``vllm serve --config``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.serve_line import serve_line, serve_yaml
from bench_cli.tune_space import value_of
from harness.errors import HarnessError
from profiles.errors import ProfileError
from profiles.serve_option import OPTIONS, why_not

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.config import EngineConfig
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial

YAML_NAME = "serve.yaml"
"""Of the file for ``--config``, where nobody named one."""

_ENGINE = ("model", "gpu", "engine", "policy", "vllm_version")
"""Of the fixed knobs, those that are no options of ``vllm serve``."""


def commands(
    asked: "Asked", answer: "Answer", yaml_path: Path
) -> tuple[str, str | None, str | None]:
    """The line, a file for ``--config``, and the line that reads it, if there can be one.

    Only options that are not the version's own defaults stand there, and those only that
    the version has; what is kept of a present command stays as it was, and all of it
    where nothing is to be changed.
    """
    from harness.errors import UsageError

    model, kwargs = model_and_rest(asked)
    changed = changed_options(asked, answer)
    line = serve_line(model, changed, **kwargs)
    try:
        file = serve_yaml(model, changed, **kwargs, path=str(yaml_path))
    except UsageError:
        return line, None, None
    return line, file.text, file.line


def check_yaml(asked: "Asked", path: Path) -> None:
    """Refuse a file for ``--config`` that cannot be, before what takes long.

    Raises:
        UsageError: This version, or this command, cannot read it; or the file is there.
    """
    from harness.errors import UsageError

    model, kwargs = model_and_rest(asked)
    serve_yaml(model, {}, **kwargs, path=str(path))
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path} is there already; choose another file with --yaml")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")


def write_yaml(path: Path, text: str) -> None:
    """Write the file for ``--config``.

    Raises:
        UsageError: It cannot be written.
    """
    from bench_cli.output_file import write_whole
    from harness.errors import UsageError

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; give --yaml another"
        ) from error


def model_and_rest(asked: "Asked") -> tuple[str, dict[str, Any]]:
    """Model, and what else of a command is no knob."""
    from profiles.gpu import load_gpu

    current = asked.current
    model = asked.start.model if current is None else current.model
    return model, {
        "version": asked.start.vllm_version,
        "policy": asked.start.policy,
        "gpu": load_gpu(asked.start.gpu),
        "is_told": current is not None and "policy" in current.knobs,
        "kept": kept_of(asked),
        "environment": () if current is None else current.environment,
    }


def kept_of(asked: "Asked") -> tuple[str, ...]:
    """Words of the present command that stay in the line as they are."""
    kept = () if asked.current is None else asked.current.kept
    return (*asked.unreplayed, *kept)


def changed_options(asked: "Asked", answer: "Answer") -> dict[str, Any]:
    """Values of advised options that are not what the version has by itself."""
    return options_of(asked, answer.knobs, answer.advice.trial)


def options_of(
    asked: "Asked", knobs: Mapping[str, Any], trial: "Trial"
) -> dict[str, Any]:
    """Values of a setting's options that are not what the version has by itself.

    The present setting has those of the present command, no more and no fewer.

    Args:
        asked: What else of the engine is as it is.
        knobs: The setting.
        trial: Its replay, of any requests.
    """
    found = _fixed_options(asked, trial)
    if dict(knobs) == dict(asked.question.start):
        current = {} if asked.current is None else asked.current.knobs
        found |= {n: v for n, v in current.items() if n in OPTIONS}
    else:
        found |= _least(asked, found, knobs)
    version, policy = asked.start.vllm_version, asked.start.policy
    return {
        name: value
        for name, value in found.items()
        if name in OPTIONS and not why_not(OPTIONS[name], value, version, policy)
    }


def _fixed_options(asked: "Asked", trial: "Trial") -> dict[str, Any]:
    """Those that somebody set, of knobs that are not searched."""
    found = {
        name: value
        for name, value in asked.fixed.items()
        if name not in _ENGINE and not _is_plain(name, value)
    }
    if asked.start.source_of_num_gpu_blocks == "override":
        del found["kv_cache_gib"]
        assert trial.run is not None, "it was replayed to its end"
        found["num_gpu_blocks_override"] = trial.run.info.config["num_gpu_blocks"]
    return found


def _is_plain(name: str, value: Any) -> bool:
    return (name, value) in (("tensor_parallel_size", 1), ("enforce_eager", False))


def _least(
    asked: "Asked", fixed: Mapping[str, Any], knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """The fewest options with which an engine has these knobs.

    A default may follow from another option, as ``max_num_seqs`` from few tokens a step.
    """
    default = asked.default
    found = {
        name: value
        for name, value in knobs.items()
        if default is None or value != value_of(default, name)
    }
    resolved = _resolved(asked, {**fixed, **found})
    if resolved is None:
        return found
    found |= {n: v for n, v in knobs.items() if value_of(resolved, n) != v}
    for name in [n for n in reversed(found) if n not in _stated(asked)]:
        others = {n: v for n, v in found.items() if n != name}
        resolved = _resolved(asked, {**fixed, **others})
        if resolved is not None and all(
            value_of(resolved, n) == v for n, v in knobs.items()
        ):
            found = others
    return found


def _stated(asked: "Asked") -> Mapping[str, Any]:
    return {} if asked.current is None else asked.current.knobs


def _resolved(asked: "Asked", options: Mapping[str, Any]) -> "EngineConfig | None":
    """The engine with these options; None where it cannot start."""
    from harness.config import resolve_config

    engine = {n: v for n, v in asked.fixed.items() if n in _ENGINE}
    given = {n: v for n, v in options.items() if (n, v) != ("kv_offloading_size", 0)}
    try:
        return resolve_config(**engine, **given)
    except (HarnessError, ProfileError):
        return None
