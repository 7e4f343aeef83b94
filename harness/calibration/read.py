"""Whatever somebody measured, read as observations of one engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.calibration.observation import Observation
from harness.calibration.served_rows import (
    COLUMNS as LOAD_COLUMNS,
)
from harness.calibration.served_rows import (
    LATENCIES,
    bench_serve_row,
    read_json,
    served_of,
)
from harness.calibration.step_rows import COLUMNS as STEP_COLUMNS
from harness.calibration.step_rows import config_of, step_of, stored_steps
from harness.calibration.table import ONE_ENGINE, Table, read_table
from harness.config import EngineConfig, resolve_config
from harness.config.resolve import engine_knob, reference
from harness.errors import TraceError, UsageError
from profiles.errors import ProfileError
from profiles.gpu import load_gpu
from profiles.model import load_model

Flags = Mapping[str, Any]
"""What ``resolve_config`` takes; None, and what is missing, was not given."""

SAME_ENGINE = (
    "model",
    "gpu",
    "tensor_parallel_size",
    "policy",
    "vllm_version",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "async_scheduling",
    "enforce_eager",
)
"""What has to agree between all that one calibration is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was measured of one engine.

    Attributes:
        sources: As they were given.
        config: Of the engine; rows may have had other limits.
        observations: At least one.
        notes: What a reader should know.
    """

    sources: tuple[str, ...]
    config: EngineConfig
    observations: tuple[Observation, ...]
    notes: tuple[str, ...]

    @property
    def num_figures(self) -> int:
        """Figures that were measured, of all observations."""
        return sum(len(observation.figures) for observation in self.observations)


@dataclass(frozen=True, slots=True)
class _Read:
    config: EngineConfig
    observations: Sequence[Observation]
    notes: Sequence[str]


def read_measurements(sources: Sequence[str], flags: Flags) -> Measurements:
    """The observations of files and of stored runs.

    Args:
        sources: CSV files, results of ``vllm bench serve``, run folders or names of runs.
        flags: Of the engine; a run has its own, but for what was given.

    Raises:
        TraceError: A file, or a row of it, cannot be used.
        RunFolderError: Something is neither a file nor a run.
        UsageError: The engine is not told, or is another one from source to source.
        ConfigError, ProfileError: There is no such engine.
    """
    found = [_read(source, flags) for source in sources]
    for source, other in zip(sources[1:], found[1:], strict=True):
        _refuse_other_engine(sources[0], found[0].config, source, other.config)
    notes = [note for one in found for note in (*one.config.notes, *one.notes)]
    return Measurements(
        sources=tuple(sources),
        config=found[0].config,
        observations=tuple(each for one in found for each in one.observations),
        notes=tuple(dict.fromkeys(notes)),
    )


def _read(source: str, flags: Flags) -> _Read:
    path = Path(source)
    if not path.is_file():
        return _read_run(source, flags)
    text = _text(path)
    if text.lstrip().startswith("{"):
        return _read_result(path, text, flags)
    table = read_table(path, text)
    if table.has(STEP_COLUMNS["step_ms"]):
        config = _config(flags, source)
        rows = table.by_meaning(STEP_COLUMNS)
        return _Read(
            config, [step_of(row, config) for row in rows], _ignored(table, STEP_COLUMNS)
        )
    if not any(map(table.has, LATENCIES.values())):
        raise TraceError(
            path,
            f"no column of a time among {', '.join(table.header)}",
            "name one ttft_ms or tpot_ms (means of a load), or step_ms (of a step)",
            line=1,
        )
    engine = _engine(flags, source)
    config, rows = resolve_config(**engine), table.by_meaning(LOAD_COLUMNS)
    return _Read(
        config,
        [served_of(row, engine, row.name) for row in rows],
        _ignored(table, LOAD_COLUMNS),
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TraceError(
            path, f"cannot be read: {error.strerror}", "make it readable"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(path, "no UTF-8 text", "save it as CSV in UTF-8") from error


def _read_result(path: Path, text: str, flags: Flags) -> _Read:
    result = read_json(path, text)
    row = bench_serve_row(path, result)
    given, measured = flags.get("model"), result.get("model_id")
    engine = _engine({**flags, "model": given or measured}, str(path))
    config = resolve_config(**engine)
    notes = []
    if given and measured and _model_name(str(measured)) != _model_name(given):
        notes.append(
            f"{path} says that {measured} was measured; --model has its figures read as"
            f" those of {given}"
        )
    return _Read(config, [served_of(row, engine, str(path))], notes)


def _model_name(given: str) -> str:
    """The name of its profile; what somebody's server called it where there is none."""
    try:
        return load_model(given).name
    except ProfileError:
        return given


