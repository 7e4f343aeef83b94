"""The document, the screen and the plot of how long an engine's steps take."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_share
from bench_cli.tables import Row, TableStyle, render_table

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from bench_cli.plots import Panel
    from harness.engine_clock import EngineClock
    from profiles.step_time import BatchShape

Document = dict[str, Any]

DECODE_SEQS = (1, 8, 32, 64, 128, 256)
CONTEXTS = (1024, 4096, 16_384, 65_536)
PREFILLS = (512, 2048, 8192)
PARTS_DECODE = (64, 2048)
PARTS_PREFILL = 2048
MOST_PLOTTED_PREFILL = 16_384
LEAST_PLOTTED_PREFILL = 16

TYPES = {"dtype": "", "quantization": "weights in ", "kv_cache_dtype": "KV cache in "}
"""What stands before each of the model's types where it was given."""

PARTS = {
    "linear": "linear layers",
    "lm_head": "LM head",
    "attention": "attention",
    "elementwise": "elementwise",
    "all_reduce": "all-reduce",
    "layer": "small kernels",
    "copy": "copies",
    "host": "host",
}
"""What people read for each of ``StepParts``."""

OVERHEADS = {
    "layer_ns": "a layer",
    "launch_ns": "a layer at least",
    "step_ns": "a step",
    "seq_ns": "a sequence",
    "shared_seq_ns": "more a sequence with several GPUs",
    "rank_ns": "a GPU but the first",
    "request_ns": "a request, outside its steps",
}
"""What people read for each of ``EngineOverhead``, after its time."""


def step_time_document(clock: "EngineClock") -> Document:
    """What ``--json`` prints; lengths that the model does not take are left out."""
    step_time = clock.step_time
    longest = step_time.model.max_model_len
    num_seqs, context_len = PARTS_DECODE
    error = step_time.known_error
    return {
        "schema_version": 1,
        "kind": "step_times",
        "config": {
            "model": step_time.model.name,
            "gpu": step_time.gpu.name,
            "policy": clock.policy,
            "vllm_version": clock.vllm_version,
            "tensor_parallel_size": step_time.tensor_parallel_size,
            **asdict(clock.types),
            "enforce_eager": clock.enforce_eager,
            "async_scheduling": clock.async_scheduling,
        },
        "decodes": [
            decode_entry(clock, num_seqs, context_len)
            for num_seqs in DECODE_SEQS
            for context_len in _up_to(longest, CONTEXTS)
        ],
        "prefills": [prefill_entry(clock, n) for n in _up_to(longest, PREFILLS)],
        "parts": {
            "decode": decode_entry(clock, num_seqs, min(context_len, longest)),
            "prefill": prefill_entry(clock, min(PARTS_PREFILL, longest)),
        },
        "overhead": asdict(step_time.overhead),
        "known_error": None if error is None else asdict(error),
        "evidence": clock.evidence,
        "notes": list(clock.notes),
    }


def decode_entry(clock: "EngineClock", num_seqs: int, context_len: int) -> Document:
    """One decode step of so many sequences, and the share of each part in it."""
    from harness.engine_clock import decode_shape

    return {
        "num_seqs": num_seqs,
        "context_len": context_len,
        **_times(clock, decode_shape(num_seqs, context_len)),
    }


def prefill_entry(clock: "EngineClock", num_tokens: int) -> Document:
    """One step that computes a prompt, and the share of each part in it."""
    from harness.engine_clock import prefill_shape

    return {"num_tokens": num_tokens, **_times(clock, prefill_shape(num_tokens))}


def _times(clock: "EngineClock", shape: "BatchShape") -> Document:
    from harness.engine_clock import FS_PER_MS

    parts = clock.step_time.parts(shape)
    shares = {
        name.removesuffix("_fs"): part_fs / parts.total_fs
        for name, part_fs in parts._asdict().items()
    }
    return {"step_ms": parts.total_fs / FS_PER_MS, "shares": shares}


def _up_to(longest: int, lengths: Sequence[int]) -> list[int]:
    """The lengths that a model takes; its longest if it takes none of them."""
    return [length for length in lengths if length <= longest] or [longest]


# -- screen ----------------------------------------------------------------------------


def print_step_times(document: Document, style: TableStyle) -> None:
    """Print the screen, or one row a step with the shares of its parts."""
    if style is not TableStyle.RICH:
        headers = ("phase", "num_seqs", "context_len", "num_tokens", "step_ms", *PARTS)
        print(render_table(headers, list(_rows(document)), style))
        return
    from bench_cli.console import Screen

    screen = Screen()
    screen.spread(title_of(document["config"]), "simulated")
    for note in document["notes"]:
        screen.aside(note)
    screen.line()
    _print_decodes(screen, document["decodes"])
    _print_prefills(screen, document["prefills"])
    _print_parts(screen, document["parts"])
    screen.facts(
        [
            ("overhead", overhead_of(document)),
            ("evidence", document["evidence"]),
        ]
    )


