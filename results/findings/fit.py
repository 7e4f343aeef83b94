"""What would have fitted: fewer sequences in this pool, or all in a larger one."""

import math
from collections.abc import Callable

import numpy as np

from results.columns import BoolArray
from results.findings.option import has_option
from results.findings.run_view import RunView, percent

MOST_OF_LIFE = 0.75
"""Part of its output. Sequences have half on average, and are not all alike."""

MAX_GROWTH = 8
"""Times the pool there was. More is not a matter of size, but of load."""

MAX_UTILIZATION = 0.95
"""Above, CUDA graphs find too little memory. Source: vLLM issues 17549 and 19186."""

MAX_WATERMARK = 0.5
"""More would leave most of the pool unused."""

HARDWARE = "--tensor-parallel-size or a larger GPU"
"""What has room for more blocks where this GPU has none."""


def fitting_seqs(run: RunView, part: float) -> int:
    """Sequences of this traffic that the pool holds when each has so much output.

    Requests weigh as long as they run, so long ones count more. What requests share is
    not subtracted. 0 if no request ran, or none fits.

    Args:
        run: Its rows.
        part: Of the output: 1 at full length, 0.5 as it is on average.
    """
    rows, ran = run.requests, run.is_admitted
    if not ran.any():
        return 0
    n, output = rows["n"][ran], rows["num_requested_tokens"][ran]
    held = run.held_blocks(part)[ran]
    weight = output / n
    blocks_per_seq = float((weight * held).sum()) / max(float((weight * n).sum()), 1.0)
    room = run.num_usable_blocks - _free_to_grow(run)
    return max(0, int(room / blocks_per_seq)) if blocks_per_seq > 0 else 0


def num_blocks_for_all(run: RunView) -> int:
    """Blocks with which nobody had waited for any, nor lost them again.

    They hold at full length all admitted requests that were there at once, or the largest
    that ``max_num_seqs`` lets run. What requests share is not subtracted.
    """
    rows, ran = run.requests, run.is_admitted
    if not ran.any():
        return 0
    n, demand = rows["n"][ran], run.demand_blocks[ran]
    present = num_blocks_present(run, ran)
    largest = np.argsort(-demand / n)
    can_run = np.cumsum(n[largest]) <= run.most_seqs
    at_once = max(demand[largest][can_run].sum(), demand.max())
    most = float(min(present, at_once)) + run.num_set_aside + _free_to_grow(run)
    return math.ceil(most / (1 - run.watermark))


def _free_to_grow(run: RunView) -> float:
    """Blocks that stay free: v0 lets a group grow only with one for each sequence."""
    return 0.0 if run.is_v1 else float(run.requests["n"][run.is_admitted].max())


def num_blocks_present(run: RunView, chosen: BoolArray) -> int:
    """Blocks that the chosen requests hold at full length, at the most crowded moment."""
    rows = run.requests
    demand = run.demand_blocks[chosen]
    left = np.nan_to_num(rows["finished_ns"][chosen], nan=np.inf)
    times = np.concatenate((left, rows["queued_ns"][chosen]))
    changes = np.concatenate((-demand, demand))[np.argsort(times, kind="stable")]
    return int(np.cumsum(changes).max(initial=0))


def more_blocks(run: RunView) -> str:
    """A pool in which nobody had waited for blocks, as a remedy."""
    num_blocks, there_are = num_blocks_for_all(run), run.num_gpu_blocks
    if not there_are < num_blocks <= max(MAX_GROWTH * there_are, _num_fitting(run)):
        return larger_pool(run)
    return f"{larger_pool(run, num_blocks)}, enough for all that could have run at once"


def larger_pool(run: RunView, num_blocks: int | None = None) -> str:
    """What gives the pool so many blocks, or more than it has; other hardware last.

    A pool whose size was given grows by that flag, up to what fits on the GPU.
    """
    fitting = _num_fitting(run)
    if num_blocks is None:
        if run.num_gpu_blocks < fitting:
            return f"{_size_flag(run, fitting, math.floor)} (about all that fits)"
        return f"a larger pool ({HARDWARE})"
    if run.num_gpu_blocks < num_blocks <= fitting:
        flag = _size_flag(run, num_blocks, math.ceil)
        return f"{flag} (about {fitting:,} blocks fit on this GPU)"
    more = run.gib(num_blocks - run.num_gpu_blocks)
    if utilization := _utilization_for(run, more):
        return f"--gpu-memory-utilization {utilization:.2f} ({num_blocks:,} blocks)"
    return f"{num_blocks:,} blocks, {more:.1f} GiB more on each GPU ({HARDWARE})"


def _num_fitting(run: RunView) -> int:
    """Blocks of a pool as large as the utilization lets it be, 0 if that is not known."""
    return int(run.knob("num_fitting_gpu_blocks") or 0)


def _size_flag(run: RunView, num_blocks: int, rounded: Callable[[float], int]) -> str:
    """What sets a pool of so many blocks; GiB are rounded to tenths."""
    if run.knob("source_of_num_gpu_blocks") == "kv_cache_gib":
        return f"--kv-cache-gib {rounded(10 * run.gib(num_blocks)) / 10:g}"
    return f"--num-gpu-blocks-override {num_blocks}"


def _utilization_for(run: RunView, more_gib: float) -> float | None:
    """The utilization that makes an estimated pool so much larger; None for too much."""
    memory_gib = run.knob("gpu_memory_gib")
    if run.knob("source_of_num_gpu_blocks") != "estimated" or not memory_gib:
        return None
    share = run.knob("gpu_memory_utilization") + more_gib / memory_gib
    utilization = math.ceil(100 * share) / 100
    return utilization if utilization <= MAX_UTILIZATION else None


def fewer_or_more(run: RunView, part: float) -> str:
    """Both ways out: blocks for all, or no more sequences than fit.

    Args:
        run: Its rows.
        part: Of their output, with which sequences have to fit.
    """
    fewer = fewer_seqs(run, part)
    if not fewer:
        return more_blocks(run)
    return f"{more_blocks(run)}; or {fewer}, at the price of a longer queue"


def higher_watermark(run: RunView) -> str:
    """What keeps enough free for those who run to grow, as one more way out, or "".

    It is the difference between the sequences that fit as they are on average and with
    most of their output.
    """
    if not has_option(run, "watermark"):
        return ""
    average, most = fitting_seqs(run, 0.5), fitting_seqs(run, MOST_OF_LIFE)
    share = math.ceil(100 * (1 - most / average)) / 100 if average else 1.0
    if not run.watermark < share <= MAX_WATERMARK:
        return ""
    return f"; or --watermark {share:g}, which leaves those who run room to grow"


def fewer_seqs(run: RunView, part: float) -> str:
    """As many sequences as fit, as a remedy; "" where that limits nothing or too much."""
    num_seqs = fitting_seqs(run, part)
    largest = 1 if run.is_v1 else int(run.requests["n"].max(initial=1))
    if not largest <= num_seqs < run.most_seqs:
        return ""
    return f"--max-num-seqs {num_seqs}, {as_many_as_fit(part)}"


def as_many_as_fit(part: float) -> str:
    """What :func:`fitting_seqs` counts, in words."""
    length = "at full length" if part == 1 else f"with {percent(part)} of their output"
    return f"as many as the pool holds {length}"
