"""``blockbench run``: replay a trace and say how the KV cache fared."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench_cli import options
from bench_cli.exit_code import ExitCode
from bench_cli.interrupt import one_ctrl_c
from bench_cli.options import Engine, Policy
from bench_cli.tables import TableStyle
from bench_cli.workload import WorkloadFlags, describe_trace, open_workload, run_name

if TYPE_CHECKING:
    from harness.config import EngineConfig
    from harness.replay import RunResult
    from harness.workload import Workload
    from results.goodput import Slo
    from results.summary import RunInfo

SPARKLINE_POINTS = 16
TABLE_SECTIONS = (
    "source",
    "trace",
    "counts",
    "prefix_cache",
    "latency_s",
    "throughput",
    "goodput",
    "kv_cache",
    "simulated_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """What is printed and saved, and where."""

    slo: "Slo | None" = None
    as_json: bool = False
    output: Path | None = None
    force: bool = False
    table: TableStyle = TableStyle.RICH


def run(
    trace: options.Trace,
    model: options.Model = "meta-llama/Llama-3.1-8B",
    gpu: options.Gpu = "H100-80GB",
    tensor_parallel_size: options.TensorParallelSize = 1,
    vllm_version: options.VllmVersion = None,
    policy: options.PolicyName = Policy.V0,
    engine: options.EngineName = Engine.SIM,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    kv_cache_gib: options.KvCacheGib = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    num_cpu_blocks_override: options.NumCpuBlocks = None,
    block_size: options.BlockSize = None,
    swap_space: options.SwapSpace = None,
    enable_prefix_caching: options.PrefixCaching = None,
    enable_chunked_prefill: options.ChunkedPrefill = None,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    watermark: options.Watermark = None,
    preemption_mode: options.Preemption = None,
    trace_format: options.Format = None,
    limit: options.Limit = None,
    slice_: options.Slice = None,
    request_rate: options.RequestRate = None,
    burstiness: options.Burstiness = None,
    seed: options.Seed = None,
    max_concurrency: options.MaxConcurrency = None,
    speedup: options.Speedup = None,
    skip_bad_rows: options.SkipBadRows = False,
    slo: options.SloText = None,
    as_json: options.AsJson = False,
    output: options.OutputFolder = None,
    force: options.Force = False,
    check: options.Check = False,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Replay TRACE and show how full the KV cache got."""
    from bench_cli.quantity import parse_slo
    from harness.config import resolve_config  # brings numpy, which help does not need

    shown = OutputFlags(
        slo=None if slo is None else parse_slo(slo),
        as_json=as_json,
        output=output,
        force=force,
        table=table,
    )
    timing = WorkloadFlags(
        limit=limit,
        slice=slice_,
        request_rate=request_rate,
        burstiness=burstiness,
        seed=seed,
        max_concurrency=max_concurrency,
        speedup=speedup,
    )
    refuse_contradictions(timing, shown)
    config = resolve_config(
        model=model,
        gpu=gpu,
        policy=policy.value,
        engine=engine.value,
        vllm_version=vllm_version,
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_gib=kv_cache_gib,
        num_gpu_blocks_override=num_gpu_blocks_override,
        num_cpu_blocks_override=num_cpu_blocks_override,
        block_size=block_size,
        swap_space=swap_space,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        watermark=watermark,
        preemption_mode=preemption_mode.value if preemption_mode else None,
    )
    workload = open_workload(
        trace, timing, trace_format=trace_format, skip_bad_rows=skip_bad_rows
    )
    code = replay_and_report(workload, config, timing, shown, check=check)
    if code:
        raise typer.Exit(code)


