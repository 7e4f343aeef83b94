"""``blockbench profiles``: the models and GPUs that are known by name."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from bench_cli import engine_options, options
from bench_cli.document import deliver
from bench_cli.tables import Row, TableStyle, render_table

if TYPE_CHECKING:
    from harness.engine_clock import EngineClock
    from profiles.gpu import GpuProfile
    from profiles.model import ModelProfile

profiles_app = typer.Typer(
    no_args_is_help=True, help="List the models and GPUs that are known by name."
)

GIB = 2**30


class ReportFlags(NamedTuple):
    """Where a document goes, and how it is printed."""

    as_json: bool
    output: Path | None
    table: TableStyle


@profiles_app.command("list")
def list_profiles(
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """List known models and GPUs, and your calibrations."""
    from profiles.gpu import calibration_names, gpu_names, load_gpu
    from profiles.model import known_models, load_model

    models = [model_entry(load_model(name)) for name in known_models()]
    gpus = [gpu_entry(load_gpu(name)) for name in gpu_names()]
    gpus += [calibration_entry(name) for name in calibration_names()]
    document = {"schema_version": 1, "kind": "profiles", "models": models, "gpus": gpus}
    deliver(document, as_json=as_json, output=output)
    if as_json:
        return
    for entries in (models, gpus):
        print_entries(entries, table)


@profiles_app.command("show")
def show_profile(
    name: options.ProfileName,
    gpu: options.GpuOfSteps = None,
    tensor_parallel_size: engine_options.TensorParallelSize = 1,
    dtype: engine_options.Dtype = None,
    quantization: engine_options.QuantizationMethod = None,
    kv_cache_dtype: engine_options.KvCacheDtype = None,
    vllm_version: engine_options.VllmVersion = None,
    policy: engine_options.PolicyName = None,
    enforce_eager: engine_options.EnforceEager = False,
    async_scheduling: engine_options.AsyncScheduling = None,
    plot: options.PlotFile = None,
    force: options.ForcePlot = False,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Show a model or a GPU, or how long steps take there.

    Steps are those of a model, with --gpu. NAME may be a file, too.
    """
    from harness.errors import UsageError

    if force and plot is None:
        raise UsageError("--force replaces the file that --plot names; add --plot FILE")
    if gpu is not None:
        clock = clock_named(
            model=name,
            gpu=gpu,
            policy=policy.value if policy else None,
            vllm_version=vllm_version,
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor_parallel_size,
            enforce_eager=enforce_eager,
            async_scheduling=async_scheduling,
        )
        show_step_times(clock, ReportFlags(as_json, output, table), plot, force=force)
        return
    refuse_without_gpu(
        {
            "--plot": plot,
            "--tensor-parallel-size": tensor_parallel_size > 1,
            "--dtype": dtype,
            "--quantization": quantization,
            "--kv-cache-dtype": kv_cache_dtype,
            "--vllm-version": vllm_version,
            "--policy": policy,
            "--enforce-eager": enforce_eager,
            "--async-scheduling": async_scheduling is not None,
        }
    )
    entry = entry_of(name)
    deliver(
        {"schema_version": 1, "kind": "profile", **entry}, as_json=as_json, output=output
    )
    if not as_json:
        print_pairs(entry, table)


def refuse_without_gpu(given: dict[str, object]) -> None:
    """Refuse flags that mean nothing without step times.

    Raises:
        UsageError: Names the first that was given.
    """
    from harness.errors import UsageError

    for flag, value in given.items():
        if value:
            raise UsageError(
                f"{flag} is about step times, which need a model and a GPU; write"
                f" blockbench profiles show MODEL --gpu GPU {flag}"
            )


def clock_named(*, model: str, **flags: Any) -> "EngineClock":
    """The clock of a model on a GPU.

    Raises:
        UsageError: The model's name is a GPU's.
    """
    from harness.engine_clock import engine_clock
    from harness.errors import UsageError
    from profiles.errors import UnknownNameError
    from profiles.gpu import load_gpu

    try:
        return engine_clock(model=model, **flags)
    except UnknownNameError as error:
        if error.kind == "GPU":
            raise
        with suppress(UnknownNameError):
            raise UsageError(
                f"{load_gpu(model).name} is a GPU, and so is what --gpu names; step times"
                " need a model: blockbench profiles show MODEL --gpu GPU"
            ) from error
        raise


