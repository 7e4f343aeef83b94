"""How a run is printed, whether it has just ended or was stored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from bench_cli.document import deliver
from bench_cli.tables import TableStyle

if TYPE_CHECKING:
    from results.columns import Columns
    from results.run_info import RunInfo

SPARKLINE_POINTS = 16
TABLE_SECTIONS = (
    "source",
    "complete",
    "steady",
    "trace",
    "counts",
    "prefix_cache",
    "latency_s",
    "throughput",
    "goodput",
    "kv_cache",
    "waste",
    "simulated_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFlags:
    """How something is printed: one JSON document, one table, or the screen."""

    as_json: bool = False
    table: TableStyle = TableStyle.RICH

    def __post_init__(self) -> None:
        from harness.errors import UsageError

        if self.as_json and self.table is not TableStyle.RICH:
            raise UsageError("--json and --table both claim stdout; give one of them")


def print_report(
    document: dict[str, Any],
    info: "RunInfo",
    steps: "Columns",
    report: ReportFlags,
    *,
    said: str = "",
) -> None:
    """Print the document, a table of its figures, or the screen, on stdout.

    Args:
        document: The summary.
        info: What is known besides the rows.
        steps: Columns of the run's steps.
        report: Which of the three.
        said: Where the run lies or how it stands, the last line; on stderr where stdout
            is for programs.
    """
    from bench_cli.console import Screen
    from bench_cli.run_screen import print_findings, print_run
    from bench_cli.tables import flatten, render_table
    from results.kv_usage import num_usable_blocks, usage_over_time
    from results.measured import if_measured

    if report.as_json:
        deliver(document, as_json=True, output=None)
        typer.echo(said, err=True)
    elif report.table is not TableStyle.RICH:
        rows = flatten({key: document[key] for key in TABLE_SECTIONS})
        rows += flatten({"measurement": document["measurement"] or {}})
        typer.echo(render_table(("metric", "value"), rows, report.table))
        print_findings(Screen(stderr=True), document["findings"])
        typer.echo(said, err=True)
    else:
        screen = Screen()
        known = {"trace": dict(info.trace), "ending": info.outcome.ending}
        num_blocks = if_measured(
            lambda: num_usable_blocks(info.config["num_gpu_blocks"], info.policy)
        )
        usage = usage_over_time(
            steps, num_gpu_blocks=num_blocks or 0, num_points=SPARKLINE_POINTS
        )
        print_run(screen, document | known, usage)
        screen.line(f"  {said}", "dim")