def refuse_contradictions(timing: WorkloadFlags, shown: OutputFlags) -> None:
    """Refuse flags that would have no effect or work against each other.

    Raises:
        UsageError: Names the two flags and what to do.
    """
    from harness.errors import UsageError

    problems = [
        (
            timing.request_rate is not None and timing.speedup is not None,
            "--request-rate draws new arrival times and --speedup scales the trace's;"
            " give one of them",
        ),
        (
            timing.request_rate is None and timing.burstiness is not None,
            "--burstiness shapes the arrivals of --request-rate; add --request-rate",
        ),
        (
            timing.request_rate is None and timing.seed is not None,
            "--seed draws the arrivals of --request-rate; add --request-rate",
        ),
        (
            shown.force and shown.output is None,
            "--force replaces the folder that -o names; add -o FOLDER",
        ),
        (
            shown.as_json and shown.table is not TableStyle.RICH,
            "--json and --table both claim stdout; give one of them",
        ),
    ]
    for contradicts, message in problems:
        if contradicts:
            raise UsageError(message)


def replay_and_report(
    workload: "Workload",
    config: "EngineConfig",
    timing: WorkloadFlags,
    shown: OutputFlags,
    *,
    check: bool,
) -> ExitCode:
    """Replay, save, print; a run that could not be saved is printed all the same."""
    from bench_cli.progress import progress_bar
    from harness.replay import replay
    from results.errors import ResultsError
    from results.store import RunStore

    info = run_info(workload, config, timing)  # what is wrong with it shows first
    name = run_name(workload.name)
    with (
        RunStore(name, output=shown.output, force=shown.force) as store,
        one_ctrl_c() as no_more_ctrl_c,
    ):
        with progress_bar(f"replaying {workload.name}") as on_progress:
            result = replay(
                workload,
                config,
                max_concurrency=timing.max_concurrency,
                check=check,
                on_progress=on_progress,
            )
        no_more_ctrl_c()
        document = summary_of(result, info, shown.slo)
        try:
            folder = store.save(document, result.requests, result.steps, trace=info.trace)
        except ResultsError:
            print_result(document, result, info, shown)
            raise
    print_result(document, result, info, shown, folder)
    return exit_code_of_run(result)


def run_info(
    workload: "Workload", config: "EngineConfig", timing: WorkloadFlags
) -> "RunInfo":
    """What is known of a simulated run before it begins."""
    from results.summary import RunInfo

    return RunInfo(
        source="simulated",
        engine=Engine.SIM.value,
        policy=config.policy,
        config=config.to_dict(),
        trace=describe_trace(workload),
        workload=timing.to_dict(),
    )


def summary_of(result: "RunResult", info: "RunInfo", slo: "Slo | None") -> dict[str, Any]:
    """The summary document of a simulated run."""
    from results.summary import summarize

    info = replace(info, complete=result.complete, wall_s=result.wall_s)
    return summarize(info, result.requests, result.steps, result.findings, slo)


def print_result(
    document: dict[str, Any],
    result: "RunResult",
    info: "RunInfo",
    shown: OutputFlags,
    folder: Path | None = None,
) -> None:
    """Print the document, a table or the screen on stdout, and where it was saved."""
    from bench_cli.console import Screen, print_findings, print_run
    from bench_cli.tables import flatten, render_table
    from results.kv_usage import usage_over_time

    saved = f"  saved {folder}" if folder else ""
    if shown.as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        typer.echo(saved.strip(), err=True)
    elif shown.table is not TableStyle.RICH:
        rows = flatten({key: document[key] for key in TABLE_SECTIONS})
        typer.echo(render_table(("metric", "value"), rows, shown.table))
        print_findings(Screen(stderr=True), document["findings"])
        typer.echo(saved.strip(), err=True)
    else:
        screen = Screen()
        num_gpu_blocks = document["kv_cache"]["num_gpu_blocks"]
        usage = usage_over_time(
            result.steps, num_gpu_blocks=num_gpu_blocks, num_points=SPARKLINE_POINTS
        )
        print_run(screen, document | {"trace": info.trace}, usage)
        screen.line(saved, "dim")


def exit_code_of_run(result: "RunResult") -> ExitCode:
    """Fine as long as some request finished; findings change nothing."""
    from results.latency import finished

    if result.interrupted:
        return ExitCode.INTERRUPTED
    if not finished(result.requests):
        typer.echo(
            "error: no request could finish; the findings say why"
            " (a larger KV cache or shorter requests)",
            err=True,
        )
        return ExitCode.IMPOSSIBLE
    return ExitCode.FINE