def show_step_times(
    clock: "EngineClock", report: ReportFlags, plot: Path | None, *, force: bool
) -> None:
    """Print step times, and draw them if that was asked for."""
    from bench_cli.plots import check_plot
    from bench_cli.step_time_screen import (
        plot_step_times,
        print_step_times,
        step_time_document,
    )

    if plot is not None:
        check_plot(plot, force=force)
    document = step_time_document(clock)
    if plot is not None:
        plot_step_times(clock, document, plot)
    deliver(document, as_json=report.as_json, output=report.output)
    if report.as_json:
        return
    print_step_times(document, report.table)
    if plot is not None and report.table is TableStyle.RICH:
        from bench_cli.console import Screen

        Screen().line(f"\n  drew {plot}")


def entry_of(name: str) -> dict[str, Any]:
    """The GPU of that name, else the model.

    Raises:
        ProfileError: There is neither.
    """
    from profiles.errors import UnknownNameError
    from profiles.gpu import load_gpu
    from profiles.model import load_model

    try:
        gpu = load_gpu(name)
    except UnknownNameError:
        model = load_model(name)
        return {**model_entry(model), "source": model.source}
    return {**gpu_entry(gpu), "sources": dict(gpu.sources)}


def model_entry(model: "ModelProfile") -> dict[str, Any]:
    """What there is to say of a model."""
    from profiles.weights import weight_bytes

    return {
        "name": model.name,
        "params_b": model.num_params / 1e9,
        "active_params_b": model.num_active_params / 1e9,
        "weights_gib": weight_bytes(model) / GIB,
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "num_layers": model.num_layers,
        "max_model_len": model.max_model_len,
        "quantization": model.quantization.method if model.quantization else None,
    }


def gpu_entry(gpu: "GpuProfile") -> dict[str, Any]:
    """What there is to say of a GPU."""
    rates = gpu.rates
    return {
        "name": gpu.name,
        "memory_gib": gpu.memory_gib,
        "memory_bandwidth_gb_per_s": rates.memory_bandwidth_gb_per_s if rates else None,
        "bf16_tflop_per_s": rates.bf16_tflop_per_s if rates else None,
        "evidence": gpu.evidence,
    }


def calibration_entry(name: str) -> dict[str, Any]:
    """What there is to say of a calibration; of one that cannot be read, why."""
    from profiles.errors import ProfileError
    from profiles.gpu import load_gpu

    try:
        return gpu_entry(load_gpu(name)) | {"name": name}
    except ProfileError as error:
        return {
            "name": name,
            "memory_gib": None,
            "memory_bandwidth_gb_per_s": None,
            "bf16_tflop_per_s": None,
            "evidence": str(error),
        }


def print_entries(entries: list[dict[str, Any]], style: TableStyle) -> None:
    """Print one row an entry."""
    headers = tuple(entries[0])
    rows: list[Row] = [tuple(entry.values()) for entry in entries]
    if style is not TableStyle.RICH:
        print(render_table(headers, rows, style))
        return
    from bench_cli.console import Screen

    Screen().table(headers, [[shown(value) for value in row] for row in rows])


def print_pairs(entry: dict[str, Any], style: TableStyle) -> None:
    """Print one line a figure, with its source where each has its own."""
    sources = entry.get("sources", {})
    rows: list[Row] = [
        (key, value, sources.get(key, ""))
        for key, value in entry.items()
        if key != "sources"
    ]
    if style is not TableStyle.RICH:
        print(render_table(("key", "value", "source"), rows, style))
        return
    from bench_cli.console import Screen

    facts = [
        (str(key), f"{shown(value)}   {source}" if source else shown(value))
        for key, value, source in rows
    ]
    Screen().facts(facts)


def shown(value: str | int | float | None) -> str:
    """A figure for people."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
