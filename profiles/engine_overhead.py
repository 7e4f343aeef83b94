"""What an engine adds to the time of its kernels, by policy and version."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiles.vllm_version import VllmVersion, parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOverhead:
    """Nanoseconds beside the kernels that are modelled one by one.

    Attributes:
        layer_ns: Of each layer: norms, rotary embedding, writing the KV cache and the
            gate of the MLP are kernels of their own.
        launch_ns: Of each layer without CUDA graphs: steps take no less than launches.
            Source: steps.csv, splitwise-sim, Llama-2-70B on 8 H100, 2023: 28.3 ms for 80
            layers is the shortest step of an engine without graphs.
        step_ns: Of any step, while the GPU waits.
        seq_ns: Of each sequence in a step: input tensors, sampling, detokenisation.
        shared_seq_ns: Of each sequence besides, where several GPUs share a layer.
        rank_ns: Of each GPU but the first in a step.
        request_ns: Of each request before the scheduler sees it, and on the way back.
        source: Rows that the figures were fitted to.
    """

    layer_ns: int = 0
    launch_ns: int = 0
    step_ns: int = 0
    seq_ns: int = 0
    shared_seq_ns: int = 0
    rank_ns: int = 0
    request_ns: int = 0
    source: str = ""

    def corrected(self, figures: Mapping[str, int]) -> "EngineOverhead":
        """The same with other figures, by name."""
        changes: dict[str, Any] = dict(figures)
        return replace(self, **changes)


NO_OVERHEAD = EngineOverhead(source="left out")

FIRST_LEAN = VllmVersion(0, 14)
"""Asynchronous by default, and with CUDA graphs of whole steps, from here on.

Source: vllm_knobs.csv; release notes of 0.11 and 0.14.
"""

V0 = EngineOverhead(
    layer_ns=9_000,
    launch_ns=350_000,
    step_ns=440_000,
    seq_ns=67_000,
    request_ns=18_000_000,
    source="13 static batches (knobs.csv, argonne, Llama-3-8B, A100-40GB, mid-2024) and"
    " four rates (e2e.csv, inference-perf, vLLM 0.9.0 v0, Llama-3-8B, H100)",
)

V1 = EngineOverhead(
    layer_ns=21_700,
    launch_ns=350_000,
    step_ns=526_600,
    seq_ns=26_700,
    shared_seq_ns=28_200,
    rank_ns=67_500,
    request_ns=17_600_000,
    source="e2e.csv, the rows that docs/step_time.md calls fitted: vLLM 0.8.5 to 0.12",
)

V1_LEAN = replace(
    V1,
    layer_ns=9_000,
    source="layers: steps.csv, the published lines of Llama-3.1-8B alone on an H100 with"
    " vLLM 0.19.1; the rest as before 0.14, as no row of ours has it",
)


def engine_overhead(
    policy: str, vllm_version: str, *, async_scheduling: bool = False
) -> EngineOverhead:
    """The overhead of a version's engine; asynchronous scheduling hides part of it."""
    if policy == "v0":
        return V0
    overhead = V1_LEAN if parse_version(vllm_version) >= FIRST_LEAN else V1
    return replace(overhead, step_ns=0, rank_ns=0) if async_scheduling else overhead
