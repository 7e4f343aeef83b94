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

MOST_FACTOR = {"memory": 1.5, "compute": 2.5}
"""Times of kernels hardly differ more, unless the figures are of something else."""

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
    """The calibrated GPU, as ``load_gpu`` reads it, and its evidence."""
    config = measured.config
    before = load_gpu(config.gpu)
    after = moved(before, config_overhead(config), fitted.moves)
    table = _table_of(config.gpu, before)
    table["name"] = name
    rates, sources = after.gpu.known_rates, dict(table.get("sources", {}))
    for figure, coefficient in zip(RATES, ("memory", "compute"), strict=True):
        table[figure] = float(f"{getattr(rates, figure):.6g}")
        if coefficient in fitted.moves:
            sources[figure] = (
                f"{getattr(before.known_rates, figure):g} of {before.name}, as it was"
                " fitted"
            )
    if rates.fp8_tflop_per_s is not None:
        table["fp8_tflop_per_s"] = float(f"{rates.fp8_tflop_per_s:.6g}")
    table["sources"] = sources
    table["calibration"] = {
        "source": source_of(measured, fitted),
        "for": {
            name: value
            for name in MADE_FOR
            if (value := getattr(config, name)) is not None
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
    given = Path(reference)
    if not reference.lower().endswith(".toml"):
        given = CALIBRATIONS_FOLDER / f"{reference}.toml"
    if not is_bundled(reference) and given.is_file():
        table: Document = tomllib.loads(given.read_text(encoding="utf-8"))
        found: Any = table.get("gpu", table)
        table = dict(found[0] if isinstance(found, list) else found)
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
    quantization = measured.config.model_profile().quantization
    weights = "bfloat16" if quantization is None else quantization.weight_type
    return found | {"weight_types": [weights]}


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


def doubts(measured: Measurements, fitted: Fitted) -> list[str]:
    """Coefficients that moved further than they are ever likely to."""
    return [
        f"{name} ({COEFFICIENTS[name].says}) is {math.exp(move):.2f} times what"
        f" {measured.config.gpu} has, more than is likely: check the model, its types,"
        " the GPU, their number and the units of the figures"
        for name, most in MOST_FACTOR.items()
        if abs(move := fitted.moves.get(name, 0.0)) > math.log(most)
    ]


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
    unit = "GB/s" if name == "memory" else "TFLOP/s"
    return {
        "unit": unit,
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
    return {
        "measured_in": list(measured.sources),
        "num_observations": len(measured.observations),
        "notes": [*measured.notes, *doubts(measured, fitted)],
        "cross_validation": cross_validation(fitted),
        "coefficients": {
            row.pop("name"): row for row in coefficient_rows(measured, fitted)
        },
        "residuals": residuals,
    }


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
        return repr(float(f"{value:.6g}"))
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
