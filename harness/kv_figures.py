"""What the blocks of a plan are good for, as vLLM counts it."""

import math

from harness.config.knobs import Scheduling
from profiles.capacity import BlockPlan
from profiles.gpu import GpuProfile
from profiles.memory import Budget, Deployment
from profiles.vllm_version import VllmVersion, parse_version

NULL_BLOCK_COUNTED_SINCE = VllmVersion(0, 25)
"""From here on the check at start knows that one block is never handed out.

Source: vllm pull 47272, merged in July 2026, which 0.32.0 has; 0.25 is the first release
that can have it.
"""

TOKENS_BY_CONCURRENCY_SINCE = VllmVersion(0, 27)
"""From here on the tokens printed are those of as many longest requests as fit.

Source: vllm issue 51041; 0.32.0 ``v1/core/kv_cache_utils.py``.
"""

SPARE_GIB = 0.15
"""What has to stay free beside CUDA graphs.

Source: vllm issue 57475, where a capture asked for 136 MiB and found 121.
"""


MOST_OF_UNIFIED = 0.85
"""Utilization above which sharing memory with the host is warned of; less may freeze it.

Source: vllm issues 13131, 35920 and 46307, where 0.70 took 112 of 119 GiB.
"""


def _step_tokens(deployment: Deployment, scheduling: Scheduling) -> int:
    """Most tokens of a request that are being computed at a time."""
    num_batches = 2 if scheduling.async_scheduling else 1
    return num_batches * deployment.max_num_batched_tokens


def _request_blocks(
    deployment: Deployment, scheduling: Scheduling, plan: BlockPlan
) -> int:
    return plan.layout.num_request_blocks(
        deployment.max_model_len, _step_tokens(deployment, scheduling)
    )


def holds_longest_request(
    deployment: Deployment, scheduling: Scheduling, plan: BlockPlan
) -> bool:
    """Whether a request of ``max_model_len`` fits, as vLLM asks at start."""
    release = parse_version(deployment.vllm_version)
    num_reserved = 1 if release >= NULL_BLOCK_COUNTED_SINCE else 0
    num_needed = _request_blocks(deployment, scheduling, plan)
    return num_needed <= plan.num_gpu_blocks - num_reserved


def max_concurrency(
    deployment: Deployment, scheduling: Scheduling, plan: BlockPlan
) -> float:
    """Requests of the full length that fit, as vLLM prints them."""
    return plan.num_gpu_blocks / _request_blocks(deployment, scheduling, plan)


def num_cache_tokens(
    deployment: Deployment, scheduling: Scheduling, plan: BlockPlan
) -> int:
    """Tokens that the KV cache holds, as vLLM prints them."""
    release = parse_version(deployment.vllm_version)
    if plan.layout.num_groups > 1 and release >= TOKENS_BY_CONCURRENCY_SINCE:
        concurrency = max_concurrency(deployment, scheduling, plan)
        return int(concurrency * deployment.max_model_len)
    return plan.layout.num_tokens(plan.num_gpu_blocks)


def headroom(gpu: GpuProfile, deployment: Deployment, budget: Budget) -> float:
    """GiB of a GPU outside the budget, less graphs that the budget does not hold."""
    outside_gib = gpu.memory_gib * (1 - deployment.gpu_memory_utilization)
    return outside_gib - (0.0 if budget.is_graph_counted else budget.cuda_graph_gib)


def notes_on_plan(gpu: GpuProfile, deployment: Deployment, plan: BlockPlan) -> list[str]:
    """What the user should know of a plan that fits."""
    notes = []
    if gpu.is_unified and deployment.gpu_memory_utilization > MOST_OF_UNIFIED:
        notes.append(
            f"{gpu.name} shares its memory with the host, which needs some of it, page"
            f" cache included: keep utilization at {MOST_OF_UNIFIED:g} or below, or give"
            " --kv-cache-gib"
        )
    headroom_gib = headroom(gpu, deployment, plan.budget)
    if headroom_gib < SPARE_GIB:
        spare = SPARE_GIB - headroom_gib
        utilization = deployment.gpu_memory_utilization - spare / gpu.memory_gib
        notes.append(
            f"CUDA graphs take about {plan.budget.cuda_graph_gib:.2f} GiB, and"
            f" utilization {deployment.gpu_memory_utilization:g} leaves"
            f" {headroom_gib:.2f} GiB beside them:"
            f" {math.floor(100 * utilization) / 100:g} leaves {SPARE_GIB} GiB"
        )
    most_tokens = deployment.max_num_seqs * deployment.max_model_len
    num_tokens = plan.layout.num_tokens(plan.num_gpu_blocks)
    if num_tokens > most_tokens:
        notes.append(
            f"{deployment.max_num_seqs:,} sequences of {deployment.max_model_len:,}"
            f" tokens can fill {most_tokens:,} of {num_tokens:,} tokens: the rest only"
            " keeps prefixes, or a lower utilization frees it"
        )
    return notes
