"""Memory to number of blocks: what is left for the KV cache, and how it is cut.

A first version, to be refined: bf16 dense models, no pipeline parallelism,
no CUDA graphs. docs/capacity.md lists its error on published rows.
"""

from dataclasses import dataclass
from typing import Literal

from profiles.errors import CapacityError
from profiles.gpu import GpuProfile
from profiles.model import ModelProfile

GIB = 2**30

SAMPLER_BYTES_PER_LOGIT = 38.9
"""Peak of logits, their fp32 copy, and the sort of top-k and top-p, per logit.

Source: memory.csv, vLLM 0.11.0 on H100 at 1,024 sequences: 4.76 GiB for a vocabulary of
128,256 and 5.64 for 151,936 are 38.9 bytes both, at TP 1 and at TP 2.
"""

NON_TORCH_GIB = 0.13
"""CUDA context and libraries at TP 1. Source: memory.csv, four rows (0.13 and 0.14)."""

NON_TORCH_TP_GIB = 0.54
"""The same with NCCL. Source: memory.csv, Qwen3-32B at TP 2, the one row there is."""

MAX_GIB = 1_000_000
"""More memory than any GPU or host has; what exceeds it is a slip of the pen."""

MAX_BLOCKS = 10_000_000
"""Most blocks of a pool: a run keeps books of each one."""

MAX_IN_A_BATCH = 2**31 - 1
"""Most tokens or sequences of a batch, as a 32-bit number counts them."""

