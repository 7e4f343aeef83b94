"""How much swap space v0 asks for: what a run took, and the most that it could take."""

from dataclasses import dataclass

import numpy as np

from harness.config import EngineConfig
from harness.run_columns import IntArray
from harness.workload import Workload
from results.comparison.arm import ArmRun

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapNeed:
    """Blocks of the CPU, on each GPU's side.

    Attributes:
        seen_blocks: Most that swapped requests held at once; None without swap space.
        worst_blocks: What all would hold that can run at once, swapped out together at
            their full length.
        block_bytes: Of one block on one GPU.
    """

    seen_blocks: int | None
    worst_blocks: int
    block_bytes: int

    @property
    def seen_gib(self) -> float | None:
        """The most that was held, in GiB."""
        if self.seen_blocks is None:
            return None
        return self.seen_blocks * self.block_bytes / GIB

    @property
    def worst_gib(self) -> float:
        """The most that can be held, in GiB."""
        return self.worst_blocks * self.block_bytes / GIB


def swap_need(workload: Workload, config: EngineConfig, run: ArmRun) -> SwapNeed:
    """What a run of the requests took, and could take."""
    return SwapNeed(
        seen_blocks=run.summary["kv_cache"]["peak_cpu_blocks"],
        worst_blocks=worst_blocks(workload, config),
        block_bytes=config.block_bytes,
    )


def worst_blocks(workload: Workload, config: EngineConfig) -> int:
    """The most blocks that requests which can run at once may swap out.

    A request of one sample is computed again instead, unless told otherwise; one of
    ``n`` swaps the blocks of its prompt and ``n`` times those of an output. No more run
    at once than ``max_num_seqs`` lets in, nor more than have room for their prompts,
    where no two can share these. Each bound is met with the requests that bring most for
    what they take of it, the last of them in part.

    Source: vLLM 0.5.5 ``core/scheduler.py``, ``_preempt`` and ``_schedule_default``.
    """
    requests = [workload.request(row) for row in range(len(workload))]
    is_any = config.preemption_mode == "swap"
    size = config.block_size
    rows = np.array(
        [
            (r.num_demand_blocks(size), r.n, -(-r.num_prompt_tokens // size))
            for r in requests
            if (r.n > 1 or is_any) and config.preemption_mode != "recompute"
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    blocks, seqs, prompts = rows.T
    most = _most(blocks, seqs, config.max_num_seqs)
    if not config.enable_prefix_caching:
        most = min(most, _most(blocks, prompts, config.num_gpu_blocks))
    return most


def _most(values: IntArray, costs: IntArray, limit: int) -> int:
    """The largest sum of values whose costs stay within a limit, rounded up."""
    order = np.argsort(-values / np.maximum(costs, 1), kind="stable")
    spent = np.cumsum(costs[order])
    whole = int(np.searchsorted(spent, limit, side="right"))
    total = int(values[order[:whole]].sum())
    if whole == len(order):
        return total
    left = limit - (int(spent[whole - 1]) if whole else 0)
    last = order[whole]
    return total + -(-int(values[last]) * left // int(costs[last]))
