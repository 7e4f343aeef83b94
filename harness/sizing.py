"""How many blocks fit, and the questions around it.

The knobs are settled as for a run; nothing is replayed.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from harness.config.knobs import GivenKnobs, Scheduling
from harness.config.model_type import ModelTypes
from harness.config.pool import deployment_of, given_sizes
from harness.config.resolve import settle
from harness.config.v0 import note_on_block_size_v0
from harness.config.v1 import note_on_block_size_v1
from harness.config.version import in_force
from harness.errors import ConfigError, UsageError
from harness.kv_figures import (
    headroom,
    holds_longest_request,
    max_concurrency,
    notes_on_plan,
    num_cache_tokens,
)
from profiles.capacity import (
    MAX_BLOCKS,
    BlockPlan,
    blocks_in,
    plan_blocks,
    rank_layouts,
)
from profiles.errors import CapacityError
from profiles.gpu import GpuProfile, load_gpu
from profiles.memory import GIB, Deployment
from profiles.model import ModelProfile
from profiles.startup_log import StartupLog
from profiles.vllm_version import LONG_CONTEXT_TOKENS

MOST_OF_HOST = 0.7
"""Share of the host's memory that CPU blocks may take.

Source: vLLM 0.5.5 ``config.py``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What an engine would have, and what that is good for.

    Attributes:
        kv_cache_tokens: Tokens that its KV cache holds, as vLLM prints them.
        max_concurrency: Requests of ``max_model_len`` that fit, as vLLM prints it.
        max_model_len_that_fits: The longest with which it starts; None if with none.
        headroom_gib: Memory of a GPU that neither the budget nor CUDA graphs take.
        notes: What the user should know.
    """

    policy: str
    model: ModelProfile
    gpu: GpuProfile
    deployment: Deployment
    scheduling: Scheduling
    plan: BlockPlan
    kv_cache_tokens: int
    max_concurrency: float
    max_model_len_that_fits: int | None
    headroom_gib: float
    notes: tuple[str, ...]

    @property
    def starts(self) -> bool:
        """Whether one request of ``max_model_len`` fits, as vLLM asks at start."""
        return holds_longest_request(self.deployment, self.scheduling, self.plan)

    @property
    def host_memory_gib(self) -> float:
        """CPU memory for blocks, all GPUs together."""
        swap_gib = (self.scheduling.swap_space or 0.0) * self.deployment.num_gpus
        return swap_gib + self.scheduling.kv_offloading_size


class Sizer:
    """Sizes one model on one kind of GPU under changing knobs.

    Args:
        model: A name, or the path of a profile.
        gpu: The same.
        policy: ``v0`` or ``v1``; by the version if not given.
        vllm_version: The installed one, else the newest known, if not given.
        log: What such an engine printed at start, with the knobs of the first sizing.
        dtype: Of the weights.
        quantization: The same.
        kv_cache_dtype: Of the KV cache.

    Raises:
        ProfileError: An unknown name, version or type.
        UsageError: A policy that does not cover the version.
        ConfigError: A type that the version or the GPU does not have.
    """

    def __init__(
        self,
        *,
        model: str,
        gpu: str,
        policy: str | None = None,
        vllm_version: str | None = None,
        log: StartupLog | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        kv_cache_dtype: str | None = None,
    ) -> None:
        if log is not None and vllm_version is None:
            vllm_version = log.vllm_version
        types = ModelTypes(
            dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype
        )
        self.gpu = load_gpu(gpu)
        self._chosen = in_force(policy, vllm_version, gpu=self.gpu, options=asdict(types))
        self.model = types.load(model)
        total_gib = None if log is None else log.total_gpu_gib
        if total_gib is not None and total_gib > 0:
            self.gpu = replace(self.gpu, memory_gib=total_gib)
        types.check(self._chosen.vllm_version, self.gpu, self.model)
        self._notes_on_types = types.notes(self._chosen.vllm_version, self.gpu)
        self._log = log
        self._correction_gib: float | None = None

    @property
    def policy(self) -> str:
        """Whose scheduler and block manager are sized."""
        return self._chosen.policy

    def size(self, **knobs: Unpack[GivenKnobs]) -> Sizing:
        """Size an engine with these knobs; the first time also by the log.

        Raises:
            UsageError: A knob that the policy, or this version, does not have.
            ConfigError: Knobs with which vLLM would not start.
            CapacityError: No block fits.
        """
        if self._log is not None and self._correction_gib is None:
            deployment, scheduling, plan = self._plan_as_printed(knobs, self._log)
        else:
            deployment, scheduling, plan = self._plan(knobs)
        return Sizing(
            policy=self._chosen.policy,
            model=self.model,
            gpu=self.gpu,
            deployment=deployment,
            scheduling=scheduling,
            plan=plan,
            kv_cache_tokens=num_cache_tokens(deployment, scheduling, plan),
            max_concurrency=max_concurrency(deployment, scheduling, plan),
            max_model_len_that_fits=self._longest_that_fits(knobs),
            headroom_gib=headroom(self.gpu, deployment, plan.budget),
            notes=(
                *self._chosen.notes,
                *self._notes_on_types,
                *(self._log.notes if self._log is not None else ()),
                *self._note_on_block_size(deployment.block_size),
                *notes_on_plan(self.gpu, deployment, plan),
            ),
        )

    def _note_on_block_size(self, block_size: int) -> list[str]:
        if self._chosen.policy == "v0":
            return note_on_block_size_v0(block_size)
        return note_on_block_size_v1(self._chosen.vllm_version, block_size)

    def smallest_utilization(self, num_tokens: int, **knobs: Unpack[GivenKnobs]) -> float:
        """The smallest utilization, in whole hundredths, that holds so many tokens.

        Raises:
            UsageError: The size of the pool is given.
            CapacityError: None does.
        """
        if _gives_pool(knobs):
            raise UsageError(
                "--kv-tokens asks for a utilization, and --kv-cache-gib and"
                " --num-gpu-blocks-override set the pool whatever it is; leave them out"
            )

        def falls_short(hundredths: int) -> bool:
            share = hundredths / 100
            try:
                found = self._plan({**knobs, "gpu_memory_utilization": share})
            except CapacityError:
                return True
            return num_cache_tokens(*found) < num_tokens

        if not falls_short(100):
            return ((_last_true(falls_short, 1, 99) or 0) + 1) / 100
        raise CapacityError(
            f"{num_tokens:,} tokens do not fit on each GPU",
            "not even utilization 1 holds them",
            "raise tensor_parallel_size, or keep fewer tokens",
        )

    def _plan(self, knobs: GivenKnobs) -> tuple[Deployment, Scheduling, BlockPlan]:
        limits, scheduling = settle(self._chosen, self.model, self.gpu, knobs)
        deployment = deployment_of(self._chosen.vllm_version, knobs, limits)
        if self.gpu.is_host and not _gives_pool(knobs):
            raise ConfigError(
                "on the CPU the KV cache is what VLLM_CPU_KVCACHE_SPACE says, or a share"
                " of what is free at the start; give --kv-cache-gib"
            )
        given = given_sizes(self.model, deployment, knobs, scheduling)
        given = replace(given, correction_gib=self._correction_gib)
        return (
            deployment,
            scheduling,
            plan_blocks(self.model, self.gpu, deployment, given),
        )

    def _plan_as_printed(
        self, knobs: GivenKnobs, log: StartupLog
    ) -> tuple[Deployment, Scheduling, BlockPlan]:
        """The plan with what the log says; what it does not say is corrected by it."""
        limits, _ = settle(self._chosen, self.model, self.gpu, knobs)
        deployment = deployment_of(self._chosen.vllm_version, knobs, limits)
        num_blocks = _printed_blocks(self.model, deployment, log)
        known: GivenKnobs = {**knobs, "num_gpu_blocks_override": num_blocks}
        deployment, scheduling, plan = self._plan(known)
        kv_cache_gib = plan.kv_cache_gib
        if log.kv_cache_gib is not None:
            kv_cache_gib = min(log.kv_cache_gib, kv_cache_gib + plan.block_bytes / GIB)
        self._correction_gib = plan.budget.corrected(kv_cache_gib).correction_gib
        printed = _printed_parts(log)
        return (
            deployment,
            scheduling,
            replace(
                plan,
                kv_cache_gib=kv_cache_gib,
                budget=replace(plan.budget, **printed).corrected(kv_cache_gib),
                source_of_num_gpu_blocks="log",
            ),
        )

    def _longest_that_fits(self, knobs: GivenKnobs) -> int | None:
        """The longest ``max_model_len`` that starts.

        The batch limits follow it where nobody set them, and above 32,768 tokens v0 turns
        to chunks: a longer one may leave more room. On either side of that longer is
        tighter.
        """

        def starts(max_model_len: int) -> bool:
            changed: GivenKnobs = {**knobs, "max_model_len": max_model_len}
            try:
                return holds_longest_request(*self._plan(changed))
            except (ConfigError, CapacityError):
                return False

        longest = self.model.max_model_len
        found = _last_true(starts, LONG_CONTEXT_TOKENS + 1, longest)
        return found or _last_true(starts, 1, min(LONG_CONTEXT_TOKENS, longest))


def _last_true(is_true: Callable[[int], bool], low: int, high: int) -> int | None:
    """The last number from ``low`` to ``high`` for which it holds; the first ones do."""
    if low > high or not is_true(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if is_true(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _printed_blocks(model: ModelProfile, deployment: Deployment, log: StartupLog) -> int:
    """Blocks of a GPU as the log says, or as follows from the tokens or memory in it.

    Raises:
        CapacityError: The log says nothing of them, or that there were none.
    """
    layout = rank_layouts(model, deployment)[0]
    num_blocks = log.num_gpu_blocks
    # With several groups tokens are those of the longest requests, not of blocks.
    has_tokens = log.kv_tokens_reliable is not False and layout.num_groups == 1
    if num_blocks is None and has_tokens and log.kv_cache_tokens is not None:
        num_blocks = log.kv_cache_tokens // layout.block_size
    if num_blocks is None and log.kv_cache_gib is not None:
        num_blocks = blocks_in(log.kv_cache_gib, layout.block_bytes)
    if num_blocks is None:
        raise CapacityError(
            "the log names neither blocks nor tokens nor memory of the KV cache",
            "one of them has to be there",
            "give the whole output of the start, or --kv-cache-gib",
        )
    if not 1 <= num_blocks <= MAX_BLOCKS:
        raise CapacityError(
            f"the log says that {num_blocks:,} blocks fitted",
            f"an engine needs at least one, and {MAX_BLOCKS:,} are the most",
            "raise gpu_memory_utilization or tensor_parallel_size, or mend the log",
        )
    return num_blocks


def _printed_parts(log: StartupLog) -> dict[str, Any]:
    """What the log says of where the memory went."""
    printed = {
        "weights_gib": log.weights_gib,
        "activation_gib": log.activation_gib,
        "non_torch_gib": log.non_torch_gib,
        "cuda_graph_gib": log.cuda_graph_gib,
    }
    # vLLM has printed graphs below 0, where something else was freed meanwhile.
    return {name: max(0.0, gib) for name, gib in printed.items() if gib is not None}


def refuse_beyond_host(sizing: Sizing, host_memory_gib: float) -> None:
    """Refuse CPU blocks that the host has no memory for.

    Raises:
        UsageError: A host without memory.
        ConfigError: They take more than vLLM allows.

    Source: vLLM 0.5.5 ``config.py`` ``verify_with_parallel_config``.
    """
    if not 0 < host_memory_gib < math.inf:
        raise UsageError(f"--host-memory-gib is {host_memory_gib:g}; it must exceed 0")
    if sizing.host_memory_gib > MOST_OF_HOST * host_memory_gib:
        raise ConfigError(
            f"the CPU blocks of {sizing.deployment.num_gpus} GPUs take"
            f" {sizing.host_memory_gib:g} of {host_memory_gib:g} GiB of host memory, more"
            f" than {MOST_OF_HOST:.0%}; lower --swap-space or --kv-offloading-size"
        )


def _gives_pool(knobs: GivenKnobs) -> bool:
    """Whether the size of the KV cache is among the knobs."""
    given = (knobs.get("kv_cache_gib"), knobs.get("num_gpu_blocks_override"))
    return given != (None, None)
