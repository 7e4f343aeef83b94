"""``blockbench import``: a result of another client as a run like any other."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_cli import options
from bench_cli.run_end import save_and_print
from bench_cli.run_report import ReportFlags
from bench_cli.run_start import run_name
from bench_cli.tables import TableStyle

if TYPE_CHECKING:
    from harness.vllm_engine.imports.reported import Reported
    from harness.vllm_engine.measured_run import MeasuredRun
    from results.run_info import RunInfo

FORMATS = ("vllm-bench", "guidellm", "aiperf")


def _file_given(text: str) -> Path:
    """The path of a result; an empty text would mean the folder one is in."""
    if not text:
        raise typer.BadParameter("it is empty; name a result file")
    return Path(text)


ResultFile = Annotated[
    Path,
    typer.Argument(
        parser=_file_given,
        metavar="FILE",
        help="Result of vllm bench serve, GuideLLM or AIPerf.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar=f"[{'|'.join(FORMATS)}]",
        help="Which client wrote it; found by what is in it by default.",
    ),
]
Part = Annotated[
    int | None,
    typer.Option(
        "--part", min=1, help="Which benchmark of a file that holds several, from 1."
    ),
]

Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="Which configuration it was: runs of one label are repeats to compare.",
    ),
]


def import_(
    file: ResultFile,
    format: Format = None,
    part: Part = None,
    label: Label = None,
    slo: options.SloText = None,
    as_json: options.AsJson = False,
    output: options.OutputFolder = None,
    force: options.Force = False,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Make a run of what another client measured, for show, list and compare."""
    from bench_cli.quantity import parse_slo
    from harness.errors import UsageError
    from harness.vllm_engine.imports.build import measured_run, run_info
    from harness.vllm_engine.imports.read import ImportFormat, read_result
    from results.store import RunStore

    report = ReportFlags(as_json=as_json, table=table)
    limits = None if slo is None else parse_slo(slo).to_dict()
    if force and output is None:
        raise UsageError("--force replaces the folder that -o names; add -o FOLDER")
    if format is not None and format not in FORMATS:
        raise UsageError(f"--format {format} is none of {', '.join(FORMATS)}")
    wanted = None if format is None else ImportFormat(format)
    result = read_result(file, wanted, part)
    run = measured_run(result)
    info = run_info(result, file.name, run, label=label or name_of(file, part))
    info, compared = judged(replace(info, slo=limits), run)
    with RunStore(run_name(file.name), info, output=output, force=force) as store:
        save_and_print(store, info, run, report)
    if not report.as_json and report.table is TableStyle.RICH:
        print_reported(compared)


def name_of(file: Path, part: int | None) -> str:
    """The file, and its part where it has several."""
    return file.name if part is None else f"{file.name} {part}"


def judged(info: "RunInfo", run: "MeasuredRun") -> "tuple[RunInfo, list[Reported]]":
    """The file's own statistics beside those of its records; a note where they differ."""
    from harness.vllm_engine.imports.reported import beside, note_of
    from results.columns import Columns
    from results.record import RequestRecord, StepRecord

    known = run.measurement
    requests = Columns.of(RequestRecord, run.requests, known.unmeasured_in("requests"))
    steps = Columns.of(StepRecord, run.steps, known.unmeasured_in("steps"))
    compared = beside(known.facts["reported_s"], requests, steps)
    if note := note_of(compared):
        known = replace(known, notes=(*known.notes, note))
    return replace(info, measurement=known), compared


def print_reported(compared: "list[Reported]") -> None:
    """Print a table of the file's own statistics beside those of its records."""
    from bench_cli.console import Screen

    if not compared:
        return
    rows = [
        (each.name, _ms(each.file_s), _ms(each.rows_s), "" if each.agrees else "differs")
        for each in compared
    ]
    Screen().table(("statistic", "in the file", "of its records", ""), rows)


def _ms(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{1000 * seconds:,.3f} ms"
