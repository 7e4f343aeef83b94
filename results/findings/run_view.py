"""What the rules look at: the rows of a run and what follows from them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns, FloatArray, durations_ns
from results.naming import named, number_of
from results.queueing import QueueTrend, queue_trend
from results.run_info import RunInfo
from results.waste import TimeShares, time_shares

GIB = 2**30


@dataclass(frozen=True)
class RunView:
    """A run for the rules: its rows, and figures that several rules need.

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

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks of the GPU pool."""
        return int(self.info.config["num_gpu_blocks"])

    @property
    def num_cpu_blocks(self) -> int:
        """Blocks of the CPU pool."""
        return int(self.info.config["num_cpu_blocks"])

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.info.config["block_size"])

    @property
    def num_watermark_blocks(self) -> int:
        """Blocks that admission leaves free."""
        return int(self.info.config["watermark"] * self.num_gpu_blocks)

    def gib(self, num_blocks: float) -> float:
        """GiB that so many blocks take on one GPU, or in its swap space."""
        return num_blocks * int(self.info.config["block_bytes"]) / GIB

    @cached_property
    def shares(self) -> TimeShares:
        """Where the time of the steps went."""
        return time_shares(self.steps)

    @cached_property
    def trend(self) -> QueueTrend | None:
        """How the queue grew; None in a closed loop or where nothing can be told."""
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
        return ~np.isnan(self.requests["first_scheduled_ns"])

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