SourceOfBlocks = Literal["estimated", "kv_cache_gib", "override"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Blocks of one GPU, and the memory they came from; all GPUs plan the same.

    Attributes:
        num_gpu_blocks: Blocks on each GPU, at least 1.
        num_cpu_blocks: Blocks of swap space for each GPU.
        block_bytes: Bytes of one block on one GPU.
        kv_cache_gib: Memory that the blocks are cut from; may hold a part block more.
        source_of_num_gpu_blocks: ``estimated`` from the other fields, or given.
    """

    num_gpu_blocks: int
    num_cpu_blocks: int
    block_bytes: int
    kv_cache_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    source_of_num_gpu_blocks: SourceOfBlocks


@dataclass(frozen=True, slots=True)
class _Budget:
    total_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float

    @property
    def kv_cache_gib(self) -> float:
        used = self.weights_gib + self.activation_gib + self.non_torch_gib
        return self.total_gib - used


def plan_blocks(
    model: ModelProfile,
    gpu: GpuProfile,
    *,
    block_size: int,
    gpu_memory_utilization: float,
    swap_space_gib: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    kv_cache_gib: float | None = None,
    num_gpu_blocks_override: int | None = None,
    num_cpu_blocks_override: int | None = None,
) -> BlockPlan:
    """Cut the memory that the engine leaves for the KV cache into blocks.

    ``num_gpu_blocks_override`` and then ``kv_cache_gib`` (both per GPU) replace the
    estimate; the rest of the plan is still filled in. ``swap_space_gib`` is per GPU.

    Raises:
        CapacityError: No block fits, or a value means nothing.

    Source: vLLM 0.5.5 worker.py ``determine_num_available_blocks``.
    """
    _check_utilization(gpu_memory_utilization)
    _check_range(0, MAX_GIB, swap_space=swap_space_gib)
    _check_range(
        1,
        MAX_IN_A_BATCH,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    block_bytes = model.block_bytes(block_size, tensor_parallel_size)
    budget = _Budget(
        total_gib=gpu.memory_gib * gpu_memory_utilization,
        weights_gib=model.weight_bytes / tensor_parallel_size / GIB,
        activation_gib=activation_gib(
            model, max_num_batched_tokens, max_num_seqs, tensor_parallel_size
        ),
        non_torch_gib=NON_TORCH_GIB if tensor_parallel_size == 1 else NON_TORCH_TP_GIB,
    )
    num_gpu_blocks, cache_gib, source = _gpu_blocks(
        budget, block_bytes, kv_cache_gib, num_gpu_blocks_override
    )
    return BlockPlan(
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=_cpu_blocks(swap_space_gib, block_bytes, num_cpu_blocks_override),
        block_bytes=block_bytes,
        kv_cache_gib=cache_gib,
        weights_gib=budget.weights_gib,
        activation_gib=budget.activation_gib,
        non_torch_gib=budget.non_torch_gib,
        source_of_num_gpu_blocks=source,
    )


def activation_gib(
    model: ModelProfile,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
) -> float:
    """Peak of the profiling run: the MLP of all tokens, or the sampler of all rows.

    The MLP holds gate, up and their product beside three hidden vectors per token; the
    sampler works on the whole vocabulary on every GPU.

    Source: vllm issue 10517 (Llama-3.1-8B): 2.07 GiB at 20,000 tokens, 2.99 at 29,000.
    """
    per_gpu = 3 * model.intermediate_size / tensor_parallel_size
    mlp_bytes_per_token = model.bytes_per_param * (per_gpu + 3 * model.hidden_size)
    num_rows = min(max_num_seqs, max_num_batched_tokens)
    sampler_bytes = SAMPLER_BYTES_PER_LOGIT * num_rows * model.vocab_size
    return max(max_num_batched_tokens * mlp_bytes_per_token, sampler_bytes) / GIB


def blocks_in(memory_gib: float, block_bytes: int) -> int:
    """Whole blocks that fit, as the engine rounds; never negative."""
    return max(0, int(memory_gib * GIB // block_bytes))


def _gpu_blocks(
    budget: _Budget, block_bytes: int, kv_cache_gib: float | None, override: int | None
) -> tuple[int, float, SourceOfBlocks]:
    if kv_cache_gib is not None:
        _check_cache(kv_cache_gib, block_bytes)
    if override is not None:
        _check_range(1, MAX_BLOCKS, num_gpu_blocks_override=override)
        return override, override * block_bytes / GIB, "override"
    if kv_cache_gib is not None:
        num_blocks = blocks_in(kv_cache_gib, block_bytes)
        _check_count("num_gpu_blocks", num_blocks, "kv_cache_gib")
        return num_blocks, kv_cache_gib, "kv_cache_gib"
    _check_fits(budget, block_bytes)
    num_blocks = blocks_in(budget.kv_cache_gib, block_bytes)
    _check_count("num_gpu_blocks", num_blocks, "gpu_memory_utilization")
    return num_blocks, budget.kv_cache_gib, "estimated"


def _cpu_blocks(swap_space_gib: float, block_bytes: int, override: int | None) -> int:
    if override is not None:
        _check_range(0, MAX_BLOCKS, num_cpu_blocks_override=override)
        return override
    num_blocks = blocks_in(swap_space_gib, block_bytes)
    _check_count("num_cpu_blocks", num_blocks, "swap_space")
    return num_blocks


def _check_cache(kv_cache_gib: float, block_bytes: int) -> None:
    if not kv_cache_gib * GIB >= block_bytes:  # so that NaN is refused too
        raise CapacityError(
            f"kv_cache_gib is {kv_cache_gib:g}",
            f"one block takes {block_bytes / GIB:.4f} GiB",
            "give the cache more memory or make block_size smaller",
        )
    _check_range(0, MAX_GIB, kv_cache_gib=kv_cache_gib)


def _check_count(name: str, num_blocks: int, knob: str) -> None:
    """Refuse more blocks than a run can keep books of."""
    if num_blocks > MAX_BLOCKS:
        raise CapacityError(
            f"{name} comes to {num_blocks:,}",
            f"a run keeps books of at most {MAX_BLOCKS:,} blocks",
            f"lower {knob} or raise block_size",
        )


def _check_fits(budget: _Budget, block_bytes: int) -> None:
    block_gib = block_bytes / GIB
    if budget.kv_cache_gib >= block_gib:
        return
    raise CapacityError(
        f"{budget.total_gib:.2f} GiB are allowed on each GPU, and weights"
        f" ({budget.weights_gib:.2f}), activations ({budget.activation_gib:.2f}) and"
        f" CUDA ({budget.non_torch_gib:.2f}) leave {budget.kv_cache_gib:.2f} GiB",
        f"one block of the KV cache needs {block_gib:.4f} GiB",
        "raise tensor_parallel_size or gpu_memory_utilization, lower"
        " max_num_batched_tokens or max_num_seqs, or take a smaller model",
    )


def _check_utilization(gpu_memory_utilization: float) -> None:
    if not 0 < gpu_memory_utilization <= 1:
        raise CapacityError(
            f"gpu_memory_utilization is {gpu_memory_utilization:g}",
            "it is a share of the GPU, above 0 and at most 1",
            "leave it out for vLLM's own default",
        )


def _check_range(least: int, most: int, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:  # so that NaN is refused too
            needed = f"it must be at least {least}"
            remedy = f"give {least} or more, or leave it out"
        elif value > most:
            needed = f"it must be at most {most:,}"
            remedy = f"give {most:,} or less, or leave it out"
        else:
            continue
        raise CapacityError(f"{name} is {_shown(value)}", needed, remedy)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"