def _read_run(source: str, flags: Flags) -> _Read:
    from results.errors import RunFolderError
    from results.runs import find_run
    from results.stored_run import load_run

    path = Path(source)
    try:
        folder = find_run(source)
    except RunFolderError as error:
        if path.exists() or not path.suffix[1:].isalpha():
            raise
        raise TraceError(
            path,
            "there is no such file",
            "check its name, or give a stored run: blockbench list shows them",
        ) from error
    stored = load_run(folder)
    config = config_of(stored)
    if flags.get("gpu") is not None:  # where to begin, not what ran
        config = replace(config, gpu=reference(flags["gpu"], load_gpu))
    _refuse_without_rates(config.gpu)
    _refuse_other_flags(source, config, flags)
    steps, notes = stored_steps(stored, config)
    if stored.info.source == "simulated":
        notes.append(
            f"{source} was simulated: its step times are a model's, nobody measured them"
        )
    return _Read(config, steps, notes)


def _engine(flags: Flags, source: str) -> dict[str, Any]:
    """The flags as ``resolve_config`` takes them.

    Raises:
        UsageError: The model or the GPU is missing, which no file of figures says, or
            the GPU is none to begin from.
    """
    for name, example in (("model", "meta-llama/Llama-3.1-8B"), ("gpu", "H100-80GB")):
        if not flags.get(name):
            raise UsageError(
                f"{source} does not say of which {name.replace('gpu', 'GPU')} its figures"
                f" are; add --{name}, as --{name} {example}"
            )
    _refuse_without_rates(flags["gpu"])
    return {name: value for name, value in flags.items() if value is not None}


def _refuse_without_rates(gpu: str) -> None:
    profile = load_gpu(gpu)
    if profile.rates is None:
        raise UsageError(
            f"nobody knows the rates of {profile.name}, from which a calibration could"
            " begin; --gpu takes a GPU that has them, such as H100-80GB, or a .toml file"
            " with memory_bandwidth_gb_per_s and bf16_tflop_per_s (docs/capacity.md)"
        )


def _config(flags: Flags, source: str) -> EngineConfig:
    return resolve_config(**_engine(flags, source))


def _ignored(table: Table, names: Mapping[str, Sequence[str]]) -> list[str]:
    ignored = table.ignored(names)
    if not ignored:
        return []
    note = f"{table.path}: columns that are not read: {', '.join(ignored)}"
    if set(ignored) & set(ONE_ENGINE):
        note += "; flags say what the engine was"
    return [note]


def _refuse_other_engine(
    source: str, config: EngineConfig, other_source: str, other: EngineConfig
) -> None:
    for name in SAME_ENGINE:
        mine, others = engine_knob(config, name), engine_knob(other, name)
        if mine != others:
            raise UsageError(
                f"{source} is of {name} {mine}, {other_source} of {others}; one"
                " calibration is of one model, GPU and engine: calibrate twice"
            )


def _refuse_other_flags(source: str, config: EngineConfig, flags: Flags) -> None:
    """Refuse flags that contradict what a run was made with."""
    for name in SAME_ENGINE:
        given, ran = flags.get(name), getattr(config, name)
        if name == "model" and given is not None:
            given, ran = load_model(given).name, load_model(ran).name
        if name == "gpu" or given is None or (name == "enforce_eager" and not given):
            continue
        if given != ran:
            raise UsageError(
                f"{source} ran with {name} {ran}, and --{name.replace('_', '-')} says"
                f" {given}; leave the flag out"
            )
