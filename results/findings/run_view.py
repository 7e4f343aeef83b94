"""What the rules look at: the rows of a run and what follows from them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns, FloatArray, durations_ns
from results.kv_usage import num_usable_blocks
from results.latency import is_admitted
from results.measured import NotMeasuredError
from results.naming import named, number_of
from results.offload import block_bytes_of_all_ranks, has_offload_tier
from results.queueing import QueueTrend, queue_trend
from results.run_info import RunInfo
from results.waste import prefill_share, recompute_share, swap_share

GIB = 2**30


@dataclass(frozen=True)
class RunView:
    """A run for the rules: its rows, and figures that several rules need.

    What needs something that nobody measured raises NotMeasuredError, so that its finding
    is left out.

    Attributes:
        info: What is known besides the rows.
        requests: Columns of ``RequestRecord``.
        steps: Columns of ``StepRecord``, in time order.
    """

    info: RunInfo
    requests: Columns
    steps: Columns

    def knob(self, name: str) -> Any:
        """A knob as resolved, None where the run has none of that name."""
        return self.info.config.get(name)

    def known(self, name: str) -> Any:
        """A knob as resolved.

        Raises:
            NotMeasuredError: Nobody knows how a real engine has it.
        """
        value = self.info.config.get(name)
        if value is None:
            raise NotMeasuredError(name)
        return value

    @property
    def most_seqs(self) -> float:
        """``max_num_seqs``, infinite where it limits nothing.

        Raises:
            NotMeasuredError: Nobody knows whether it does.
        """
        if self.info.is_measured:
            return float(self.known("max_num_seqs"))
        return float(self.knob("max_num_seqs") or np.inf)

    @property
    def is_v1(self) -> bool:
        """Policy v1 decided."""
        return self.info.policy == "v1"

    @property
    def has_tier(self) -> bool:
        """CPU blocks lie under the pool, to which prompts are offloaded."""
        return has_offload_tier(self.info)

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks of the GPU pool, as the flag counts them."""
        return int(self.known("num_gpu_blocks"))

    @property
    def num_usable_blocks(self) -> int:
        """Those of them that sequences can hold."""
        return num_usable_blocks(self.num_gpu_blocks, self.info.policy)

    @property
    def num_set_aside(self) -> int:
        """Those that nobody ever holds."""
        return self.num_gpu_blocks - self.num_usable_blocks

    @property
    def num_cpu_blocks(self) -> int:
        """Blocks of the CPU pool: swap space in v0, the offload tier in v1."""
        return int(self.known("num_cpu_blocks"))

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.known("block_size"))

    @property
    def num_watermark_blocks(self) -> int:
        """Blocks that admission leaves free."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def watermark(self) -> float:
        """Part of the blocks that admission leaves free."""
        return float(self.known("watermark"))

    @cached_property
    def demand_blocks(self) -> FloatArray:
        """Blocks of each request at its full length, ``(num_requests,)``."""
        return self.held_blocks(1)

    def held_blocks(self, part: float) -> FloatArray:
        """Blocks of each request with so much of its output, ``(num_requests,)``.

        What it shares with others is not subtracted. A window is all that a sequence
        holds once it decodes. In v1 samples share their prompt by prefix caching alone.
        """
        rows, n = self.requests, self.requests["n"]
        missing = (1 - part) * rows["num_requested_tokens"] / self.block_size
        demand: FloatArray = rows["num_demand_blocks"] - missing
        if self.is_v1 and not self.info.is_caching:
            demand = demand + (n - 1) * (rows["num_prompt_tokens"] // self.block_size)
        window = self.knob("sliding_window")
        if window is None:
            return demand
        most: FloatArray = n * (np.ceil(window / self.block_size) + 1)
        return np.minimum(demand, most)

    @property
    def num_blocks_of_longest(self) -> int:
        """Blocks that a sequence of ``max_model_len`` can hold at a time, as at start.

        With a window these are the window and what is in flight, in two batches where
        scheduling is asynchronous, and one more. Source: vLLM 0.32.0,
        ``v1/kv_cache_interface.py``.
        """
        num_tokens, window = int(self.known("max_model_len")), self.knob("sliding_window")
        if window is None:
            return -(-num_tokens // self.block_size)
        num_batches = 2 if self.knob("async_scheduling") else 1
        in_flight = num_batches * int(self.known("max_num_batched_tokens"))
        num_tokens = min(num_tokens, int(window) - 1 + in_flight)
        return -(-num_tokens // self.block_size) + 1

    def gib(self, num_blocks: float) -> float:
        """GiB that so many blocks take on one GPU, or in its swap space."""
        return num_blocks * int(self.known("block_bytes")) / GIB

    def tier_gib(self, num_blocks: float) -> float:
        """GiB that so many blocks take in the offload tier, all GPUs together."""
        return num_blocks * block_bytes_of_all_ranks(self.info) / GIB

    @cached_property
    def prefill_share(self) -> float:
        """Part of the time of steps in which prompts were computed."""
        return prefill_share(self.steps)

    @cached_property
    def recompute_share(self) -> float:
        """Part of that time in which what had been thrown away was computed again."""
        return recompute_share(self.steps)

    @cached_property
    def swap_share(self) -> float:
        """Part of that time in which steps waited for copies."""
        return swap_share(self.steps)

    @cached_property
    def trend(self) -> QueueTrend | None:
        """How the queue grew; None in a closed loop or where nothing can be told."""
        measurement = self.info.measurement
        if measurement is not None and measurement.duration_s is not None:
            return None  # nobody knows when requests came
        if self.info.is_closed_loop:
            return None
        return queue_trend(self.requests, self.steps)

    @property
    def is_growing(self) -> bool:
        """The queue grew for as long as requests came."""
        return self.trend is not None and self.trend.is_growing

    @cached_property
    def is_admitted(self) -> BoolArray:
        """Which requests ever ran, ``(num_requests,)``."""
        return is_admitted(self.requests)

    def share_of_time(self, chosen: BoolArray) -> float:
        """Part of the time of all steps that falls on the chosen stretches."""
        duration: FloatArray = durations_ns(self.steps)
        busy = float(duration.sum())
        return float(duration[chosen].sum()) / busy if busy > 0 else 0.0

    def named(self, chosen: BoolArray) -> str:
        """The chosen requests, as ``3 requests (#1, #5, #8)``."""
        ids = self.requests["request_id"][chosen].astype(int).tolist()
        return f"{number_of(len(ids), 'request')} ({named(ids)})"


def percent(share: float) -> str:
    """A part of 1 in per cent, to three digits."""
    return f"{100 * share:.3g} %"
