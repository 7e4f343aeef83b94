"""The line that ``blockbench tune`` advises, and the file for ``vllm serve --config``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.serve_line import serve_line, serve_yaml
from profiles.serve_option import OPTIONS, why_not

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.config import EngineConfig
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial

YAML_NAME = "serve.yaml"
"""Of the file for ``--config``, where nobody named one."""


def commands(
    asked: "Asked", answer: "Answer", yaml_path: Path
) -> tuple[str, str | None, str | None]:
    """The line, a file for ``--config``, and the line that reads it, if there can be one.

    Only options that are not the version's own defaults stand there, and those only that
    the version has; what is kept of a present command stays as it was.
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
    current = asked.current
    model = asked.start.model if current is None else current.model
    return model, {
        "version": asked.start.vllm_version,
        "policy": asked.start.policy,
        "kept": () if current is None else current.kept,
        "environment": () if current is None else current.environment,
    }


def changed_options(asked: "Asked", answer: "Answer") -> dict[str, Any]:
    """Values of advised options that are not what the version has by itself."""
    return options_of(asked, answer.knobs, answer.advice.trial)


def options_of(
    asked: "Asked", knobs: Mapping[str, Any], trial: "Trial"
) -> dict[str, Any]:
    """Values of a setting's options that are not what the version has by itself.

    Args:
        asked: What else of the engine is as it is.
        knobs: The setting.
        trial: Its replay, of any requests.
    """
    version, policy = asked.start.vllm_version, asked.start.policy
    found = dict(asked.fixed)
    for name in ("model", "gpu", "engine", "policy", "vllm_version"):
        found.pop(name, None)
    found = {n: v for n, v in found.items() if not _is_plain(n, v)}
    if asked.start.source_of_num_gpu_blocks == "override":
        del found["kv_cache_gib"]
        assert trial.run is not None, "it was replayed to its end"
        found["num_gpu_blocks_override"] = trial.run.info.config["num_gpu_blocks"]
    default = asked.default
    for name, value in knobs.items():
        if default is None or value != _of(default, name):
            found[name] = value
    return {
        name: value
        for name, value in found.items()
        if name in OPTIONS and not why_not(OPTIONS[name], value, version, policy)
    }


def _is_plain(name: str, value: Any) -> bool:
    return (name, value) in (("tensor_parallel_size", 1), ("enforce_eager", False))


def _of(config: "EngineConfig", name: str) -> Any:
    from bench_cli.tune_space import value_of

    return value_of(config, name)
