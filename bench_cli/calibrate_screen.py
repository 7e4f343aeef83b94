"""The document and the screen of ``blockbench calibrate``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_number_of

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from harness.calibration.fit import Fitted
    from harness.calibration.read import Measurements

Document = dict[str, Any]

MOST_SHOWN = 24
"""Figures on the screen; of more, those that are met worst."""

KINDS = {"uncalibrated": "before", "fitted": "fitted", "left_out": "left out"}


def calibration_document(
    name: str, path: Path, how: str, measured: "Measurements", fitted: "Fitted"
) -> Document:
    """What ``--json`` prints.

    Args:
        name: Of the calibration.
        path: Of its file.
        how: What ``--gpu`` takes to find it.
        measured: What it is from.
        fitted: What it found.
    """
    from harness.calibration.calibration_file import (
        coefficient_rows,
        cross_validation,
        doubts,
    )

    config = measured.config
    return {
        "schema_version": 1,
        "kind": "calibration",
        "name": name,
        "file": str(path),
        "use": f"--gpu {how}",
        "from": list(measured.sources),
        "num_observations": len(measured.observations),
        "num_figures": measured.num_figures,
        "config": {
            "model": config.model,
            "gpu": config.gpu,
            "policy": config.policy,
            "vllm_version": config.vllm_version,
            "tensor_parallel_size": config.tensor_parallel_size,
            "async_scheduling": config.async_scheduling,
        },
        "coefficients": coefficient_rows(measured, fitted),
        "identified": list(fitted.moves),
        "residuals": [asdict(residual) for residual in fitted.residuals],
        "cross_validation": cross_validation(fitted),
        "notes": [*measured.notes, *doubts(measured, fitted)],
    }


def print_calibration(document: Document) -> None:
    """Print the screen."""
    from bench_cli.console import Screen

    screen = Screen()
    screen.spread(_title(document), "calibrated")
    for note in document["notes"]:
        screen.aside(note)
    screen.line()
    headers = ("coefficient", "before", "after", "+-", "what it is")
    screen.table(headers, [_coefficient(row) for row in document["coefficients"]])
    for row in document["coefficients"]:
        if not row["is_identified"]:
            screen.aside(
                f"{row['name']} stays: {100 * row['spread_left']:.0f} % of its likely"
                f" spread is left; told by {row['told_by']}"
            )
    screen.line()
    _print_residuals(screen, document["residuals"])
    screen.facts(
        [
            (figure.upper(), _errors(kinds))
            for figure, kinds in document["cross_validation"].items()
        ]
    )
    screen.line()
    screen.line(f"  saved {document['file']}; blockbench run TRACE {_usage(document)}")


def _usage(document: Document) -> str:
    config = document["config"]
    usage = f"--model {config['model']} {document['use']}"
    if config["tensor_parallel_size"] > 1:
        usage += f" -tp {config['tensor_parallel_size']}"
    return f"{usage} --vllm-version {config['vllm_version']}"


def _title(document: Document) -> str:
    config = document["config"]
    num_gpus = config["tensor_parallel_size"]
    machine = config["gpu"] if num_gpus == 1 else f"{num_gpus} x {config['gpu']}"
    return (
        f"{document['name']}: {config['model']} on {machine}, as vLLM"
        f" {config['vllm_version']} ({config['policy']}) ·"
        f" {format_number_of(document['num_figures'], 'figure')}"
    )


def _coefficient(row: Document) -> list[str]:
    before, after = _quantity(row, row["before"]), _quantity(row, row["after"])
    if not row["is_identified"]:
        return [row["name"], before, "not told", "", row["says"]]
    return [row["name"], before, after, _quantity(row, row["spread"]), row["says"]]


def _quantity(row: Document, value: float) -> str:
    if row["unit"] != "ns":
        return (
            f"{value:,.4g} {row['unit']}"
            if value < 1000
            else (f"{value:,.0f} {row['unit']}")
        )
    if row["name"] == "request_ns" or value >= 1_000_000:
        return f"{value / 1e6:.3g} ms"
    return f"{value / 1e3:.3g} µs"


def _print_residuals(screen: "Screen", residuals: list[Document]) -> None:
    shown = residuals
    if len(residuals) > MOST_SHOWN:
        worst = sorted(residuals, key=lambda row: -abs(row["fitted"]))[:MOST_SHOWN]
        shown = worst
        screen.aside(
            f"{MOST_SHOWN} of {len(residuals):,} figures, those that are met worst;"
            " --json has all"
        )
    headers = ("figure", "measured", *KINDS.values(), "where")
    screen.table(headers, [_residual(row) for row in shown])


def _residual(row: Document) -> list[str]:
    return [
        row["figure"].upper() if row["figure"] != "step" else "step",
        f"{1e3 * row['measured_s']:,.4g} ms",
        *(_error(row[kind]) for kind in KINDS),
        row["name"],
    ]


def _error(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _errors(kinds: Document) -> str:
    """Median errors of one figure, in words."""
    parts = [
        f"{100 * kinds[kind]:.1f} % {words}"
        for kind, words in KINDS.items()
        if kinds[kind] is not None
    ]
    return f"median error {', '.join(parts)}"
