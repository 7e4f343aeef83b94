"""``blockbench run``: replay a trace and say how the KV cache fared."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from bench_cli import options
from bench_cli.exit_code import ExitCode
from bench_cli.interrupt import stopped_by_signals
from bench_cli.options import Engine
from bench_cli.run_report import ReportFlags, print_report
from bench_cli.tables import TableStyle
from bench_cli.workload import WorkloadFlags, describe_trace, open_workload, run_name

if TYPE_CHECKING:
    from harness.config import EngineConfig
    from harness.replay import RunResult
    from harness.workload import Workload
    from results.goodput import Slo
    from results.run_info import RunInfo
    from results.store import RunStore


def run(
    trace: options.Trace,
    model: options.Model = "meta-llama/Llama-3.1-8B",
    gpu: options.Gpu = "H100-80GB",
    tensor_parallel_size: options.TensorParallelSize = 1,
    dtype: options.Dtype = None,
    quantization: options.QuantizationMethod = None,
    kv_cache_dtype: options.KvCacheDtype = None,
    vllm_version: options.VllmVersion = None,
    policy: options.PolicyName = None,
    engine: options.EngineName = Engine.SIM,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    kv_cache_gib: options.KvCacheGib = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    num_cpu_blocks_override: options.NumCpuBlocks = None,
    block_size: options.BlockSize = None,
    swap_space: options.SwapSpace = None,
    kv_offloading_size: options.KvOffloadingSize = None,
    enable_prefix_caching: options.PrefixCaching = None,
    enable_chunked_prefill: options.ChunkedPrefill = None,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    enforce_eager: options.EnforceEager = False,
    watermark: options.Watermark = None,
    long_prefill_token_threshold: options.LongPrefillTokenThreshold = None,
    scheduler_reserve_full_isl: options.SchedulerReserveFullIsl = None,
    async_scheduling: options.AsyncScheduling = None,
    scheduling_policy: options.SchedulingPolicyName = None,
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
    from harness.errors import UsageError
    from results.store import RunStore

    limits = None if slo is None else parse_slo(slo)
    report = ReportFlags(as_json=as_json, table=table)
    timing = WorkloadFlags(
        limit=limit,
        slice=slice_,
        request_rate=request_rate,
        burstiness=burstiness,
        seed=seed,
        max_concurrency=max_concurrency,
        speedup=speedup,
    )
    timing.refuse_contradictions()
    if force and output is None:
        raise UsageError("--force replaces the folder that -o names; add -o FOLDER")
    config = resolve_config(
        model=model,
        gpu=gpu,
        policy=policy.value if policy else None,
        engine=engine.value,
        vllm_version=vllm_version,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_gib=kv_cache_gib,
        num_gpu_blocks_override=num_gpu_blocks_override,
        num_cpu_blocks_override=num_cpu_blocks_override,
        block_size=block_size,
        swap_space=swap_space,
        kv_offloading_size=kv_offloading_size,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enforce_eager=enforce_eager,
        watermark=watermark,
        long_prefill_token_threshold=long_prefill_token_threshold,
        scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        async_scheduling=async_scheduling,
        scheduling_policy=scheduling_policy.value if scheduling_policy else None,
        preemption_mode=preemption_mode.value if preemption_mode else None,
    )
    workload = open_workload(
        trace, timing, trace_format=trace_format, skip_bad_rows=skip_bad_rows
    )
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


def run_info(
    workload: "Workload",
    config: "EngineConfig",
    timing: WorkloadFlags,
    slo: "Slo | None",
) -> "RunInfo":
    """What is known of a simulated run before it begins."""
    from results.run_info import RunInfo

    return RunInfo(
        source="simulated",
        engine=Engine.SIM.value,
        policy=config.policy,
        config=config.to_dict() | timing.to_dict(),
        trace=describe_trace(workload),
        slo=None if slo is None else slo.to_dict(),
    )


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
