"""``blockbench run``: replay a trace and say how the KV cache fared."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from bench_cli import options
from bench_cli.engine_flags import EngineFlags
from bench_cli.exit_code import ExitCode
from bench_cli.flags import takes_flags
from bench_cli.interrupt import stopped_by_signals
from bench_cli.run_report import ReportFlags, print_report
from bench_cli.run_start import run_info, run_name
from bench_cli.tables import TableStyle
from bench_cli.workload import SourceFlags, WorkloadFlags, open_workload

if TYPE_CHECKING:
    from harness.config import EngineConfig
    from harness.replay import RunResult
    from harness.workload import Workload
    from results.run_info import RunInfo
    from results.store import RunStore


@takes_flags
def run(
    trace: options.Trace,
    *,
    flags: EngineFlags,
    source: SourceFlags,
    timing: WorkloadFlags,
    slo: options.SloText = None,
    as_json: options.AsJson = False,
    output: options.OutputFolder = None,
    force: options.Force = False,
    check: options.Check = False,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Replay TRACE and show how full the KV cache got."""
    from bench_cli.quantity import parse_slo
    from harness.errors import UsageError
    from results.store import RunStore

    limits = None if slo is None else parse_slo(slo)
    report = ReportFlags(as_json=as_json, table=table)
    timing.refuse_contradictions()
    if force and output is None:
        raise UsageError("--force replaces the folder that -o names; add -o FOLDER")
    config = flags.resolve()
    workload = open_workload(trace, source, timing)
    info = run_info(workload, config, timing, limits)  # what is wrong with it shows first
    with (
        stopped_by_signals() as is_stopped,
        RunStore(run_name(workload.name), info, output=output, force=force) as store,
    ):
        result = replay_into(store, workload, config, timing, is_stopped, check=check)
        save_and_print(store, info, result, report)
    code = exit_code_of_run(result)
    if code:
        raise typer.Exit(code)


def replay_into(
    store: "RunStore",
    workload: "Workload",
    config: "EngineConfig",
    timing: WorkloadFlags,
    is_stopped: Callable[[], bool],
    *,
    check: bool,
) -> "RunResult":
    """Replay with a bar for who watches, and a journal for who pulls the plug."""
    from bench_cli.progress import progress_bar
    from harness.replay import replay

    with progress_bar(f"replaying {workload.name}") as on_progress:
        return replay(
            workload,
            config,
            max_concurrency=timing.max_concurrency,
            check=check,
            on_progress=on_progress,
            journal=store.journal,
            is_stopped=is_stopped,
        )


def save_and_print(
    store: "RunStore", info: "RunInfo", result: "RunResult", report: ReportFlags
) -> None:
    """Save the run and print it; one that could not be saved is printed all the same."""
    from results.columns import Columns
    from results.errors import ResultsError
    from results.record import RequestRecord, StepRecord
    from results.summary import summarize

    info = replace(info, outcome=result.outcome, wall_s=result.wall_s)
    requests = Columns.of(RequestRecord, result.requests)
    steps = Columns.of(StepRecord, result.steps)
    try:
        document = summarize(info, requests, steps)
    except Exception:  # our own bug must not cost the rows
        store.save(info, result.requests, result.steps, None)
        raise
    try:
        folder = store.save(info, result.requests, result.steps, document)
    except ResultsError:
        print_report(document, info, steps, report)
        raise
    print_report(document, info, steps, report, said=f"saved {folder}")


def exit_code_of_run(result: "RunResult") -> ExitCode:
    """Fine as long as some request finished; findings change nothing."""
    from results.record import RequestStatus
    from results.run_info import Ending

    if result.outcome.ending is Ending.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if not any(r.status is RequestStatus.FINISHED for r in result.requests):
        typer.echo(
            "error: no request could finish; the findings say why"
            " (a larger KV cache or shorter requests)",
            err=True,
        )
        return ExitCode.IMPOSSIBLE
    return ExitCode.FINE
