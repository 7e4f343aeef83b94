"""What a calibration may change about step times, and how far it is likely to go."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from profiles.engine_overhead import EngineOverhead
from profiles.gpu import GpuProfile

Moves = Mapping[str, float]
"""By coefficient how far it is moved: 0 leaves it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """A figure that measurements may correct.

    ``exp(move)`` multiplies it; of an overhead that is 0 in the profile, ``unit_ns``
    nanoseconds are added for a move of 1.

    Attributes:
        name: Of a rate's time (``memory``, ``compute``) or of an overhead's field.
        likely: Standard deviation of the move before anything is measured.
        says: What it is, for people.
        told_by: Which measurements tell it.
        unit_ns: Of an overhead.
    """

    name: str
    likely: float
    says: str
    told_by: str
    unit_ns: int = 0

    @property
    def is_overhead(self) -> bool:
        """Whether it is a figure of the engine's, not of the GPU's."""
        return self.name.endswith("_ns")


COEFFICIENTS = {
    coefficient.name: coefficient
    for coefficient in (
        Coefficient(
            name="memory",
            likely=0.1,
            says="time to read weights and KV cache",
            told_by="TPOT at low and at high concurrency, or decode steps",
        ),
        Coefficient(
            name="compute",
            likely=0.5,
            says="time of arithmetic in prefills",
            told_by="TTFT of long prompts, or prefill steps",
        ),
        Coefficient(
            name="layer_ns",
            likely=0.6,
            says="small kernels of a layer",
            told_by="TPOT at a concurrency of a few, or decode steps of a few sequences",
            unit_ns=10_000,
        ),
        Coefficient(
            name="step_ns",
            likely=1.0,
            says="engine per step",
            told_by="TPOT at a concurrency of a few, or decode steps of a few sequences",
            unit_ns=500_000,
        ),
        Coefficient(
            name="seq_ns",
            likely=0.7,
            says="engine per sequence in a step",
            told_by="TPOT at a concurrency of 32 and more, or decode steps of as many",
            unit_ns=20_000,
        ),
        Coefficient(
            name="rank_ns",
            likely=0.7,
            says="engine per further GPU",
            told_by="TPOT on several GPUs at a concurrency of a few",
            unit_ns=100_000,
        ),
        Coefficient(
            name="request_ns",
            likely=0.7,
            says="API server per request",
            told_by="TTFT of short prompts at low concurrency",
            unit_ns=10_000_000,
        ),
    )
}
"""Likely moves: with these, pairs of published rows foretold the others best.

Source: e2e.csv, InferenceX, Llama-3.1-70B fp8 on H200, all pairs of rows of the same
number of GPUs; H100 was only looked at (docs/calibrate.md).
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """A GPU and an engine's overhead with some of their figures moved.

    Attributes:
        gpu: With the rates that follow; its own calibration is part of ``overhead``.
        overhead: Of the engine.
    """

    gpu: GpuProfile
    overhead: EngineOverhead


def moved(gpu: GpuProfile, overhead: EngineOverhead, moves: Moves) -> Moved:
    """The figures after the moves, which name coefficients of ``COEFFICIENTS``."""
    if gpu.calibration is not None:
        overhead = overhead.corrected(gpu.calibration.overhead)
        gpu = replace(gpu, calibration=None)
    rates = gpu.known_rates
    rates = replace(
        rates,
        memory_bandwidth_gb_per_s=rates.memory_bandwidth_gb_per_s
        / _factor(moves, "memory"),
        bf16_tflop_per_s=rates.bf16_tflop_per_s / _factor(moves, "compute"),
    )
    figures = {
        name: _moved_ns(getattr(overhead, name), COEFFICIENTS[name].unit_ns, move)
        for name, move in moves.items()
        if COEFFICIENTS[name].is_overhead
    }
    return Moved(replace(gpu, rates=rates), overhead.corrected(figures))


def _factor(moves: Moves, name: str) -> float:
    return math.exp(moves.get(name, 0.0))


def _moved_ns(given_ns: int, unit_ns: int, move: float) -> int:
    if given_ns == 0:
        return max(0, round(unit_ns * move))
    return round(given_ns * math.exp(move))
