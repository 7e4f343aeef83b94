"""``blockbench profiles``: the models and GPUs that are known by name."""

from typing import TYPE_CHECKING, Any

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.tables import Row, TableStyle, render_table

if TYPE_CHECKING:
    from profiles.gpu import GpuProfile
    from profiles.model import ModelProfile

profiles_app = typer.Typer(
    no_args_is_help=True, help="List the models and GPUs that are known by name."
)

GIB = 2**30


@profiles_app.command("list")
def list_profiles(
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """List the models and GPUs that are known by name."""
    from profiles.gpu import gpu_names, load_gpu
    from profiles.model import known_models, load_model

    models = [model_entry(load_model(name)) for name in known_models()]
    gpus = [gpu_entry(load_gpu(name)) for name in gpu_names()]
    document = {"schema_version": 1, "kind": "profiles", "models": models, "gpus": gpus}
    deliver(document, as_json=as_json, output=output)
    if as_json:
        return
    for entries in (models, gpus):
        print_entries(entries, table)


@profiles_app.command("show")
def show_profile(
    name: options.ProfileName,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Show one model or GPU; NAME may be a file, too."""
    entry = entry_of(name)
    deliver(
        {"schema_version": 1, "kind": "profile", **entry}, as_json=as_json, output=output
    )
    if not as_json:
        print_pairs(entry, table)


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
