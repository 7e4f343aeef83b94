"""``blockbench verify``: compare our scheduler's decisions with recorded ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli.exit_code import ExitCode

if TYPE_CHECKING:
    from harness.verify import VerifyResult


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
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout.")
    ] = False,
) -> None:
    """Replay a scenario and compare every decision with the recorded rows."""
    from harness.verify import verify_scenario  # brings numpy, not needed for help

    result = verify_scenario(scenario, rows)
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2, allow_nan=False))
    else:
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
        f"row of step {divergence.get('step')} differs after {result.steps:,} identical"
        f" steps     ({result.against})"
    )
    screen.table(("key", "ours", "recorded"), differing_keys(divergence))


def differing_keys(divergence: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rows ``(key, ours, recorded)`` of the keys whose values differ.

    Args:
        divergence: ``ours`` and ``recorded`` rows; None where that side has none.
    """
    ours, recorded = divergence.get("ours"), divergence.get("recorded")
    if ours is None or recorded is None:
        return [("(row)", _shown(ours), _shown(recorded))]
    keys = [key for key in recorded if ours.get(key, _ABSENT) != recorded[key]]
    return [(key, _shown(ours.get(key, _ABSENT)), _shown(recorded[key])) for key in keys]


_ABSENT = object()


def _shown(value: Any) -> str:
    if value is None or value is _ABSENT:
        return "(none)"
    return json.dumps(value)
