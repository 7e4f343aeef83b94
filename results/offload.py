"""What the CPU tier under a v1 pool took, gave back and gave up."""

from dataclasses import dataclass

from results.columns import Columns
from results.measured import NotMeasuredError
from results.run_info import RunInfo


def has_offload_tier(info: RunInfo) -> bool:
    """CPU blocks lie under the GPU blocks of a v1 engine, as far as is known."""
    return info.policy == "v1" and (info.config["num_cpu_blocks"] or 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTraffic:
    """Blocks that went to the tier and came from it.

    Attributes:
        num_stored: Copied to the tier.
        num_loaded: Copied from it.
        num_evictions: Given up for others: stored, and not there any more.
        num_kept: There at the end.
    """

    num_stored: int
    num_loaded: int
    num_evictions: int
    num_kept: int

    @classmethod
    def of(cls, steps: Columns) -> "OffloadTraffic":
        """What the rows say; a store counts from when it begins."""
        stored = steps.total("num_offload_store_blocks")
        kept = int(steps["num_used_cpu_blocks"][-1:].sum())
        return cls(
            num_stored=stored,
            num_loaded=steps.total("num_offload_load_blocks"),
            num_evictions=stored - kept,
            num_kept=kept,
        )


def block_bytes_of_all_ranks(info: RunInfo) -> int:
    """Bytes of a block in the tier, which holds the parts of all GPUs.

    Raises:
        NotMeasuredError: Nobody knows the size of a block.
    """
    if info.config["block_bytes"] is None:
        raise NotMeasuredError("block_bytes")
    num_ranks: int = info.config.get("tensor_parallel_size", 1)
    return int(info.config["block_bytes"]) * num_ranks
