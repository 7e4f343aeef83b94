"""The same measurement again and again: how far its figures lie apart."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench_cli.document import deliver
from bench_cli.exit_code import ExitCode
from bench_cli.measured_run import Measured, Order, measure

if TYPE_CHECKING:
    from bench_cli.run_report import ReportFlags

FIGURES = {
    "TTFT p50": ("latency_s", "ttft", "p50"),
    "TTFT p99": ("latency_s", "ttft", "p99"),
    "TPOT p50": ("latency_s", "tpot", "p50"),
    "E2E p50": ("latency_s", "e2e", "p50"),
    "output tokens/s": ("throughput", "output_token_per_s"),
    "hit rate": ("prefix_cache", "hit_rate"),
    "preemptions": ("counts", "preemptions"),
}
"""What is shown of repeats, by where it stands in a run's document."""

Dispersion = dict[str, dict[str, float | None]]


def measure_repeatedly(order: Order, is_stopped: Callable[[], bool]) -> ExitCode:
    """Measure several times, each in a process and a folder of its own, and print that.

    A repeat that fails ends them.

    Raises:
        UsageError: One folder was named for all.
    """
    from harness.errors import UsageError

    report, number = order.report, order.measured.repeats
    assert report is not None, "who repeats prints"
    assert number is not None, "who repeats says how often"
    if order.output is not None:
        raise UsageError(
            f"--repeats {number} makes {number} runs, and -o names one folder; leave one"
            " of them out (runs lie in .blockbench/runs by default)"
        )
    quiet = replace(order, report=None)
    runs: list[Measured] = []
    while len(runs) < number and not (runs and runs[-1].code):
        runs.append(measure(quiet, is_stopped))
    print_repeats(runs, report)
    return runs[-1].code


def print_repeats(runs: Sequence[Measured], report: "ReportFlags") -> None:
    """Print one document, or a table of medians and extremes."""
    from bench_cli.console import Screen
    from bench_cli.quantity import format_duration
    from bench_cli.run_screen import print_findings
    from bench_cli.tables import TableStyle, render_table

    documents = [run.saved.document for run in runs]
    found = dispersion_of(documents)
    if report.as_json:
        folders = [str(run.saved.folder) for run in runs]
        document = {
            "schema_version": 1,
            "kind": "repeats",
            "runs": documents,
            "folders": folders,
            "dispersion": found,
        }
        deliver(document, as_json=True, output=None)
        return

    def shown(name: str, value: float | None) -> str:
        if value is None:
            return "n/a"
        is_time = FIGURES[name][0] == "latency_s"
        return format_duration(value) if is_time else f"{value:,.4g}"

    header = (f"of {len(runs)} runs", "median", "least", "most", "deviation")
    rows = []
    for name, each in found.items():
        values = [shown(name, each[key]) for key in ("median", "min", "max")]
        share = each["relative_deviation"]
        rows.append([name, *values, "n/a" if share is None else f"{share:.1%}"])
    if report.table is not TableStyle.RICH:
        import typer

        typer.echo(render_table(header, rows, report.table))
        return
    screen = Screen()
    screen.table(list(header), rows)
    print_findings(screen, documents[-1]["findings"])


def dispersion_of(documents: Sequence[Mapping[str, Any]]) -> Dispersion:
    """Median, extremes and deviation of each figure over the runs that have it.

    ``relative_deviation`` is the standard deviation as a share of the mean; None where
    there is one run, or a mean of 0.
    """
    found: Dispersion = {}
    for name, path in FIGURES.items():
        values = [v for d in documents if (v := _at(d, path)) is not None]
        found[name] = _dispersion(values)
    return found


def _at(document: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = document
    for key in path:
        value = None if value is None else value.get(key)
    return None if value is None else float(value)


def _dispersion(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("median", "min", "max", "relative_deviation"))
    mean = statistics.fmean(values)
    is_known = len(values) > 1 and mean != 0
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "relative_deviation": statistics.stdev(values) / mean if is_known else None,
    }
