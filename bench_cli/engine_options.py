"""Options of an engine, under the names that vLLM gives them.

One that was not given is None: the library then takes the default of the vLLM version
in force.
"""

from enum import StrEnum
from functools import partial
from typing import Annotated

import typer


class Engine(StrEnum):
    """What executes the batches."""

    SIM = "sim"
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


# Under which heading of the help an option stands.
model_option = partial(typer.Option, rich_help_panel="Model and GPU")
engine_option = partial(typer.Option, rich_help_panel="Engine")
kv_cache_option = partial(typer.Option, rich_help_panel="KV cache")
scheduler_option = partial(typer.Option, rich_help_panel="Scheduler")

Model = Annotated[
    str, model_option("--model", help="Hugging Face id, config.json or folder.")
]
Gpu = Annotated[str, model_option("--gpu", help="GPU, or a .toml file of one.")]
TensorParallelSize = Annotated[
    int, model_option("--tensor-parallel-size", "-tp", min=1, help="Number of GPUs.")
]
PipelineParallelSize = Annotated[
    int,
    model_option("--pipeline-parallel-size", "-pp", min=1, help="Stages of layers."),
]
Dtype = Annotated[
    str | None, model_option("--dtype", help="Type of unquantised weights; the model's.")
]
QuantizationMethod = Annotated[
    str | None,
    model_option("--quantization", "-q", help="Of the weights; the model's by default."),
]
KvCacheDtype = Annotated[
    str | None,
    kv_cache_option(
        "--kv-cache-dtype", help="Type of the KV cache; the model's, or fp8."
    ),
]
EnforceEager = Annotated[
    bool, model_option("--enforce-eager", help="Capture no CUDA graphs.")
]
NumDraftLayers = Annotated[
    int,
    model_option("--num-draft-layers", min=0, help="Layers of a draft head."),
]
PerformanceModeName = Annotated[
    PerformanceMode | None,
    engine_option("--performance-mode", help="What vLLM's own defaults aim at."),
]
VllmVersion = Annotated[
    str | None,
    engine_option(
        "--vllm-version",
        callback=version_given,
        help="Release whose defaults are in force; the installed one, else 0.32.0.",
    ),
]
PolicyName = Annotated[
    Policy | None,
    engine_option(
        "--policy", help="Block manager; the version's own: v1 from 0.8 on, else v0."
    ),
]
EngineName = Annotated[Engine, engine_option("--engine", help="What runs batches.")]
GpuMemoryUtilization = Annotated[
    float | None,
    kv_cache_option("--gpu-memory-utilization", help="Share of memory vLLM may use."),
]
KvCacheGib = Annotated[
    float | None,
    kv_cache_option("--kv-cache-gib", help="KV cache per GPU in GiB, as measured."),
]
NumGpuBlocks = Annotated[
    int | None,
    kv_cache_option(
        "--num-gpu-blocks-override", min=1, help="GPU blocks, whatever fits."
    ),
]
NumCpuBlocks = Annotated[
    int | None,
    kv_cache_option(
        "--num-cpu-blocks-override", min=0, help="CPU blocks, whatever fits."
    ),
]
BlockSize = Annotated[
    int | None, kv_cache_option("--block-size", help="Tokens in a block.")
]
SwapSpace = Annotated[
    float | None,
    kv_cache_option("--swap-space", help="v0: CPU memory per GPU for swapping, in GiB."),
]
KvOffloadingSize = Annotated[
    float | None,
    kv_cache_option(
        "--kv-offloading-size",
        help="v1: CPU memory for computed blocks, in GiB over all GPUs.",
    ),
]
PrefixCaching = Annotated[
    bool | None,
    kv_cache_option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse blocks of prompts that begin alike.",
    ),
]
ChunkedPrefill = Annotated[
    bool | None,
    scheduler_option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        help="Split long prompts and batch them with decodes.",
    ),
]
MaxModelLen = Annotated[
    int | None, scheduler_option("--max-model-len", help="Longest prompt plus output.")
]
MaxNumSeqs = Annotated[
    int | None, scheduler_option("--max-num-seqs", help="Most sequences in a batch.")
]
MaxNumBatchedTokens = Annotated[
    int | None,
    scheduler_option("--max-num-batched-tokens", help="Most tokens in a batch."),
]
Watermark = Annotated[
    float | None,
    scheduler_option("--watermark", help="Share of blocks that admission leaves free."),
]
Preemption = Annotated[
    PreemptionMode | None,
    scheduler_option("--preemption-mode", help="v0: for every request; else by its n."),
]
AsyncScheduling = Annotated[
    bool | None,
    scheduler_option(
        "--async-scheduling/--no-async-scheduling",
        help="v1: schedule a step while the one before it runs.",
    ),
]
SchedulingPolicyName = Annotated[
    SchedulingPolicy | None,
    scheduler_option(
        "--scheduling-policy", help="v1: who is served first; fcfs by default."
    ),
]
LongPrefillTokenThreshold = Annotated[
    int | None,
    scheduler_option(
        "--long-prefill-token-threshold",
        help="v1: most tokens of one prompt in a batch; 0 for no limit.",
    ),
]
SchedulerReserveFullIsl = Annotated[
    bool | None,
    scheduler_option(
        "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
        help="v1: admit a prompt only where all of it fits.",
    ),
]
