"""``blockbench show``: a stored run again, its figures computed anew from its rows."""

from dataclasses import replace
from typing import TYPE_CHECKING

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.run_report import ReportFlags, print_report
from bench_cli.tables import TableStyle

if TYPE_CHECKING:
    import pandas as pd

    from results.stored_run import StoredRun


def show(
    run: options.Run = "last",
    requests: options.Requests = False,
    steps: options.Steps = False,
    limit: options.RowLimit = None,
    slo: options.SloText = None,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Show a stored run, or what a killed one left behind."""
    from harness.errors import UsageError
    from results.runs import find_run
    from results.stored_run import load_run

    report = ReportFlags(as_json=as_json, table=table)
    if requests and steps:
        raise UsageError("--requests and --steps are two tables; give one of them")
    if limit is not None and not (requests or steps):
        raise UsageError("--limit cuts rows; add --requests or --steps")
    if slo is not None and (requests or steps):
        raise UsageError("--slo judges the whole run; leave out --requests and --steps")
    stored = load_run(find_run(run))
    if requests or steps:
        kind = "requests" if requests else "steps"
        show_rows(stored, kind, limit, report, output)
    else:
        show_summary(stored, slo, report, output)


def show_summary(
    stored: "StoredRun",
    slo: str | None,
    report: ReportFlags,
    output: options.DocumentFile,
) -> None:
    """Summarize the rows, under another SLO if one is given, and print that."""
    from bench_cli.quantity import parse_slo
    from results.stored_run import names_missing_key
    from results.summary import summarize

    info = stored.info
    if slo is not None:
        info = replace(info, slo=parse_slo(slo).to_dict())
    steps = stored.step_columns
    with names_missing_key(stored.folder):
        document = summarize(info, stored.request_columns, steps)
        deliver(document, as_json=False, output=output)
        print_report(document, info, steps, report, said=standing(stored))


def standing(stored: "StoredRun") -> str:
    """How the run stands, and where it lies."""
    from results.run_info import Ending

    stands = {
        Ending.COMPLETE: "",
        Ending.RUNNING: "under way: rows so far; ",
        Ending.KILLED: "killed: rows up to then; ",
        Ending.INTERRUPTED: "interrupted; ",
        Ending.STUCK: "broke off; ",
        Ending.DIED: "broke off; ",
    }[stored.state]
    return f"{stands}{stored.folder}, begun {stored.run['created_at']}"


def show_rows(
    stored: "StoredRun",
    kind: str,
    limit: int | None,
    report: ReportFlags,
    output: options.DocumentFile,
) -> None:
    """Print rows of requests or of steps: all, or as many as ``limit`` says."""
    from bench_cli.run_rows import json_rows, print_rows

    frame: pd.DataFrame = getattr(stored, kind)
    part = frame if limit is None else frame.head(limit)
    if report.as_json or output is not None:
        document = {
            "schema_version": 1,
            "kind": kind,
            "run": str(stored.folder),
            "num_rows": len(frame),
            "rows": json_rows(part),
        }
        deliver(document, as_json=report.as_json, output=output)
    if not report.as_json:
        print_rows(kind, part, num_rows=len(frame), table=report.table, limit=limit)
