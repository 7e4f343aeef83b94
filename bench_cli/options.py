"""Flags that several commands share, under the names that vLLM gives them.

A flag that was not given is None: the library then takes the default of the vLLM
version in force.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

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


class PreemptionMode(StrEnum):
    """What happens to the blocks of a preempted request."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


_ENGINE = "Engine (vLLM's own flags)"
_WORKLOAD = "Workload"
_OUTPUT = "Output"

Trace = Annotated[Path, typer.Argument(help="Trace file.", show_default=False)]

Model = Annotated[
    str, _option(_ENGINE, "--model", help="Hugging Face id, folder or config.json.")
]
Gpu = Annotated[str, _option(_ENGINE, "--gpu", help="GPU profile.")]
TensorParallelSize = Annotated[
    int, _option(_ENGINE, "--tensor-parallel-size", "-tp", min=1, help="Number of GPUs.")
]
VllmVersion = Annotated[
    str | None,
    _option(_ENGINE, "--vllm-version", help="Release whose defaults are in force."),
]
PolicyName = Annotated[Policy, _option(_ENGINE, "--policy", help="Block manager.")]
EngineName = Annotated[Engine, _option(_ENGINE, "--engine", help="What runs batches.")]
GpuMemoryUtilization = Annotated[
    float | None,
    _option(_ENGINE, "--gpu-memory-utilization", help="Share of memory vLLM may use."),
]
KvCacheGib = Annotated[
    float | None,
    _option(_ENGINE, "--kv-cache-gib", help="KV cache per GPU in GiB, as measured."),
]
NumGpuBlocks = Annotated[
    int | None,
    _option(_ENGINE, "--num-gpu-blocks-override", help="GPU blocks, whatever fits."),
]
NumCpuBlocks = Annotated[
    int | None,
    _option(_ENGINE, "--num-cpu-blocks-override", help="CPU blocks, whatever fits."),
]
BlockSize = Annotated[
    int | None, _option(_ENGINE, "--block-size", help="Tokens in a block.")
]
SwapSpace = Annotated[
    float | None,
    _option(_ENGINE, "--swap-space", help="CPU memory per GPU for swapping, in GiB."),
]
PrefixCaching = Annotated[
    bool | None,
    _option(
        _ENGINE,
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse blocks of prompts that begin alike.",
    ),
]
ChunkedPrefill = Annotated[
    bool | None,
    _option(
        _ENGINE,
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        help="Split long prompts and batch them with decodes.",
    ),
]
MaxModelLen = Annotated[
    int | None, _option(_ENGINE, "--max-model-len", help="Longest prompt plus output.")
]
MaxNumSeqs = Annotated[
    int | None, _option(_ENGINE, "--max-num-seqs", help="Most sequences in a batch.")
]
MaxNumBatchedTokens = Annotated[
    int | None,
    _option(_ENGINE, "--max-num-batched-tokens", help="Most tokens in a batch."),
]
Watermark = Annotated[
    float | None,
    _option(_ENGINE, "--watermark", help="Share of blocks that admission leaves free."),
]
Preemption = Annotated[
    PreemptionMode | None,
    _option(_ENGINE, "--preemption-mode", help="For every request; else by its n."),
]

Format = Annotated[
    str | None,
    _option(_WORKLOAD, "--format", help="Format of the trace; recognised if not given."),
]
Limit = Annotated[
    int | None,
    _option(_WORKLOAD, "--limit", min=1, help="First requests only (of the slice)."),
]
Slice = Annotated[
    str | None,
    _option(_WORKLOAD, "--slice", metavar="A:B", help="Requests A to B - 1, from 0."),
]
RequestRate = Annotated[
    str | None,
    _option(
        _WORKLOAD,
        "--request-rate",
        metavar="RATE",
        help="New arrival times at 4 (or 4/s, 240/min, inf) instead of the trace's.",
    ),
]
Burstiness = Annotated[
    float | None,
    _option(
        _WORKLOAD,
        "--burstiness",
        help="Shape of the gaps under --request-rate; 1 (default) is Poisson.",
    ),
]
Seed = Annotated[
    int | None,
    _option(_WORKLOAD, "--seed", min=0, help="For --request-rate; 0 by default."),
]
MaxConcurrency = Annotated[
    int | None,
    _option(_WORKLOAD, "--max-concurrency", min=1, help="Most requests in the engine."),
]
Speedup = Annotated[
    str | None,
    _option(
        _WORKLOAD, "--speedup", metavar="FACTOR", help="Divide all times of the trace."
    ),
]
SkipBadRows = Annotated[
    bool, _option(_WORKLOAD, "--skip-bad-rows", help="Count bad rows and go on.")
]

SloText = Annotated[
    str | None,
    _option(
        _OUTPUT, "--slo", metavar="LIMITS", help="Per request, as ttft=2s,tpot=50ms."
    ),
]
AsJson = Annotated[bool, _option(_OUTPUT, "--json", help="One JSON document on stdout.")]
OutputFolder = Annotated[
    Path | None,
    _option(
        _OUTPUT,
        "--output",
        "-o",
        help="Run folder to write; .blockbench/runs/<time>-<name> by default.",
    ),
]
Force = Annotated[
    bool, _option(_OUTPUT, "--force", help="Replace the run that -o names.")
]
Check = Annotated[
    bool, _option(_OUTPUT, "--check", help="Prove the block manager's books each step.")
]
Table = Annotated[
    TableStyle,
    _option(_OUTPUT, "--table", help="The screen (rich), or one table of all figures."),
]
