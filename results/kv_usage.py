"""How full the KV cache was: peak, mean and course over time, and wasted slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.record import StepRecord
from results.statistics import FloatArray, column


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUsage:
    """Shares between 0 and 1; None when no step ran or no block was used.

    Attributes:
        peak_usage: Most blocks held by sequences at once, of all GPU blocks.
        mean_usage: The same averaged over time, from the first step's start to the last
            step's end; time without a step counts as empty.
        fragmentation: Token slots left empty in used blocks, averaged over the time in
            which blocks were used.
    """

    peak_usage: float | None
    mean_usage: float | None
    fragmentation: float | None


def kv_usage(
    steps: Sequence[StepRecord], *, num_gpu_blocks: int, block_size: int
) -> KvUsage:
    """Usage over all steps.

    Within a stretch of equal steps, used blocks rise evenly from the first to the last.
    """
    if not steps or num_gpu_blocks < 1:
        return KvUsage(peak_usage=None, mean_usage=None, fragmentation=None)
    peak = max(max(s.num_used_blocks, s.num_used_blocks_end) for s in steps)
    times, area = _block_time(steps)
    span = times[-1] - times[0]
    return KvUsage(
        peak_usage=peak / num_gpu_blocks,
        mean_usage=float(area[-1] / span / num_gpu_blocks) if span > 0 else None,
        fragmentation=_fragmentation(steps, block_size),
    )


def usage_over_time(
    steps: Sequence[StepRecord], *, num_gpu_blocks: int, num_points: int
) -> list[float]:
    """Mean usage in each of ``num_points`` equal parts of the run; [] without a step."""
    if not steps or num_gpu_blocks < 1:
        return []
    times, area = _block_time(steps)
    edges = np.linspace(times[0], times[-1], num_points + 1)
    width = (times[-1] - times[0]) / num_points
    if width <= 0:
        return []
    share = np.diff(np.interp(edges, times, area)) / width / num_gpu_blocks
    return [float(value) for value in share]


def _mean_used_blocks(steps: Sequence[StepRecord]) -> FloatArray:
    used = column(steps, "num_used_blocks") + column(steps, "num_used_blocks_end")
    mean: FloatArray = used / 2
    return mean


def _block_time(steps: Sequence[StepRecord]) -> tuple[FloatArray, FloatArray]:
    """Start and end of every stretch, and the block-nanoseconds used up to then."""
    start, end = column(steps, "start_ns"), column(steps, "end_ns")
    area = np.cumsum(_mean_used_blocks(steps) * (end - start))
    before = np.concatenate(([0.0], area[:-1]))
    return np.column_stack((start, end)).ravel(), np.column_stack((before, area)).ravel()


def _fragmentation(steps: Sequence[StepRecord], block_size: int) -> float | None:
    slots = _mean_used_blocks(steps) * block_size
    written = (column(steps, "num_steps") - 1) * column(steps, "num_decode_seqs")
    tokens = column(steps, "num_used_tokens") + written / 2
    duration = column(steps, "end_ns") - column(steps, "start_ns")
    used = (slots > 0) & (duration > 0)
    if not used.any():
        return None
    empty = 1 - tokens[used] / slots[used]
    return float(np.average(empty, weights=duration[used]))
