"""``blockbench run``: replay a trace and say how the KV cache fared."""

import typer

from bench_cli import options
from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.flags import takes_flags
from bench_cli.interrupt import stopped_by_signals
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.run_end import exit_code_of_run, save_and_print
from bench_cli.run_report import ReportFlags
from bench_cli.run_start import run_info, run_name
from bench_cli.simulated_run import replay_into
from bench_cli.tables import TableStyle
from bench_cli.workload import SourceFlags, WorkloadFlags, open_workload


@takes_flags
def run(
    trace: options.Trace,
    *,
    flags: EngineFlags,
    source: SourceFlags,
    timing: WorkloadFlags,
    measured: MeasuredFlags,
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
    measured.refuse_others([flags.engine])
    if flags.engine in (Engine.VLLM, Engine.SERVER):
        if check:
            raise UsageError("--check checks our own books; leave it out here")
        from bench_cli.measured_run import Order, run_measured

        order = Order(
            workload=open_workload(trace, source, timing),
            flags=flags,
            measured=measured,
            timing=timing,
            limits=limits,
            report=report,
            output=output,
            force=force,
        )
        code = run_measured(order)
        if code:
            raise typer.Exit(code)
        return
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
