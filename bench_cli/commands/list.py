"""``blockbench list``: the runs that are kept."""

from typing import TYPE_CHECKING, Any

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.run_report import ReportFlags
from bench_cli.tables import TableStyle

if TYPE_CHECKING:
    from results.runs import RunEntry

COLUMNS = (
    "name",
    "created_at",
    "state",
    "source",
    "trace",
    "model",
    "gpu",
    "vllm_version",
    "prefix_caching",
    "num_requests",
    "finished",
    "preemptions",
    "hit_rate",
    "peak_usage",
    "ttft_p99_s",
    "output_token_per_s",
)
SHOWN = ("name", "state", "trace", "requests", "KV peak", "hits", "TTFT p99", "tokens/s")


def list_(
    folder: options.RunsFolder = None,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """List the runs in .blockbench/runs, the newest first."""
    from harness.errors import UsageError
    from results.output import RUNS_FOLDER
    from results.runs import list_runs

    report = ReportFlags(as_json=as_json, table=table)
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name one that runs were saved in")
    folder = folder or RUNS_FOLDER
    entries = list_runs(folder)
    rows = [row_of(entry) for entry in entries]
    deliver(
        {"schema_version": 1, "kind": "list", "folder": str(folder), "runs": rows},
        as_json=as_json,
        output=output,
    )
    if not report.as_json:
        print_list(rows, report, str(folder))


def row_of(entry: "RunEntry") -> dict[str, Any]:
    """What is said of a run; None for what it has not, or not yet."""
    run = entry.run or {}
    config = run.get("config", {})
    return {
        "name": entry.folder.name,
        "folder": str(entry.folder),
        "created_at": run.get("created_at"),
        "state": entry.state.value if entry.state else "damaged",
        "problem": entry.problem or None,
        "source": run.get("source"),
        "trace": run.get("trace", {}).get("name"),
        "model": config.get("model"),
        "gpu": config.get("gpu"),
        "vllm_version": config.get("vllm_version"),
        "prefix_caching": config.get("enable_prefix_caching"),
        "num_requests": run.get("trace", {}).get("num_requests"),
        "finished": _figure(run, "counts", "finished"),
        "preemptions": _figure(run, "counts", "preemptions"),
        "hit_rate": _figure(run, "prefix_cache", "hit_rate"),
        "peak_usage": _figure(run, "kv_cache", "peak_usage"),
        "ttft_p99_s": _figure(run, "latency_s", "ttft", "p99"),
        "output_token_per_s": _figure(run, "throughput", "output_token_per_s"),
    }


def _figure(run: dict[str, Any], *path: str) -> int | float | None:
    """A figure of the summary; None where there is none, as in a damaged one."""
    found: Any = run.get("summary")
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def print_list(rows: list[dict[str, Any]], report: ReportFlags, folder: str) -> None:
    """Print the runs as a table, and under it what is wrong with damaged ones."""
    from bench_cli.console import Screen
    from bench_cli.tables import render_table

    if report.table is not TableStyle.RICH:
        cells = [[row[name] for name in COLUMNS] for row in rows]
        typer.echo(render_table(COLUMNS, cells, report.table))
    elif rows:
        Screen().table(SHOWN, [_shown(row) for row in rows])
    else:
        Screen().line(f"no runs in {folder}; blockbench run TRACE makes one")
    notes = Screen(stderr=True)
    for row in rows:
        if row["problem"]:
            notes.line(f"! {row['problem']}", "yellow")


def _shown(row: dict[str, Any]) -> list[str]:
    from bench_cli.quantity import format_count, format_duration, format_share

    total = row["num_requests"]
    done = "n/a" if total is None else f"{total:,}"
    if row["finished"] is not None and row["finished"] != total:
        done = f"{row['finished']:,} of {done}"
    return [
        row["name"],
        row["state"],
        row["trace"] or "n/a",
        done,
        format_share(row["peak_usage"]),
        format_share(row["hit_rate"]),
        format_duration(row["ttft_p99_s"]),
        format_count(row["output_token_per_s"]),
    ]