def title_of(config: Document) -> str:
    """What was timed, in one line."""
    from bench_cli.console import join

    num_gpus = config["tensor_parallel_size"]
    machine = config["gpu"] if num_gpus == 1 else f"{num_gpus} x {config['gpu']}"
    return join(
        f"{config['model']} on {machine}, as vLLM {config['vllm_version']}"
        f" ({config['policy']})",
        *(
            words + config[name]
            for name, words in TYPES.items()
            if config[name] not in (None, "auto")
        ),
        "no CUDA graphs" if config["enforce_eager"] else "",
        "async scheduling" if config["async_scheduling"] else "",
    )


def overhead_of(document: Document) -> str:
    """What the engine adds in this configuration, in words."""
    config, overhead = document["config"], document["overhead"]
    left_out = {"launch_ns"} if not config["enforce_eager"] else set()
    if config["tensor_parallel_size"] == 1:
        left_out |= {"rank_ns", "shared_seq_ns"}
    added = [
        f"{_duration(overhead[name])} {what}"
        for name, what in OVERHEADS.items()
        if overhead[name] and name not in left_out
    ]
    return f"{', '.join(added) or 'none'}; from {overhead['source']}"


def _duration(nanoseconds: int) -> str:
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1000:g} µs"
    return f"{nanoseconds / 1_000_000:g} ms"


def _rows(document: Document) -> Iterable[Row]:
    for entry in document["decodes"]:
        length = entry["context_len"]
        yield "decode", entry["num_seqs"], length, None, *_figures(entry)
    for entry in document["prefills"]:
        yield "prefill", 1, None, entry["num_tokens"], *_figures(entry)


def _figures(entry: Document) -> list[float]:
    return [entry["step_ms"], *entry["shares"].values()]


def _print_decodes(screen: "Screen", entries: list[Document]) -> None:
    contexts = list(dict.fromkeys(entry["context_len"] for entry in entries))
    rows = [
        [f"{entries[start]['num_seqs']:,}"]
        + [_ms(entry["step_ms"]) for entry in entries[start : start + len(contexts)]]
        for start in range(0, len(entries), len(contexts))
    ]
    screen.line("decode: ms a step, by sequences and by the length of each", "bold")
    headers = ["sequences", *(f"{length:,} tokens" for length in contexts)]
    _print_right(screen, headers, rows)


def _print_prefills(screen: "Screen", entries: list[Document]) -> None:
    screen.line("prefill: ms of a step that computes one prompt", "bold")
    rows = [[f"{entry['num_tokens']:,}", _ms(entry["step_ms"])] for entry in entries]
    _print_right(screen, ["tokens", "ms"], rows)


def _print_parts(screen: "Screen", parts: Document) -> None:
    """Print a row for each part that takes any time in either of the steps."""
    steps = (parts["decode"], parts["prefill"])
    headers = [
        "share",
        f"{steps[0]['num_seqs']} decodes of {steps[0]['context_len']:,}",
        f"a prompt of {steps[1]['num_tokens']:,}",
    ]
    rows = [
        [title, *(format_share(step["shares"][name]) for step in steps)]
        for name, title in PARTS.items()
        if any(step["shares"][name] for step in steps)
    ]
    rows.append(["all, ms", *(_ms(step["step_ms"]) for step in steps)])
    screen.line("where the time of a step goes", "bold")
    _print_right(screen, headers, rows)


def _print_right(screen: "Screen", headers: list[str], rows: list[list[str]]) -> None:
    """Print a table in which all but the first column end where it ends."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    widths[0] = 0
    lines = [
        [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        for row in (headers, *rows)
    ]
    screen.table(lines[0], lines[1:])


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds >= 99.95 else f"{milliseconds:.2f}"


# -- plot ------------------------------------------------------------------------------


def plot_step_times(clock: "EngineClock", document: Document, path: Path) -> None:
    """Draw step time against decoding sequences and against tokens of a prompt.

    Raises:
        UsageError: The file cannot be written.
    """
    from bench_cli.plots import save_plot

    save_plot(
        path,
        title_of(document["config"]),
        [_decode_panel(clock), _prefill_panel(clock)],
        f"Simulated. {document['evidence'][:1].upper()}{document['evidence'][1:]}.",
    )


def _decode_panel(clock: "EngineClock") -> "Panel":
    from bench_cli.plots import Curve, Panel

    seqs = range(1, DECODE_SEQS[-1] + 1)
    curves = [
        Curve(f"{length:,}", seqs, [clock.decode_ms(n, length) for n in seqs])
        for length in reversed(_up_to(clock.step_time.model.max_model_len, CONTEXTS))
    ]
    return Panel("decode", "decoding sequences", "ms a step", "tokens in each", curves)


def _prefill_panel(clock: "EngineClock") -> "Panel":
    from bench_cli.plots import Curve, Panel

    tokens = _spread(clock.step_time.model.max_model_len)
    curve = Curve("", tokens, [clock.prefill_ms(n) for n in tokens])
    return Panel(
        "prefill of one prompt", "tokens of the prompt", "ms a step", "", [curve]
    )


def _spread(longest: int) -> list[int]:
    """Lengths of prompts, sixteen to a doubling."""
    most = min(MOST_PLOTTED_PREFILL, longest)
    least = min(LEAST_PLOTTED_PREFILL, most)
    lengths = {most}
    step = 0
    while (length := round(least * 2 ** (step / 16))) < most:
        lengths.add(length)
        step += 1
    return sorted(lengths)
