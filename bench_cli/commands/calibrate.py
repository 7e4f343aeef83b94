"""``blockbench calibrate``: fit step times to figures that somebody measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench_cli import engine_options, options

if TYPE_CHECKING:
    from harness.calibration.fit import Fitted
    from harness.calibration.read import Measurements

PREDICTIONS_EACH = 60
"""About how often a fit predicts each observation."""


def calibrate(
    sources: options.MeasuredIn,
    name: options.CalibrationName = None,
    model: options.MeasuredModel = None,
    gpu: options.MeasuredGpu = None,
    tensor_parallel_size: options.MeasuredTensorParallelSize = None,
    dtype: engine_options.Dtype = None,
    quantization: engine_options.QuantizationMethod = None,
    kv_cache_dtype: engine_options.KvCacheDtype = None,
    vllm_version: engine_options.VllmVersion = None,
    policy: engine_options.PolicyName = None,
    gpu_memory_utilization: engine_options.GpuMemoryUtilization = None,
    block_size: engine_options.BlockSize = None,
    enable_prefix_caching: engine_options.PrefixCaching = None,
    max_model_len: engine_options.MaxModelLen = None,
    max_num_seqs: engine_options.MaxNumSeqs = None,
    max_num_batched_tokens: engine_options.MaxNumBatchedTokens = None,
    enforce_eager: engine_options.EnforceEager = False,
    async_scheduling: engine_options.AsyncScheduling = None,
    fit: options.FittedNames = None,
    as_json: options.AsJson = False,
    output: options.CalibrationFile = None,
    force: options.ForceCalibration = False,
) -> None:
    """Fit a GPU's step times to figures that were measured.

    The figures are timed steps, or mean TTFT and TPOT of a few loads; --gpu NAME then
    takes the GPU that comes of them.
    """
    from bench_cli.calibrate_screen import calibration_document, print_calibration
    from bench_cli.document import deliver

    with nothing_written():  # imports take a second where the disk is slow
        from harness.calibration.calibration_file import (
            calibration_path,
            check_name,
            gpu_table,
            write_calibration,
        )
        from harness.calibration.read import read_measurements

    names = None if fit is None else coefficient_names(fit)
    if name is not None:
        check_name(name)
        calibration_path(name, output, force=force)
    flags: dict[str, Any] = {
        "model": model,
        "gpu": gpu,
        "policy": policy.value if policy else None,
        "vllm_version": vllm_version,
        "dtype": dtype,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "gpu_memory_utilization": gpu_memory_utilization,
        "block_size": block_size,
        "enable_prefix_caching": enable_prefix_caching,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "enforce_eager": enforce_eager,
        "async_scheduling": async_scheduling,
    }
    with nothing_written():
        measured = read_measurements(sources, flags)
        if name is None:
            name = output.stem if output is not None else name_of(measured)
            check_name(name)
        path = calibration_path(name, output, force=force)
        fitted = fit_measured(measured, names)
        table = gpu_table(name, measured, fitted)
    write_calibration(path, table)
    how = name if output is None else str(path)
    document = calibration_document(name, path, how, measured, fitted)
    deliver(document, as_json=as_json, output=None)
    if not as_json:
        print_calibration(document)


@contextmanager
def nothing_written() -> Iterator[None]:
    """Say to who interrupts that nothing was written."""
    try:
        yield
    except KeyboardInterrupt:
        import typer

        typer.echo("interrupted: nothing was written", err=True)
        raise


def coefficient_names(text: str) -> list[str]:
    """The coefficients that somebody wants to fit.

    Raises:
        UsageError: One of them is not there.
    """
    from harness.calibration.coefficient import COEFFICIENTS
    from harness.errors import UsageError

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [text]:
        if name not in COEFFICIENTS:
            raise UsageError(
                f"--fit {name or text!r} is no coefficient; they are"
                f" {', '.join(COEFFICIENTS)}"
            )
    return names


def name_of(measured: "Measurements") -> str:
    """What a calibration is called that was given no name."""
    from pathlib import Path

    gpu = Path(measured.config.gpu).stem
    return f"{gpu}-{measured.config.model_profile().name.split('/')[-1]}"[:100]


def fit_measured(measured: "Measurements", names: list[str] | None) -> "Fitted":
    """Fit, with a bar for who watches."""
    from bench_cli.progress import progress_bar
    from harness.calibration.fit import fit

    total = PREDICTIONS_EACH * len(measured.observations)
    with progress_bar("fitting") as show:

        def on_progress(done: int) -> None:
            if show is not None:
                show(done, max(total, done))

        return fit(measured.observations, names, on_progress=on_progress)
