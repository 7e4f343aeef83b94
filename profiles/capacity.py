"""Memory to number of blocks: what is left for the KV cache, and how it is cut.

docs/capacity.md says what each term rests on; docs/fidelity.md lists its error on
published rows.
"""

from dataclasses import dataclass, replace
from typing import Literal

from profiles.errors import CapacityError
from profiles.gpu import GpuProfile
from profiles.kv_layout import KvLayout, kv_layout
from profiles.memory import GIB, Budget, Deployment, budgets
from profiles.model import ModelProfile
from profiles.pipeline import stages
from profiles.vllm_v1 import is_hybrid_allocator_default

MAX_GIB = 1_000_000
"""More memory than any GPU or host has; what exceeds it is a slip of the pen."""

MAX_BLOCKS = 10_000_000
"""Most blocks of a pool: a run keeps books of each one."""

MAX_IN_A_BATCH = 2**31 - 1
"""Most tokens or sequences of a batch, as a 32-bit number counts them."""

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that are tried when a model does not fit."""

ESTIMATE_ERROR_ROWS = (13, 16)
"""Published rows within ``ESTIMATE_ERROR_GIB``, and rows in all."""

ESTIMATE_ERROR_GIB = (-1.7, 0.3)
"""What most published KV caches were at most smaller and larger than the estimate.

Source: docs/fidelity.md, flags alone, vLLM 0.5 and later.
"""

SourceOfBlocks = Literal["estimated", "kv_cache_gib", "override", "log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSizes:
    """Sizes that somebody knows; they replace the estimate. All are per GPU.

    Attributes:
        kv_cache_gib: Memory of the KV cache.
        num_gpu_blocks_override: Blocks, whatever fits.
        num_cpu_blocks_override: The same on the CPU.
        swap_space_gib: CPU memory for swapped blocks.
        correction_gib: What the KV cache was larger than the estimate on this machine.
    """

    kv_cache_gib: float | None = None
    num_gpu_blocks_override: int | None = None
    num_cpu_blocks_override: int | None = None
    swap_space_gib: float = 0.0
    correction_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Blocks of one GPU, and the memory they came from.

    Of the ranks the smallest decides: all are told to use as many blocks as it has.

    Attributes:
        num_gpu_blocks: Blocks on each GPU, at least 1.
        num_cpu_blocks: Blocks of swap space for each GPU.
        kv_cache_gib: Memory that the blocks are cut from; may hold a part block more.
        interval: Fewest and most blocks that the published errors of the estimate allow.
        budget: Where the memory of the deciding rank goes.
        layout: How its KV cache is cut.
        source_of_num_gpu_blocks: ``estimated`` from the other fields, or given.
    """

    num_gpu_blocks: int
    num_cpu_blocks: int
    kv_cache_gib: float
    interval: tuple[int, int]
    budget: Budget
    layout: KvLayout
    source_of_num_gpu_blocks: SourceOfBlocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on the deciding GPU."""
        return self.layout.block_bytes


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank of a stage: its memory and its layout."""

    budget: Budget
    layout: KvLayout

    def num_blocks(self, kv_cache_gib: float) -> int:
        return blocks_in(kv_cache_gib, self.layout.block_bytes)

    def beside_host_blocks(self, num_cpu_blocks: int) -> "_Rank":
        """The same where CPU blocks lie in the GPU's own memory."""
        host_gib = num_cpu_blocks * self.layout.block_bytes / GIB
        return replace(self, budget=replace(self.budget, host_blocks_gib=host_gib))

    def holds_a_request_of(self, deployment: Deployment) -> bool:
        num_needed = self.layout.num_request_blocks(
            deployment.max_model_len, 2 * deployment.max_num_batched_tokens
        )
        return self.num_blocks(self.budget.kv_cache_gib) > num_needed


def plan_blocks(
    model: ModelProfile,
    gpu: GpuProfile,
    deployment: Deployment,
    given: GivenSizes | None = None,
) -> BlockPlan:
    """Cut the memory that the engine leaves for the KV cache into blocks.

    Raises:
        CapacityError: No block fits, or a value means nothing.

    Source: vLLM 0.5.5 worker.py ``determine_num_available_blocks``, 0.32.0
    gpu_worker.py ``determine_available_memory``.
    """
    given = given or GivenSizes()
    _check(deployment, given)
    ranks = _ranks(model, gpu, deployment, given.correction_gib or 0.0)
    num_cpu_blocks = _cpu_blocks(given, ranks)
    if gpu.is_unified:
        ranks = [rank.beside_host_blocks(num_cpu_blocks) for rank in ranks]
    rank, cache_gib, num_blocks, source = _gpu_blocks(ranks, given)
    if source == "estimated":
        if num_blocks < 1:
            raise _does_not_fit(model, gpu, deployment, rank)
        _check_count("num_gpu_blocks", num_blocks, "gpu_memory_utilization")
    interval = num_blocks, num_blocks
    if source == "estimated" and given.correction_gib is None:
        fewest, most = (rank.num_blocks(cache_gib + gib) for gib in ESTIMATE_ERROR_GIB)
        interval = fewest, most
    return BlockPlan(
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_cpu_blocks,
        kv_cache_gib=cache_gib,
        interval=interval,
        budget=rank.budget,
        layout=rank.layout,
        source_of_num_gpu_blocks=source,
    )


