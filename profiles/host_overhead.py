"""What the engine's Python adds to the GPU's time, by policy, as far as rows tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """What the engine's Python costs per step while the GPU waits.

    Attributes:
        step_ns: Of any step.
        seq_ns: Of each sequence in it: scheduling, input tensors, sampling
            parameters, detokenisation.
        source: Rows that the figures were fitted to.
        rank_ns: Of each GPU but the first.
    """

    step_ns: int
    seq_ns: int
    source: str
    rank_ns: int = 0


V0_HOST = HostOverhead(
    step_ns=0,  # non-negative least squares ends at this bound
    seq_ns=65_000,
    source="knobs.csv, argonne LLM-Inference-Bench: vLLM V0 of mid-2024, Llama-3-8B,"
    " static batches of 1 to 64 on an A100 (taken for the 40 GB card, 1,555 GB/s),"
    " block sizes 16 to 128, 13 rows",
)

V1_HOST = HostOverhead(
    step_ns=570_000,
    seq_ns=47_000,
    rank_ns=290_000,
    source="tpot_v1.csv, the 26 rows marked fit: Qwen3-32B on 2, 4 and 8 H100 (vLLM"
    " 0.12.0) and Llama-3-8B on one (0.11.0), 1 to 128 sequences, no async scheduling",
)

V1_ASYNC_HOST = HostOverhead(
    step_ns=0,
    seq_ns=0,
    source="steps.csv, vLLM 0.19.1, Llama-3.1-8B, one sequence on an H100: nothing is"
    " left beside the GPU's time. A lower bound: no row has larger batches",
)


def host_overhead(policy: str, *, async_scheduling: bool = False) -> HostOverhead:
    """The overhead of a policy's engine, which async scheduling hides behind the GPU."""
    if policy == "v0":
        return V0_HOST
    return V1_ASYNC_HOST if async_scheduling else V1_HOST
