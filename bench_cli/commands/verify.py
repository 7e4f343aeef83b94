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
from bench_cli.exit_code import ExitCode
from bench_cli.workload import WorkloadFlags, open_workload

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from harness.verify.golden import VerifyResult


class Reference(StrEnum):
    """Whose decisions a trace is compared with."""

    VLLM = "vllm"


def verify(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(
            parser=options.trace_given, metavar="[TRACE]", help="Trace for --against."
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
    model: options.Model = "meta-llama/Llama-3.1-8B",
    gpu: options.Gpu = "H100-80GB",
    tensor_parallel_size: options.TensorParallelSize = 1,
    dtype: options.Dtype = None,
    quantization: options.QuantizationMethod = None,
    kv_cache_dtype: options.KvCacheDtype = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    kv_cache_gib: options.KvCacheGib = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    num_cpu_blocks_override: options.NumCpuBlocks = None,
    block_size: options.BlockSize = None,
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
    trace_format: options.Format = None,
    limit: options.Limit = None,
    slice_: options.Slice = None,
    request_rate: options.RequestRate = None,
    burstiness: options.Burstiness = None,
    seed: options.Seed = None,
    max_concurrency: options.MaxConcurrency = None,
    speedup: options.Speedup = None,
    skip_bad_rows: options.SkipBadRows = False,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
) -> None:
    """Compare our scheduler with the installed vLLM's on TRACE, or with recorded rows."""
    timing = WorkloadFlags(
        limit=limit,
        slice=slice_,
        request_rate=request_rate,
        burstiness=burstiness,
        seed=seed,
        max_concurrency=max_concurrency,
        speedup=speedup,
    )
    refuse_half_a_comparison(trace, against, scenario, rows)
    timing.refuse_contradictions()
    if scenario is not None and rows is not None:
        refuse_flags_beside_a_recording(context)
        from harness.verify.golden import verify_scenario  # heavy; waits until needed

        result = verify_scenario(scenario, rows)
    else:
        assert trace is not None, "refused above"
        knobs = {
            "model": model,
            "gpu": gpu,
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "kv_cache_gib": kv_cache_gib,
            "num_gpu_blocks_override": num_gpu_blocks_override,
            "num_cpu_blocks_override": num_cpu_blocks_override,
            "block_size": block_size,
            "kv_offloading_size": kv_offloading_size,
            "enable_prefix_caching": enable_prefix_caching,
            "enable_chunked_prefill": enable_chunked_prefill,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "enforce_eager": enforce_eager,
            "watermark": watermark,
            "long_prefill_token_threshold": long_prefill_token_threshold,
            "scheduler_reserve_full_isl": scheduler_reserve_full_isl,
            "async_scheduling": async_scheduling,
            "scheduling_policy": scheduling_policy.value if scheduling_policy else None,
        }
        source = {"trace_format": trace_format, "skip_bad_rows": skip_bad_rows}
        result = compare_with_vllm(trace, timing, knobs, source)
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
    trace: Path,
    timing: WorkloadFlags,
    knobs: Mapping[str, Any],
    source: Mapping[str, Any],
) -> "VerifyResult":
    """Replay a trace through both schedulers, with a bar for who watches."""
    from bench_cli.progress import progress_bar
    from harness.config import resolve_config
    from harness.verify.against_vllm import verify_against_vllm

    config = resolve_config(policy="v1", **knobs)
    workload = open_workload(trace, timing, **source)
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
