"""Options of an engine, under the names that vLLM gives them.

One that was not given is None: the library then takes the default of the vLLM version
in force.
"""

from enum import StrEnum
from typing import Annotated

import typer


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


def version_given(text: str | None) -> str | None:
    """The version, if it is not empty; None where the flag was not given."""
    if text is not None and not text.strip():
        raise typer.BadParameter("it is empty; give one as 0.32.0, or leave it out")
    return text


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
