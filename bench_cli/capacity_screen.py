"""The document and the screen of ``blockbench capacity``."""

from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_number_of
from bench_cli.tables import Row, TableStyle, flatten, render_table

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from harness.sizing import Sizing

Document = dict[str, Any]

MIB = 2**20

HOST = "CPU"
"""The profile that is no GPU: what a GPU's memory is split into means nothing there."""

SOURCES = {
    "estimated": "estimated",
    "kv_cache_gib": "from the given KV cache",
    "override": "as given",
    "log": "from the log",
}
KEYS = ("key", "value")
VARIED = (
    ("num_gpu_blocks", "blocks"),
    ("num_cpu_blocks", "CPU blocks"),
    ("kv_cache_tokens", "tokens"),
    ("kv_cache_gib", "KV GiB"),
    ("max_concurrency", "concurrency"),
    ("max_model_len_that_fits", "longest"),
    ("headroom_gib", "headroom GiB"),
)


def sizing_figures(sizing: "Sizing") -> Document:
    """The figures of one sizing; memory is that of the deciding GPU."""
    plan, budget = sizing.plan, sizing.plan.budget
    return {
        "num_gpu_blocks": plan.num_gpu_blocks,
        "num_cpu_blocks": plan.num_cpu_blocks,
        "block_bytes": plan.block_bytes,
        "kv_cache_gib": plan.kv_cache_gib,
        "kv_cache_tokens": sizing.kv_cache_tokens,
        "max_concurrency": sizing.max_concurrency,
        "weights_gib": budget.weights_gib,
        "activation_gib": budget.activation_gib,
        "cuda_graph_gib": budget.cuda_graph_gib,
        "non_torch_gib": budget.non_torch_gib,
        "headroom_gib": sizing.headroom_gib,
        "max_model_len_that_fits": sizing.max_model_len_that_fits,
        "interval": list(plan.interval),
    }


def capacity_document(
    sizing: "Sizing", utilization: float | None, rows: list[Document]
) -> Document:
    """What ``--json`` prints.

    Args:
        sizing: Of the knobs as given.
        utilization: The smallest that holds the tokens asked for, if any were.
        rows: One for each value of a variation.
    """
    from profiles.capacity import ESTIMATE_ERROR_ROWS

    deployment, scheduling = sizing.deployment, sizing.scheduling
    return {
        "schema_version": 1,
        "kind": "capacity",
        **sizing_figures(sizing),
        "interval_rows": list(ESTIMATE_ERROR_ROWS),
        "source_of_num_gpu_blocks": sizing.plan.source_of_num_gpu_blocks,
        "starts": sizing.starts,
        "total_gib": sizing.gpu.memory_gib,
        "budget_gib": sizing.plan.budget.total_gib,
        "host_memory_gib": sizing.host_memory_gib,
        "min_gpu_memory_utilization": utilization,
        "config": {
            "model": sizing.model.name,
            "gpu": sizing.gpu.name,
            "policy": sizing.policy,
            "vllm_version": deployment.vllm_version,
            "tensor_parallel_size": deployment.tensor_parallel_size,
            "pipeline_parallel_size": deployment.pipeline_parallel_size,
            "gpu_memory_utilization": deployment.gpu_memory_utilization,
            "block_size": deployment.block_size,
            "max_model_len": deployment.max_model_len,
            "max_num_seqs": deployment.max_num_seqs,
            "max_num_batched_tokens": deployment.max_num_batched_tokens,
            "enable_chunked_prefill": deployment.enable_chunked_prefill,
            "enforce_eager": deployment.enforce_eager,
            "swap_space": scheduling.swap_space,
            "kv_offloading_size": scheduling.kv_offloading_size,
        },
        "notes": list(sizing.notes),
        "vary": rows,
    }