def blocks_in(memory_gib: float, block_bytes: int) -> int:
    """Whole blocks that fit, as the engine rounds; never negative."""
    return max(0, int(memory_gib * GIB // block_bytes))


def fewest_gpus(model: ModelProfile, gpu: GpuProfile, deployment: Deployment) -> int:
    """The smallest tensor parallel size that holds a request of ``max_model_len``.

    0 if none of ``GPU_COUNTS`` does.
    """
    for size in GPU_COUNTS:
        wider = replace(deployment, tensor_parallel_size=size)
        try:
            ranks = _ranks(model, gpu, wider, 0.0)
        except CapacityError:
            continue
        if all(rank.holds_a_request_of(wider) for rank in ranks):
            return size
    return 0


def rank_layouts(model: ModelProfile, deployment: Deployment) -> list[KvLayout]:
    """How a rank of each pipeline stage cuts its KV cache.

    Raises:
        CapacityError: The layers or heads cannot be shared out like that.
    """
    of_stages = stages(model, deployment.pipeline_parallel_size)
    return [
        kv_layout(
            model,
            block_size=deployment.block_size,
            tensor_parallel_size=deployment.tensor_parallel_size,
            layers=layers,
            has_groups=is_hybrid_allocator_default(deployment.vllm_version),
            num_draft_layers=(
                deployment.num_draft_layers if layers == of_stages[-1] else 0
            ),
        )
        for layers in of_stages
    ]


def _ranks(
    model: ModelProfile, gpu: GpuProfile, deployment: Deployment, correction_gib: float
) -> list[_Rank]:
    """A rank of each stage."""
    return [
        _Rank(replace(budget, correction_gib=correction_gib), layout)
        for budget, layout in zip(
            budgets(model, gpu, deployment), rank_layouts(model, deployment), strict=True
        )
    ]


def _gpu_blocks(
    ranks: list[_Rank], given: GivenSizes
) -> tuple[_Rank, float, int, SourceOfBlocks]:
    """The rank with the fewest blocks, its KV cache, its blocks and their source."""
    largest = max(ranks, key=lambda rank: rank.layout.block_bytes)
    block_bytes = largest.layout.block_bytes
    if given.kv_cache_gib is not None:
        _check_cache(given.kv_cache_gib, block_bytes)
    override = given.num_gpu_blocks_override
    if override is not None:
        _check_range(1, MAX_BLOCKS, num_gpu_blocks_override=override)
        return largest, override * block_bytes / GIB, override, "override"
    if given.kv_cache_gib is not None:
        num_blocks = largest.num_blocks(given.kv_cache_gib)
        _check_count("num_gpu_blocks", num_blocks, "kv_cache_gib")
        return largest, given.kv_cache_gib, num_blocks, "kv_cache_gib"
    smallest = min(
        ranks, key=lambda rank: rank.budget.kv_cache_gib / rank.layout.block_bytes
    )
    cache_gib = smallest.budget.kv_cache_gib
    return smallest, cache_gib, smallest.num_blocks(cache_gib), "estimated"


def _cpu_blocks(given: GivenSizes, ranks: list[_Rank]) -> int:
    override = given.num_cpu_blocks_override
    if override is not None:
        _check_range(0, MAX_BLOCKS, num_cpu_blocks_override=override)
        return override
    block_bytes = max(rank.layout.block_bytes for rank in ranks)
    num_blocks = blocks_in(given.swap_space_gib, block_bytes)
    _check_count("num_cpu_blocks", num_blocks, "swap_space")
    return num_blocks


def _does_not_fit(
    model: ModelProfile, gpu: GpuProfile, deployment: Deployment, rank: _Rank
) -> CapacityError:
    budget, block_gib = rank.budget, rank.layout.block_bytes / GIB
    graphs = f", CUDA graphs ({budget.cuda_graph_gib:.2f})"
    num_gpus = fewest_gpus(model, gpu, deployment)
    remedy = "lower max_num_batched_tokens or max_num_seqs, or take a smaller model"
    if num_gpus > deployment.tensor_parallel_size:
        remedy = (
            f"it starts on {num_gpus} GPUs: tensor_parallel_size {num_gpus}; or {remedy}"
        )
    elif not num_gpus:
        remedy = f"not even {GPU_COUNTS[-1]} of these GPUs hold it; {remedy}"
    return CapacityError(
        f"{budget.total_gib:.2f} GiB are allowed on each GPU, and weights"
        f" ({budget.weights_gib:.2f}), activations ({budget.activation_gib:.2f})"
        f"{graphs if budget.is_graph_counted else ''} and"
        f" CUDA ({budget.non_torch_gib:.2f}) leave {budget.kv_cache_gib:.2f} GiB",
        f"one block of the KV cache needs {block_gib:.4f} GiB",
        f"raise gpu_memory_utilization; {remedy}",
    )


def _check(deployment: Deployment, given: GivenSizes) -> None:
    _check_utilization(deployment.gpu_memory_utilization)
    _check_range(0, MAX_GIB, swap_space=given.swap_space_gib)
    _check_range(
        1,
        MAX_IN_A_BATCH,
        block_size=deployment.block_size,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=deployment.max_num_seqs,
    )


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
