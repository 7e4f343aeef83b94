"""How full the KV cache was: in use, kept for reuse, and slots left empty."""

from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray, durations_ns
from results.measured import NotMeasuredError, if_measured


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUsage:
    """Shares of the GPU blocks between 0 and 1; None when no step ran, or nobody looked.

    ``active`` blocks are held by sequences. ``cached idle`` ones are held by nobody, and
    their content could still be reused: they are free to whoever needs a block. Means are
    over time, from the first step's start to the last step's end.

    Attributes:
        peak_usage: Most active blocks at once.
        mean_usage: Active blocks; time without a step has none.
        peak_cached_idle: Most cached idle blocks at once; None without prefix caching.
        mean_cached_idle: Cached idle blocks; in time without a step, all that were active
            or cached before. None without prefix caching.
        fragmentation: Token slots left empty in active blocks, over the time in which
            there were any.
    """

    peak_usage: float | None = None
    mean_usage: float | None = None
    peak_cached_idle: float | None = None
    mean_cached_idle: float | None = None
    fragmentation: float | None = None


def num_usable_blocks(num_gpu_blocks: int | None, policy: str) -> int:
    """GPU blocks that sequences can hold: all, but in v1 not block 0, the null block.

    Raises:
        NotMeasuredError: The engine did not say how many there are.
    """
    if num_gpu_blocks is None:
        raise NotMeasuredError("num_gpu_blocks")
    return num_gpu_blocks - 1 if policy == "v1" else num_gpu_blocks


def kv_usage(
    steps: Columns, *, num_gpu_blocks: int, block_size: int | None, caching: bool
) -> KvUsage:
    """Usage over all steps.

    Within a stretch of equal steps, active blocks rise evenly from the first to the last,
    and cached idle ones fall.

    Args:
        steps: Columns of ``StepRecord``, in time order.
        num_gpu_blocks: Blocks that sequences can hold, see :func:`num_usable_blocks`.
        block_size: Tokens in a block; None where that is not known.
        caching: Prefix caching is on.
    """
    if not len(steps) or num_gpu_blocks < 1:
        return KvUsage()
    idle = None
    if caching:
        idle = if_measured(lambda: _cached_idle(steps, num_gpu_blocks))
    peak_idle, mean_idle = idle or (None, None)
    return KvUsage(
        peak_usage=if_measured(lambda: peak_blocks(steps) / num_gpu_blocks),
        mean_usage=if_measured(lambda: _mean_usage(steps, num_gpu_blocks)),
        peak_cached_idle=peak_idle,
        mean_cached_idle=mean_idle,
        fragmentation=if_measured(lambda: _fragmentation(steps, block_size)),
    )


def peak_blocks(steps: Columns) -> float:
    """Most blocks that sequences held at once."""
    return float(max(steps["num_used_blocks"].max(), used_at_end(steps).max()))


def used_at_end(steps: Columns) -> FloatArray:
    """Blocks held at the end of each stretch; as at its start where that is all we know.

    A sample of a server's metrics is a single moment.
    """
    has_end = steps.has("num_used_blocks_end")
    return steps["num_used_blocks_end" if has_end else "num_used_blocks"]


def usage_over_time(
    steps: Columns, *, num_gpu_blocks: int, num_points: int
) -> list[float]:
    """Mean active share in each of ``num_points`` equal parts of the run.

    ``[]`` without a step, and where nobody looked. ``num_gpu_blocks`` are those that
    sequences can hold.
    """
    if not len(steps) or num_gpu_blocks < 1 or not steps.has("num_used_blocks"):
        return []
    times, area = _block_time(steps)
    edges = np.linspace(times[0], times[-1], num_points + 1)
    width = (times[-1] - times[0]) / num_points
    if width <= 0:
        return []
    share = np.diff(np.interp(edges, times, area)) / width / num_gpu_blocks
    return [float(value) for value in share]


def _mean_used_blocks(steps: Columns) -> FloatArray:
    return (steps["num_used_blocks"] + used_at_end(steps)) / 2


def _mean_usage(steps: Columns, num_gpu_blocks: int) -> float | None:
    return _mean_over_time(steps, _mean_used_blocks(steps), num_gpu_blocks)


def _mean_over_time(
    steps: Columns, blocks: FloatArray, num_gpu_blocks: int
) -> float | None:
    span = steps["end_ns"][-1] - steps["start_ns"][0]
    if span <= 0:
        return None
    return float((blocks * durations_ns(steps)).sum() / span / num_gpu_blocks)


def _cached_idle(
    steps: Columns, num_gpu_blocks: int
) -> tuple[float | None, float | None]:
    """Peak and mean share; between steps whatever was active has become idle."""
    start, end = steps["num_cached_blocks"], steps["num_cached_blocks_end"]
    gaps = steps["start_ns"][1:] - steps["end_ns"][:-1]
    between = np.minimum((end + used_at_end(steps))[:-1], num_gpu_blocks)
    peak = max(start.max(), end.max(), between[gaps > 0].max(initial=0))
    within = _mean_over_time(steps, (start + end) / 2, num_gpu_blocks)
    if within is None:
        return float(peak / num_gpu_blocks), None
    span = steps["end_ns"][-1] - steps["start_ns"][0]
    in_gaps = (between * gaps).sum() / span / num_gpu_blocks
    return float(peak / num_gpu_blocks), within + float(in_gaps)


def _block_time(steps: Columns) -> tuple[FloatArray, FloatArray]:
    """Start and end of every stretch, and the block-nanoseconds used up to then."""
    start, end = steps["start_ns"], steps["end_ns"]
    area = np.cumsum(_mean_used_blocks(steps) * durations_ns(steps))
    before = np.concatenate(([0.0], area[:-1]))
    return np.column_stack((start, end)).ravel(), np.column_stack((before, area)).ravel()


def _fragmentation(steps: Columns, block_size: int | None) -> float | None:
    if block_size is None:
        return None
    slots = _mean_used_blocks(steps) * block_size
    written = (steps["num_steps"] - 1) * steps["num_decode_seqs"]
    tokens = steps["num_used_tokens"] + written / 2
    duration = durations_ns(steps)
    used = (slots > 0) & (duration > 0)
    if not used.any():
        return None
    empty = 1 - tokens[used] / slots[used]
    return float(np.average(empty, weights=duration[used]))
