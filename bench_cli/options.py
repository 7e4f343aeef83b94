"""Flags that several commands share, under the names that vLLM gives them.

A flag that was not given is None: the library then takes the default of the vLLM
version in force.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench_cli.tables import TableStyle


class Engine(StrEnum):
    """What executes the batches."""

    SIM = "sim"
    TORCH = "torch"
    VLLM = "vllm"
    SERVER = "server"


class Policy(StrEnum):
    """Whose block manager and scheduler decide."""

    V0 = "v0"
    V1 = "v1"


class SchedulingPolicy(StrEnum):
    """In which order requests are served."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PerformanceMode(StrEnum):
    """What the defaults of a deployment aim at."""

    BALANCED = "balanced"
    INTERACTIVITY = "interactivity"
    THROUGHPUT = "throughput"


class PreemptionMode(StrEnum):
    """What happens to the blocks of a preempted request."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


def path_given(text: str) -> Path:
    """The path, if there is one: an empty text would mean the folder one is in."""
    if not text:
        raise typer.BadParameter("it is empty; name what to write")
    return Path(text)


def trace_given(text: str) -> Path:
    """The path of a trace; an empty text would mean the folder one is in."""
    if not text:
        raise typer.BadParameter("it is empty; name a trace file")
    return Path(text)


def version_given(text: str | None) -> str | None:
    """The version, if it is not empty; None where the flag was not given."""
    if text is not None and not text.strip():
        raise typer.BadParameter("it is empty; give one as 0.32.0, or leave it out")
    return text


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

Model = Annotated[
    str, typer.Option("--model", help="Hugging Face id, config.json or folder.")
]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU, or a .toml file of one.")]
TensorParallelSize = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", min=1, help="Number of GPUs.")
]
PipelineParallelSize = Annotated[
    int,
    typer.Option("--pipeline-parallel-size", "-pp", min=1, help="Stages of layers."),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="Type of unquantised weights; the model's.")
]
QuantizationMethod = Annotated[
    str | None,
    typer.Option("--quantization", "-q", help="Of the weights; the model's by default."),
]
KvCacheDtype = Annotated[
    str | None,
    typer.Option("--kv-cache-dtype", help="Type of the KV cache; the model's, or fp8."),
]
EnforceEager = Annotated[
    bool, typer.Option("--enforce-eager", help="Capture no CUDA graphs.")
]
NumDraftLayers = Annotated[
    int,
    typer.Option("--num-draft-layers", min=0, help="Layers of a draft head."),
]
PerformanceModeName = Annotated[
    PerformanceMode | None,
    typer.Option("--performance-mode", help="What vLLM's own defaults aim at."),
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
VllmVersion = Annotated[
    str | None,
    typer.Option(
        "--vllm-version",
        callback=version_given,
        help="Release whose defaults are in force; the installed one, else 0.32.0.",
    ),
]
PolicyName = Annotated[
    Policy | None,
    typer.Option(
        "--policy", help="Block manager: v1, or v0 if --vllm-version is below 0.11."
    ),
]
EngineName = Annotated[Engine, typer.Option("--engine", help="What runs batches.")]
GpuMemoryUtilization = Annotated[
    float | None,
    typer.Option("--gpu-memory-utilization", help="Share of memory vLLM may use."),
]
KvCacheGib = Annotated[
    float | None,
    typer.Option("--kv-cache-gib", help="KV cache per GPU in GiB, as measured."),
]
NumGpuBlocks = Annotated[
    int | None,
    typer.Option("--num-gpu-blocks-override", min=1, help="GPU blocks, whatever fits."),
]
NumCpuBlocks = Annotated[
    int | None,
    typer.Option("--num-cpu-blocks-override", min=0, help="CPU blocks, whatever fits."),
]
BlockSize = Annotated[int | None, typer.Option("--block-size", help="Tokens in a block.")]
SwapSpace = Annotated[
    float | None,
    typer.Option("--swap-space", help="v0: CPU memory per GPU for swapping, in GiB."),
]
KvOffloadingSize = Annotated[
    float | None,
    typer.Option(
        "--kv-offloading-size",
        help="v1: CPU memory for computed blocks, in GiB over all GPUs.",
    ),
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse blocks of prompts that begin alike.",
    ),
]
ChunkedPrefill = Annotated[
    bool | None,
    typer.Option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        help="Split long prompts and batch them with decodes.",
    ),
]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="Longest prompt plus output.")
]
MaxNumSeqs = Annotated[
    int | None, typer.Option("--max-num-seqs", help="Most sequences in a batch.")
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option("--max-num-batched-tokens", help="Most tokens in a batch."),
]
Watermark = Annotated[
    float | None,
    typer.Option("--watermark", help="Share of blocks that admission leaves free."),
]
Preemption = Annotated[
    PreemptionMode | None,
    typer.Option("--preemption-mode", help="v0: for every request; else by its n."),
]
AsyncScheduling = Annotated[
    bool | None,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="v1: schedule a step while the one before it runs.",
    ),
]
SchedulingPolicyName = Annotated[
    SchedulingPolicy | None,
    typer.Option("--scheduling-policy", help="v1: who is served first; fcfs by default."),
]
LongPrefillTokenThreshold = Annotated[
    int | None,
    typer.Option(
        "--long-prefill-token-threshold",
        help="v1: most tokens of one prompt in a batch; 0 for no limit.",
    ),
]
SchedulerReserveFullIsl = Annotated[
    bool | None,
    typer.Option(
        "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
        help="v1: admit a prompt only where all of it fits.",
    ),
]

Format = Annotated[
    str | None,
    typer.Option("--format", help="Format of the trace; recognised if not given."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="First requests only (of the slice)."),
]
Slice = Annotated[
    str | None,
    typer.Option("--slice", metavar="A:B", help="Requests A to B - 1, from 0."),
]
RequestRate = Annotated[
    str | None,
    typer.Option(
        "--request-rate",
        metavar="RATE",
        help="New arrival times at 4 (or 4/s, 240/min, inf) instead of the trace's.",
    ),
]
Burstiness = Annotated[
    float | None,
    typer.Option(
        "--burstiness",
        help="Shape of the gaps under --request-rate; 1 (default) is Poisson.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="For --request-rate; 0 by default."),
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option("--max-concurrency", min=1, help="Most requests in the engine."),
]
Speedup = Annotated[
    str | None,
    typer.Option("--speedup", metavar="FACTOR", help="Divide all times of the trace."),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Count bad rows and go on.")
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
        metavar="[RUN]",
        help="Run folder, a run's name or a part of it, or last.",
    ),
]
RunsFolder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]", help="Where to look; .blockbench/runs by default."
    ),
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
    typer.Option("--model", help="Model that was measured; a run knows its own."),
]
MeasuredGpu = Annotated[
    str | None,
    typer.Option("--gpu", help="GPU to begin from; a run knows its own."),
]
MeasuredTensorParallelSize = Annotated[
    int | None,
    typer.Option("--tensor-parallel-size", "-tp", min=1, help="Number of GPUs; 1."),
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
