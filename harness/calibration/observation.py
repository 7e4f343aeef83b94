"""What somebody measured, and what our step times make of the same."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from harness.calibration.coefficient import Moves, moved
from harness.config import EngineConfig
from harness.errors import UsageError
from harness.replay import replay
from harness.timing import build_step_time, config_overhead
from harness.workload import Workload
from profiles.engine_overhead import EngineOverhead
from profiles.gpu import GpuProfile, load_gpu
from profiles.step_time import FS_PER_S, BatchShape, RooflineStepTime
from results.columns import Columns
from results.latency import request_latency
from results.record import RequestRecord
from results.statistics import NS_PER_S


class Observation(Protocol):
    """Figures that were measured together.

    Attributes:
        name: Where they stand, for people.
        figures: What was measured, such as ``ttft``.
        measured_s: Seconds of each figure.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def figures(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def measured_s(self) -> tuple[float, ...]: ...  # noqa: D102

    def predicted_s(self, moves: Moves) -> tuple[float, ...]:
        """Seconds of each figure with coefficients moved."""
        ...


class Replayed(NamedTuple):
    """Means of a replay, in seconds, and requests finished in a second."""

    ttft_s: float
    tpot_s: float
    req_s: float


@dataclass(frozen=True, kw_only=True)
class Served:
    """A workload that was served, and its mean latencies.

    Attributes:
        config: The engine that served it.
        workload: The same lengths and arrivals, not the same content.
        max_concurrency: Of a closed loop.
    """

    name: str
    figures: tuple[str, ...]
    measured_s: tuple[float, ...]
    config: EngineConfig
    workload: Workload
    max_concurrency: int | None = None

    def predicted_s(self, moves: Moves) -> tuple[float, ...]:
        """Mean latencies of a replay.

        Raises:
            UsageError: A request does not get all that it asks for.
        """
        changed = moved(load_gpu(self.config.gpu), config_overhead(self.config), moves)
        requests = self._requests(gpu=changed.gpu, overhead=changed.overhead)
        is_short = np.isnan(requests["finished_ns"]) | (
            requests["num_output_tokens"] < requests["num_requested_tokens"]
        )
        if num_short := int(is_short.sum()):
            raise UsageError(
                f"{self.name} cannot be replayed: {num_short:,} of its"
                f" {len(is_short):,} requests are refused or cut by this engine; check"
                " lengths and --max-model-len"
            )
        means = _means(requests)._asdict()
        return tuple(means[f"{figure}_s"] for figure in self.figures)

    def replayed(
        self, *, gpu: GpuProfile | None = None, overhead: EngineOverhead | None = None
    ) -> Replayed:
        """What a replay has, on another GPU or with another engine where given."""
        return _means(self._requests(gpu=gpu, overhead=overhead))

    def _requests(
        self, *, gpu: GpuProfile | None, overhead: EngineOverhead | None
    ) -> Columns:
        result = replay(
            self.workload,
            self.config,
            max_concurrency=self.max_concurrency,
            step_time=build_step_time(self.config, gpu=gpu, overhead=overhead),
        )
        return Columns.of(RequestRecord, result.requests)


def _means(requests: Columns) -> Replayed:
    latency = request_latency(requests)
    if not len(latency.ttft_s) or np.isnan(latency.tpot_s).all():
        return Replayed(ttft_s=np.nan, tpot_s=np.nan, req_s=0.0)
    span_ns = np.nanmax(requests["finished_ns"]) - requests["arrival_ns"].min()
    return Replayed(
        ttft_s=float(latency.ttft_s.mean()),
        tpot_s=float(np.nanmean(latency.tpot_s)),
        req_s=len(latency.ttft_s) / float(span_ns) * NS_PER_S,
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that was timed.

    Attributes:
        config: The engine that ran it.
        shape: What it computed.
    """

    name: str
    measured_s: tuple[float, ...]
    config: EngineConfig
    shape: BatchShape
    figures: tuple[str, ...] = ("step",)

    def predicted_s(self, moves: Moves) -> tuple[float, ...]:
        """The step's duration."""
        step_time = _step_time(self.config, tuple(sorted(moves.items())))
        return (step_time.step_fs(self.shape) / FS_PER_S,)


@lru_cache(maxsize=16)
def _step_time(
    config: EngineConfig, moves: tuple[tuple[str, float], ...]
) -> RooflineStepTime:
    """Step times with coefficients moved, which all steps of an engine share."""
    changed = moved(load_gpu(config.gpu), config_overhead(config), dict(moves))
    return build_step_time(config, gpu=changed.gpu, overhead=changed.overhead)
