"""``blockbench trace``: look at a trace, or make one up."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.flags import takes_flags
from bench_cli.options import path_given
from bench_cli.quantity import (
    format_count,
    format_duration,
    format_number_of,
    format_share,
    parse_rate,
)
from bench_cli.workload import SourceFlags

trace_app = typer.Typer(no_args_is_help=True, help="Look at a trace, or make one up.")


@trace_app.command()
@takes_flags
def inspect(
    file: options.Trace,
    *,
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens in a block, for the ideal hit rate.")
    ] = 16,
    source: SourceFlags,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
) -> None:
    """Show requests and lengths, and how much prompts share.

    That is what an endless cache would find of them in earlier ones.
    """
    from harness.traces.inspection import inspect_workload  # brings numpy

    workload = source.open(file)
    known = inspect_workload(workload, block_size=block_size)
    document = {"schema_version": 1, "kind": "trace", **known}
    deliver(document, as_json=as_json, output=output)
    if not as_json:
        _print(document)


@trace_app.command()
def generate(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            parser=path_given,
            metavar="FILE",
            help="File to write.",
            show_default=False,
        ),
    ],
    num_requests: Annotated[
        int, typer.Option(min=1, help="Requests in all; each turn is one.")
    ] = 1000,
    input_len: Annotated[
        int, typer.Option(min=1, help="Mean new prompt tokens of a turn.")
    ] = 1024,
    output_len: Annotated[
        int, typer.Option(min=1, help="Mean output tokens of a sample.")
    ] = 128,
    range_ratio: Annotated[
        float,
        typer.Option(
            help="Lengths are uniform whole numbers in [L*(1-r), L*(1+r)], r from 0 to"
            " below 1: the definition of 'vllm bench serve' since April 2025 (vLLM"
            " #16126)."
        ),
    ] = 0.0,
    request_rate: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="4, 4/s, 240/min; later turns count, so conversations start at this"
            " rate divided by --turns. inf: all at once.",
        ),
    ] = "inf",
    burstiness: Annotated[
        float,
        typer.Option(help="Shape of the gamma gaps: 1 is Poisson, inf is constant."),
    ] = 1.0,
    prefix_len: Annotated[
        int, typer.Option(min=0, help="Tokens of a shared prefix, before --input-len.")
    ] = 0,
    num_prefixes: Annotated[
        int, typer.Option(min=1, help="Different prefixes, drawn evenly.")
    ] = 1,
    turns: Annotated[
        int,
        typer.Option(
            min=1, help="Turns of a conversation; each waits for the one before."
        ),
    ] = 1,
    think_time: Annotated[
        float,
        typer.Option(help="Mean seconds between turns, exponentially distributed."),
    ] = 0.0,
    n: Annotated[
        int,
        typer.Option("--n", min=1, help="Samples of a prompt; the first is continued."),
    ] = 1,
    n_fraction: Annotated[
        float, typer.Option(help="Share of conversations that draw --n samples, not 1.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed gives the same bytes.")
    ] = 0,
    note: Annotated[
        str, typer.Option(help="What readers should know; kept in the file.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Make a trace up.

    Lengths, rate and seed have the defaults of 'vllm bench serve'.
    """
    from harness.traces.generation import GenerateOptions, generate_trace

    options = GenerateOptions(
        num_requests=num_requests,
        input_len=input_len,
        output_len=output_len,
        range_ratio=range_ratio,
        request_rate=parse_rate(request_rate),
        burstiness=burstiness,
        prefix_len=prefix_len,
        num_prefixes=num_prefixes,
        turns=turns,
        think_time=think_time,
        n=n,
        n_fraction=n_fraction,
        seed=seed,
    )
    generate_trace(output, options, note=note, force=force)
    typer.echo(f"wrote {output}: {format_number_of(num_requests, 'request')}", err=True)


def _print(document: dict[str, Any]) -> None:
    from bench_cli.console import Screen, join

    screen = Screen()
    screen.spread(
        join(document["name"], document["format"]),
        "generated" if document["is_generated"] else "",
    )
    screen.facts(
        [
            ("requests", _requests(document)),
            ("duration", format_duration(document["duration_s"])),
            ("ideal hits", _ideal_hits(document)),
        ]
    )
    names = ("mean", "p50", "p90", "p99", "max")
    screen.table(
        ["tokens", *names],
        [
            [label, *(format_count(document[key][name]) for name in names)]
            for label, key in (("input", "input_tokens"), ("output", "output_tokens"))
        ],
    )
    for note in document["notes"]:
        screen.line(f"- {note}")


def _requests(document: dict[str, Any]) -> str:
    skipped = document["skipped_by_reason"]
    reasons = ", ".join(f"{count:,} {why}" for why, count in skipped.items())
    counted = f"{document['num_requests']:,}"
    if not skipped:
        return counted
    bad_rows = format_number_of(document["num_skipped"], "bad row")
    return f"{counted}, and {bad_rows} skipped: {reasons}"


def _ideal_hits(document: dict[str, Any]) -> str:
    if not document["has_sharing"]:
        return "n/a (the trace does not say which prompts begin alike)"
    rate, size = document["ideal_hit_rate"], document["block_size"]
    return f"{format_share(rate)} of full blocks of {size} tokens, with endless cache"
