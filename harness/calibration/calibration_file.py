"""What a calibration found, as the file of a GPU that commands take by name."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.calibration.coefficient import COEFFICIENTS, moved
from harness.calibration.fit import Fitted
from harness.calibration.read import Measurements
from harness.config.resolve import engine_knob
from harness.errors import UsageError
from harness.timing import config_overhead
from harness.traces.trace_file import check_target, write_whole
from profiles.gpu import (
    CALIBRATIONS_FOLDER,
    GpuProfile,
    calibration_names,
    is_bundled,
    load_gpu,
)
from profiles.gpu_entry import MADE_FOR

Document = dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

MOST_RESIDUALS = 100
"""Residuals that the file keeps: the first of them, in the order of the measurements."""

RATES = ("memory_bandwidth_gb_per_s", "bf16_tflop_per_s")

UNITS = {"memory": "GB/s", "compute": "TFLOP/s"}
"""Of these rates, by coefficient."""

MOST_MOVED = {"memory": 2.5, "compute": 5.0}
"""Factors of a rate, either way, that only a wrong unit makes."""

MOST_RATE = {"memory": 1.15, "compute": 1.2}
"""Shares of the datasheet above which a rate says more than the chip can do.

Kernels reach about 0.85 of their rate, which is what is fitted (docs/step_time.md).
"""

LEAST_RATE = {"memory": 1 / 1.5, "compute": 1 / 2.5}
"""Shares of the datasheet below which figures are likely of something else."""

LEAST_WORSE = 0.001
"""Share by which a median error has to be greater to be worth a note."""

KINDS = ("uncalibrated", "fitted", "left_out")


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a calibration.

    Raises:
        UsageError: It is no plain file name, or a GPU's.
    """
    if not NAME.fullmatch(name) or name.lower().endswith(".toml"):
        raise UsageError(
            f"a calibration cannot be called {name!r}; take letters, digits, '.', '_' and"
            " '-', such as --name my-h100"
        )
    if is_bundled(name):
        raise UsageError(
            f"{name} is the GPU as it is published; choose another --name, such as"
            f" my-{name}"
        )


def calibration_path(name: str, output: Path | None, *, force: bool) -> Path:
    """Where a calibration is to be written.

    Raises:
        UsageError: It is there already, or is no file that ``--gpu`` would take.
    """
    path = CALIBRATIONS_FOLDER / f"{name}.toml" if output is None else output
    if path.suffix.lower() != ".toml":
        raise UsageError(f"{path} does not end in .toml, and --gpu would not read it")
    check_target(path, force=force)
    if output is None and not force:
        for other in calibration_names():
            if other.lower() == name.lower():
                raise UsageError(
                    f"{CALIBRATIONS_FOLDER / other}.toml exists; choose another --name,"
                    " or replace it: --force"
                )
    return path


