"""``blockbench verify``: compare our scheduler's decisions with recorded ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.exit_code import ExitCode

if TYPE_CHECKING:
    from harness.verify.golden import VerifyResult


def verify(
    scenario: Annotated[
        Path,
        typer.Option(exists=True, dir_okay=False, help="Scenario (JSON, maybe .gz)."),
    ],
    rows: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help="Recorded rows (JSON lines, maybe .gz)."
        ),
    ],
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
) -> None:
    """Replay a scenario and compare it with recorded rows."""
    from harness.verify.golden import verify_scenario  # heavy; waits until needed

    result = verify_scenario(scenario, rows)
    document = {"schema_version": 1, "kind": "verify", **asdict(result)}
    deliver(document, as_json=as_json, output=output)
    if not as_json:
        print_result(result)
    if not result.identical:
        raise typer.Exit(ExitCode.DIVERGED)


def print_result(result: "VerifyResult") -> None:
    """Print one line, or the first differing row, ours beside theirs."""
    from bench_cli.console import Screen

    screen = Screen()
    if result.identical:
        screen.line(f"identical over {result.steps:,} steps     ({result.against})")
        return
    divergence = result.first_divergence or {}
    screen.line(
        f"step {divergence['step']} differs ({divergence['stepping']}),"
        f" after {result.steps:,} rows compared with {result.against}"
    )
    screen.table(
        ("key", "ours", "recorded"),
        [
            (d["key"], json.dumps(d["ours"]), json.dumps(d["recorded"]))
            for d in divergence["differences"]
        ],
    )
