"""``blockbench verify``: compare our scheduler's decisions with vLLM's own."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.engine_flags import EngineFlags
from bench_cli.exit_code import ExitCode
from bench_cli.flags import Without, takes_flags
from bench_cli.workload import SourceFlags, WorkloadFlags, open_workload

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from harness.verify.golden import VerifyResult


class Reference(StrEnum):
    """Whose decisions a trace is compared with."""

    VLLM = "vllm"


@takes_flags
def verify(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(
            parser=options.trace_given, metavar="TRACE", help="Trace for --against."
        ),
    ] = None,
    against: Annotated[
        Reference | None,
        typer.Option("--against", help="Compare with the installed vLLM's scheduler."),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Scenario (JSON, maybe .gz)."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Recorded rows (JSON lines, maybe .gz)."
        ),
    ] = None,
    *,
    flags: Annotated[
        EngineFlags,
        Without("vllm_version", "policy", "engine", "swap_space", "preemption_mode"),
    ],
    source: SourceFlags,
    timing: WorkloadFlags,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
) -> None:
    """Compare our scheduler's decisions with vLLM's own.

    Those are the installed vLLM's on TRACE, or rows that were recorded.
    """
    refuse_half_a_comparison(trace, against, scenario, rows)
    timing.refuse_contradictions()
    if scenario is not None and rows is not None:
        refuse_flags_beside_a_recording(context)
        from harness.verify.golden import verify_scenario  # heavy; waits until needed

        result = verify_scenario(scenario, rows)
    else:
        assert trace is not None, "refused above"
        result = compare_with_vllm(trace, flags, source, timing)
    document = {"schema_version": 1, "kind": "verify", **asdict(result)}
    deliver(document, as_json=as_json, output=output)
    if not as_json:
        print_result(result)
    if not result.identical:
        raise typer.Exit(ExitCode.DIVERGED)


def refuse_half_a_comparison(
    trace: Path | None,
    against: Reference | None,
    scenario: Path | None,
    rows: Path | None,
) -> None:
    """Refuse what names one side only, or two comparisons.

    Raises:
        UsageError: Says what is missing.
    """
    from harness.errors import UsageError

    if (trace is None) != (against is None):
        given, missing = ("--against vllm", "TRACE")
        if against is None:
            given, missing = missing, given
        raise UsageError(f"{given} is compared with nothing; add {missing}")
    if (scenario is None) != (rows is None):
        given, missing = ("--scenario", "--rows")
        if scenario is None:
            given, missing = missing, given
        raise UsageError(f"{given} is one half of a recording; add {missing}")
    if trace is None and scenario is None:
        raise UsageError(
            "nothing to compare; give TRACE --against vllm, or --scenario and --rows"
        )
    if trace is not None and scenario is not None:
        raise UsageError(
            "TRACE --against vllm and --scenario are two comparisons; give one of them"
        )


def refuse_flags_beside_a_recording(context: typer.Context) -> None:
    """Refuse knobs and choices of requests: a scenario has its own.

    Raises:
        UsageError: Names them.
    """
    from harness.errors import UsageError

    known = {"scenario", "rows", "as_json", "output"}
    given = [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name not in known and _is_given(context, str(parameter.name))
    ]
    if given:
        raise UsageError(
            f"a scenario has knobs and requests of its own: leave out {', '.join(given)}"
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def compare_with_vllm(
    trace: Path, flags: EngineFlags, source: SourceFlags, timing: WorkloadFlags
) -> "VerifyResult":
    """Replay a trace through both schedulers, with a bar for who watches."""
    from bench_cli.progress import progress_bar
    from harness.config import resolve_config
    from harness.verify.against_vllm import verify_against_vllm

    config = resolve_config(**flags.knobs() | {"policy": "v1"})
    workload = open_workload(trace, source, timing)
    with progress_bar(f"comparing {workload.name} with vLLM") as on_progress:
        return verify_against_vllm(
            workload,
            config,
            max_concurrency=timing.max_concurrency,
            on_progress=on_progress,
        )


def print_result(result: "VerifyResult") -> None:
    """Print one line, or the first differing row, ours beside theirs."""
    from bench_cli.console import Screen

    screen = Screen()
    if result.identical:
        screen.line(
            f"identical over {result.steps:,} steps     ({result.against};"
            f" preemptions: {result.preemptions:,})"
        )
        return
    divergence = result.first_divergence or {}
    if "stepping" in divergence:
        screen.line(
            f"step {divergence['step']} differs ({divergence['stepping']}),"
            f" after {result.steps:,} rows compared with {result.against}"
        )
    else:
        screen.line(
            f"step {divergence['step']} differs, at {divergence['time_s']:.6f} s,"
            f" after {result.steps:,} that are {result.against}'s"
        )
    other = "recorded" if "stepping" in divergence else "theirs"
    screen.table(
        ("key", "ours", other),
        [
            (d["key"], json.dumps(d["ours"]), json.dumps(d[other]))
            for d in divergence["differences"]
        ],
    )
    if "stepping" not in divergence:
        print_surroundings(screen, divergence)


def print_surroundings(screen: "Screen", divergence: Mapping[str, Any]) -> None:
    """Print what both sides held when they parted, and what led to it."""
    ours, theirs = divergence["ours"], divergence["theirs"]
    screen.table(
        ("queue", "ours", "theirs"),
        [
            (name, json.dumps(ours.get(name)), json.dumps(theirs.get(name)))
            for name in ("running", "waiting", "loading")
        ],
    )
    names = list(dict.fromkeys([*ours["blocks"], *theirs["blocks"]]))
    screen.table(
        ("blocks of", "ours", "theirs"),
        [
            (n, json.dumps(ours["blocks"].get(n)), json.dumps(theirs["blocks"].get(n)))
            for n in names
        ],
    )
    for row in divergence["rows_before"]:
        screen.line(f"before: {json.dumps(row)}")