def write_calibration(path: Path, tables: Mapping[str, Any]) -> None:
    """Write the whole file or leave what was there.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make {path.parent}: {error.strerror}; choose another place with -o"
        ) from error
    text = "# Written by blockbench calibrate: a GPU for --gpu, with what it rests on.\n"
    write_whole(path, (text + toml_text(tables)).encode())


def gpu_table(name: str, measured: Measurements, fitted: Fitted) -> Document:
    """The calibrated GPU, as ``load_gpu`` reads it, and its evidence.

    Raises:
        UsageError: A rate moved as far as only a wrong unit moves it.
    """
    check_moves(measured, fitted)
    config = measured.config
    before = load_gpu(config.gpu)
    after = moved(before, config_overhead(config), fitted.moves)
    table = _table_of(config.gpu, before)
    table["name"] = name
    rates, sources = after.gpu.known_rates, dict(table.get("sources", {}))
    for figure, coefficient in zip(RATES, ("memory", "compute"), strict=True):
        table[figure] = getattr(rates, figure)
        if coefficient in fitted.moves:
            sources[figure] = (
                f"{getattr(before.known_rates, figure):g} of {before.name}, as it was"
                " fitted"
            )
    if rates.fp8_tflop_per_s is not None:
        table["fp8_tflop_per_s"] = rates.fp8_tflop_per_s
    table["sources"] = sources
    table["calibration"] = {
        "source": source_of(measured, fitted),
        "for": {
            name: value
            for name in MADE_FOR
            if (value := engine_knob(config, name)) is not None
        },
        "overhead": _overhead(before, after.overhead, fitted),
    }
    known_error = _known_error(measured, fitted)
    if known_error is not None:
        table["known_error"] = known_error
    table["evidence"] = _evidence(measured, fitted)
    return table


def _table_of(reference: str, gpu: GpuProfile) -> Document:
    """The keys of the GPU that a calibration began from, its kernels included."""
    table = _own_table(reference)
    if table is not None:
        gone = ("calibration", "evidence", "known_error")
        return {key: value for key, value in table.items() if key not in gone}
    rates = gpu.known_rates
    table = {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "memory_gib": gpu.memory_gib,
        **{key: value for key, value in _figures(rates).items() if value is not None},
        "kernels_of": gpu.name,
        "is_unified": gpu.is_unified,
    }
    if gpu.compute_capability is not None:
        table["compute_capability"] = list(gpu.compute_capability)
    return table


def _own_table(reference: str) -> Document | None:
    """The table of a GPU that has a file of its own; None of a bundled one."""
    given = Path(reference)
    if not reference.lower().endswith(".toml"):
        given = CALIBRATIONS_FOLDER / f"{reference}.toml"
    if is_bundled(reference) or not given.is_file():
        return None
    table: Document = tomllib.loads(given.read_text(encoding="utf-8"))
    found: Any = table.get("gpu", table)
    return dict(found[0] if isinstance(found, list) else found)


def _datasheet(measured: Measurements) -> dict[str, float]:
    """The rates that no calibration had moved, by figure."""
    gpu = measured.config.gpu
    rates = load_gpu(gpu).known_rates
    found = {figure: float(getattr(rates, figure)) for figure in RATES}
    evidence = (_own_table(gpu) or {}).get("evidence")
    given = evidence.get("datasheet") if isinstance(evidence, dict) else None
    for figure, value in (given if isinstance(given, dict) else {}).items():
        if figure in found and isinstance(value, float) and value > 0:
            found[figure] = value
    return found


def _figures(rates: Any) -> Document:
    return {
        name: getattr(rates, name)
        for name in (*RATES, "fp8_tflop_per_s", "pcie_gb_per_s", "nvlink_gb_per_s")
    }


def _overhead(before: GpuProfile, after: Any, fitted: Fitted) -> dict[str, int]:
    """Figures of the engine that were fitted, now or in the calibration before."""
    earlier = {} if before.calibration is None else before.calibration.overhead
    told = {name for name in fitted.moves if COEFFICIENTS[name].is_overhead}
    return {name: getattr(after, name) for name in sorted({*earlier, *told})}


def _known_error(measured: Measurements, fitted: Fitted) -> Document | None:
    """Errors of observations that were left out, if TPOT was among them."""
    tpot = fitted.median_error("tpot", "left_out")
    if tpot is None:
        return None
    rows = {each.name for each in fitted.residuals if each.figure == "tpot"}
    found: Document = {
        "fraction": round(tpot, 4),
        "num_rows": len(rows),
        "against": f"the rows it was calibrated with, each left out:"
        f" {', '.join(measured.sources)}",
    }
    ttft = fitted.median_error("ttft", "left_out")
    if ttft is not None:
        found["ttft_fraction"] = round(ttft, 4)
    return found | {"types": [measured.config.model_profile().types]}


def source_of(measured: Measurements, fitted: Fitted) -> str:
    """What a calibration rests on, in one sentence."""
    config = measured.config
    errors = []
    for figure, kinds in cross_validation(fitted).items():
        parts = [
            f"{100 * kinds[kind]:.1f} % {words}"
            for kind, words in (
                ("uncalibrated", "before"),
                ("fitted", "fitted"),
                ("left_out", "left out"),
            )
            if kinds[kind] is not None
        ]
        errors.append(f"{figure.upper()} {', '.join(parts)}")
    gpus = (
        "one GPU"
        if config.tensor_parallel_size == 1
        else (f"{config.tensor_parallel_size} GPUs")
    )
    return (
        f"{measured.num_figures:,} figures of {config.model} on {gpus}, vLLM"
        f" {config.vllm_version}; median errors: {'; '.join(errors)}"
    )


def check_moves(measured: Measurements, fitted: Fitted) -> None:
    """Refuse figures of another unit.

    Raises:
        UsageError: A rate moved as far as only these move it.
    """
    for name, most in MOST_MOVED.items():
        factor = math.exp(-fitted.moves.get(name, 0.0))
        if not 1 / most <= factor <= most:
            raise UsageError(
                f"the figures make the rate of {name} {factor:.2g} times that of"
                f" {measured.config.gpu}, and nothing was written: are the figures"
                " milliseconds? check them, the model, the GPU and their number"
            )


def doubts(measured: Measurements, fitted: Fitted) -> list[str]:
    """Rates that are hardly the chip's, and figures that are met worse than before."""
    return [*_unlikely_rates(measured, fitted), *_worse(fitted)]