def print_capacity(document: Document, style: TableStyle) -> None:
    """Print the screen, or one table of all figures; of a variation one row a value."""
    varied = document["vary"]
    headers, rows = _varied_table(varied) if varied else (KEYS, flatten(document))
    if style is not TableStyle.RICH:
        if varied:
            headers = (*headers, "error")
            rows = [(*row, one["error"]) for row, one in zip(rows, varied, strict=True)]
        print(render_table(headers, rows, style))
        return
    from bench_cli.console import Screen

    screen = Screen()
    _print_head(screen, document)
    if varied:
        screen.table(headers, [[_cell(value) for value in row] for row in rows])
        for row in varied:
            if row["error"]:
                screen.aside(f"{next(iter(row.values()))}: {row['error']}")
    else:
        screen.facts(_facts(document))
    for note in document["notes"]:
        screen.aside(note)


def _print_head(screen: "Screen", document: Document) -> None:
    from bench_cli.console import join

    config = document["config"]
    num_gpus = config["tensor_parallel_size"] * config["pipeline_parallel_size"]
    machine = config["gpu"] if num_gpus == 1 else f"{num_gpus} x {config['gpu']}"
    screen.spread(
        join(
            f"{config['model'].split('/')[-1]} on {machine}, as vLLM"
            f" {config['vllm_version']}",
            f"utilization {config['gpu_memory_utilization']:g}",
            f"block {config['block_size']}",
        ),
        SOURCES[document["source_of_num_gpu_blocks"]],
    )
    screen.aside(
        f"{format_number_of(config['max_num_seqs'], 'sequence')} and"
        f" {format_number_of(config['max_num_batched_tokens'], 'token')} in a batch,"
        f" max_model_len {config['max_model_len']:,}"
    )
    screen.line()


def _facts(document: Document) -> list[tuple[str, str]]:
    facts = [
        ("KV cache", _kv_cache(document)),
        ("requests", _requests(document)),
    ]
    if document["config"]["gpu"] != HOST:
        facts += [
            ("memory", _memory(document)),
            ("headroom", f"{document['headroom_gib']:.2f} GiB beside budget and graphs"),
        ]
    if document["num_cpu_blocks"]:
        host = f"{document['num_cpu_blocks']:,} blocks"
        if document["host_memory_gib"]:
            host += f" in {document['host_memory_gib']:g} GiB of all GPUs together"
        facts.append(("CPU", host))
    if document["min_gpu_memory_utilization"] is not None:
        wanted = document["min_gpu_memory_utilization"]
        facts.append(("tokens", f"--gpu-memory-utilization {wanted:g} holds them"))
    return facts


def _kv_cache(document: Document) -> str:
    fewest, most = document["interval"]
    text = (
        f"{document['num_gpu_blocks']:,} blocks of {document['block_bytes'] / MIB:g} MiB,"
        f" {document['kv_cache_tokens']:,} tokens,"
        f" {document['kv_cache_gib']:.2f} GiB a GPU"
    )
    if fewest < most:
        inside, known = document["interval_rows"]
        text += f"; {inside} of {known} published logs were within"
        text += f" {fewest:,} to {most:,} blocks"
    return text


def _requests(document: Document) -> str:
    longest = document["max_model_len_that_fits"]
    wanted = document["config"]["max_model_len"]
    text = f"{document['max_concurrency']:.2f} of {wanted:,} tokens"
    if document["starts"]:
        return text
    if longest is None:
        return f"{text}: vLLM would not start with any max_model_len"
    return f"{text}: vLLM would not start; it starts with --max-model-len {longest}"


def _memory(document: Document) -> str:
    parts = [
        f"{document['budget_gib']:.2f} of {document['total_gib']:.2f} GiB:",
        f"weights {document['weights_gib']:.2f},",
        f"activations {document['activation_gib']:.2f},",
        f"CUDA {document['non_torch_gib']:.2f},",
        f"graphs {document['cuda_graph_gib']:.2f}",
    ]
    return " ".join(parts)


def _varied_table(rows: list[Document]) -> tuple[tuple[str, ...], list[Row]]:
    knob = next(iter(rows[0]))
    headers = (knob, *(title for _, title in VARIED))
    return headers, [[row[knob], *(row.get(name) for name, _ in VARIED)] for row in rows]


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
