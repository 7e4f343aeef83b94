"""Options that several commands share, of traces, of requests and of what is written."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench_cli.engine_options import model_option
from bench_cli.tables import TableStyle


def path_given(text: str) -> Path:
    """The path, if it names a file: an empty text would mean the folder one is in."""
    if not text:
        raise typer.BadParameter("it is empty; name what to write")
    if text == "-":
        raise typer.BadParameter("- is no file's name; name one, or ./- if it is")
    return Path(text)


def trace_given(text: str) -> Path:
    """The path of a trace; an empty text would mean the folder one is in."""
    if not text:
        raise typer.BadParameter("it is empty; name a trace file")
    if text == "-":
        raise typer.BadParameter("- is no trace; name a file, or /dev/stdin")
    return Path(text)


DocumentFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        parser=path_given,
        metavar="FILE",
        help="Write the JSON document to this file.",
    ),
]

Trace = Annotated[
    Path, typer.Argument(parser=trace_given, metavar="TRACE", help="Trace file.")
]

HostMemoryGib = Annotated[
    float | None,
    typer.Option("--host-memory-gib", help="Memory of the host, for a check."),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        "--kv-tokens", min=1, help="Find the smallest utilization that holds so many."
    ),
]
FromLog = Annotated[
    Path | None,
    typer.Option(
        "--from-log",
        parser=path_given,
        metavar="FILE",
        help="What vLLM printed at its start with these flags; replaces estimates.",
    ),
]
Vary = Annotated[
    str | None,
    typer.Option(
        "--vary",
        metavar="KNOB=VALUES",
        help="One row a value: gpu_memory_utilization=0.8..0.96, block_size=16,32.",
    ),
]

# Under which heading of the help an option stands.
trace_option = partial(typer.Option, rich_help_panel="Trace")
load_option = partial(typer.Option, rich_help_panel="Load")

Format = Annotated[
    str | None,
    trace_option("--format", help="Format of the trace; recognised if not given."),
]
Limit = Annotated[
    int | None,
    trace_option("--limit", min=1, help="First requests only (of the slice)."),
]
Slice = Annotated[
    str | None,
    trace_option("--slice", metavar="A:B", help="Requests A to B - 1, from 0."),
]
RequestRate = Annotated[
    str | None,
    load_option(
        "--request-rate",
        metavar="RATE",
        help="New arrival times at 4 (or 4/s, 240/min, inf) instead of the trace's.",
    ),
]
Burstiness = Annotated[
    float | None,
    load_option(
        "--burstiness",
        help="Shape of the gaps under --request-rate; 1 (default) is Poisson.",
    ),
]
Seed = Annotated[
    int | None,
    load_option("--seed", min=0, help="For --request-rate; 0 by default."),
]
MaxConcurrency = Annotated[
    int | None,
    load_option("--max-concurrency", min=1, help="Most requests in the engine."),
]
Speedup = Annotated[
    str | None,
    load_option("--speedup", metavar="FACTOR", help="Divide all times of the trace."),
]
SkipBadRows = Annotated[
    bool, trace_option("--skip-bad-rows", help="Count bad rows and go on.")
]

SloText = Annotated[
    str | None,
    typer.Option(
        "--slo",
        metavar="LIMITS",
        help="Limits, as ttft=2s,tpot=50ms (of a request), ttft_p99=5s (of the run).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        parser=path_given,
        metavar="FOLDER",
        help="Run folder to write; .blockbench/runs/<time>-<name> by default.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the run that -o names.")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Check the books of blocks after each decision."),
]
Table = Annotated[
    TableStyle,
    typer.Option("--table", help="The screen (rich), or one table of all figures."),
]

GpuOfSteps = Annotated[
    str | None,
    typer.Option("--gpu", help="With a model: step times on this GPU, or .toml of one."),
]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        parser=path_given,
        metavar="FILE",
        help="Draw step times into this .png, .svg or .pdf.",
    ),
]
ForcePlot = Annotated[
    bool, typer.Option("--force", help="Replace the file that --plot names.")
]

ProfileName = Annotated[
    str, typer.Argument(metavar="NAME", help="A model or a GPU, or a file of one.")
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder, a run's name or a part of it, or last.",
    ),
]
RunsFolder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="Where to look; .blockbench/runs by default."),
]
Requests = Annotated[bool, typer.Option("--requests", help="One row a request.")]
Steps = Annotated[bool, typer.Option("--steps", help="One row a stretch of equal steps.")]
RowLimit = Annotated[int | None, typer.Option("--limit", min=1, help="First rows only.")]

MeasuredIn = Annotated[
    list[str],
    typer.Option(
        "--from",
        metavar="RUN|FILE",
        help="A stored run, a CSV of loads or of steps, or a result of vllm bench serve;"
        " may be repeated.",
    ),
]
MeasuredModel = Annotated[
    str | None,
    model_option("--model", help="Model that was measured; a run knows its own."),
]
MeasuredGpu = Annotated[
    str | None,
    model_option("--gpu", help="GPU to begin from; a run knows its own."),
]
MeasuredTensorParallelSize = Annotated[
    int | None,
    model_option("--tensor-parallel-size", "-tp", min=1, help="Number of GPUs; 1."),
]
CalibrationName = Annotated[
    str | None,
    typer.Option("--name", help="What --gpu will call it; <gpu>-<model> by default."),
]
FittedNames = Annotated[
    str | None,
    typer.Option(
        "--fit",
        metavar="NAMES",
        help="Coefficients to fit, as memory,compute; all that the figures tell by"
        " default.",
    ),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        parser=path_given,
        metavar="FILE",
        help="File to write; .blockbench/calibrations/NAME.toml by default.",
    ),
]
ForceCalibration = Annotated[
    bool, typer.Option("--force", help="Replace a calibration that is there.")
]

Compared = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE|RUN",
        help="A trace to replay with each setting, or stored runs, as show finds them.",
    ),
]
VaryArms = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="KNOB=VALUES",
        help="An arm a value: block_size=16,32,64, watermark=0,0.02, policy=v0,v1; may"
        " be repeated for a grid. The first is the baseline.",
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="RUN",
        help="Compare with this stored run; repeated for the repeats of a measured one.",
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITIONS",
        help='Exit with 6 if one is met, as "ttft_p99>+10%,hit_rate<-2pp"; may be'
        " repeated.",
    ),
]


class Allowed(StrEnum):
    """What may differ between stored runs if one says so."""

    TRACE = "trace"
    HARDWARE = "hardware"
    MODEL = "model"
    UNFINISHED = "unfinished"


Allow = Annotated[
    list[Allowed] | None,
    typer.Option("--allow", help="Compare although this differs; may be repeated."),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Processes at a time; one a CPU."),
]