def _unlikely_rates(measured: Measurements, fitted: Fitted) -> list[str]:
    """Rates as the table of coefficients has them, beside those of the datasheet."""
    gpu, config = load_gpu(measured.config.gpu), measured.config
    rates = moved(gpu, config_overhead(config), fitted.moves).gpu.known_rates
    datasheet, found = _datasheet(measured), []
    for figure, name in zip(RATES, MOST_RATE, strict=True):
        after, given = getattr(rates, figure), datasheet[figure]
        if name not in fitted.moves:
            continue
        if after > MOST_RATE[name] * given:
            what = "more than the chip can do"
        elif after < LEAST_RATE[name] * given:
            what = "less than is likely"
        else:
            continue
        found.append(
            f"{name} comes out at {after:,.4g} {UNITS[name]}, {after / given:.2f} times"
            f" the {given:,.4g} of the datasheet and {what}: check the model, its types,"
            " the GPU, their number and the units of the figures"
        )
    return found


def _worse(fitted: Fitted) -> list[str]:
    """Figures that the profile met better as it was."""
    found = []
    for figure, kinds in cross_validation(fitted).items():
        label = figure if figure == "step" else figure.upper()
        before = kinds["uncalibrated"]
        for kind, words in (
            ("fitted", "the rows are met worse after the fit"),
            ("left_out", "rows left out are met worse"),
        ):
            error = kinds[kind]
            if error is None or before is None or error <= before + LEAST_WORSE:
                continue
            found.append(
                f"{label}: {words} than by the profile as it was ({100 * error:.1f} %"
                f" against {100 * before:.1f} %): the figures contradict each other or"
                " are too few"
            )
    return found


def cross_validation(fitted: Fitted) -> dict[str, dict[str, float | Any]]:
    """Median absolute errors by figure: before, after, and of what was left out."""
    figures = dict.fromkeys(residual.figure for residual in fitted.residuals)
    return {
        figure: {kind: fitted.median_error(figure, kind) for kind in KINDS}
        for figure in figures
    }


def coefficient_rows(measured: Measurements, fitted: Fitted) -> list[Document]:
    """Each coefficient before and after; its value where it is told, else why it is not.

    ``factor`` multiplies the time; of an overhead that was 0 there is none.
    """
    config = measured.config
    gpu = load_gpu(config.gpu)
    before = moved(gpu, config_overhead(config), {})
    after = moved(gpu, config_overhead(config), fitted.moves)
    rows = []
    for name, coefficient in COEFFICIENTS.items():
        if name not in fitted.moves and name not in fitted.untold:
            continue
        row = {
            "name": name,
            "says": coefficient.says,
            "is_identified": name in fitted.moves,
        }
        row |= _values(name, before, after)
        spread = fitted.spreads.get(name)
        row["spread"] = None if spread is None else _spread(name, row, spread)
        row["spread_left"] = fitted.untold.get(name)
        row["told_by"] = coefficient.told_by
        rows.append(row)
    return rows


def _values(name: str, before: Any, after: Any) -> Document:
    """A rate, or an overhead's nanoseconds."""
    if COEFFICIENTS[name].is_overhead:
        return {
            "unit": "ns",
            "before": getattr(before.overhead, name),
            "after": getattr(after.overhead, name),
        }
    figure = RATES[0] if name == "memory" else RATES[1]
    return {
        "unit": UNITS[name],
        "before": getattr(before.gpu.known_rates, figure),
        "after": getattr(after.gpu.known_rates, figure),
    }


def _spread(name: str, row: Document, spread: float) -> float:
    """The standard deviation in the figure's own unit, to first order."""
    coefficient = COEFFICIENTS[name]
    if coefficient.is_overhead and row["before"] == 0:
        return coefficient.unit_ns * spread
    return float(row["after"] * spread)


def _evidence(measured: Measurements, fitted: Fitted) -> Document:
    """For people: what was found, and how far it is from what was measured."""
    residuals = [asdict(residual) for residual in fitted.residuals[:MOST_RESIDUALS]]
    evidence: Document = _rounded(
        {
            "measured_in": list(measured.sources),
            "num_observations": len(measured.observations),
            "notes": [*measured.notes, *doubts(measured, fitted)],
            "cross_validation": cross_validation(fitted),
            "coefficients": {
                row.pop("name"): row for row in coefficient_rows(measured, fitted)
            },
            "residuals": residuals,
        }
    )
    return evidence | {"datasheet": _datasheet(measured)}


def _rounded(value: Any) -> Any:
    """The same with six digits a number, which people can read."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value


# -- TOML ------------------------------------------------------------------------------


def toml_text(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as TOML: its values, then its tables; None is left out."""
    lines, below = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            path = f"{prefix}{_key(key)}"
            below.append(f"\n[{path}]\n{toml_text(value, path + '.')}")
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}\n")
    return "".join((*lines, *below))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        if any(isinstance(item, Mapping) for item in value):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if isinstance(value, str):  # JSON escapes what TOML does, and DEL besides
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return json.dumps(value)
