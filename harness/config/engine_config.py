"""A run's engine with nothing left open."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.config.model_type import model_of
from harness.schedulers.batch import PreemptionMode
from profiles.gpu import KnownError
from profiles.model import ModelProfile

NO_START = "vLLM would not start"
"""How the note begins of a pool, given as it is, with which only a replay goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A run's engine: policy, hardware and knobs, nothing left open.

    Attributes:
        dtype: Of weights that are not quantised; ``None`` for what the model says, as of
            ``quantization`` and ``kv_cache_dtype``: ``model_profile`` knows what that is.
        enforce_eager: No CUDA graphs are captured.
        num_cpu_blocks: Blocks of swap space (v0), or of the tier for offloading (v1).
        swap_space: GiB of CPU memory for swapped blocks, per GPU; ``None`` in v1.
        kv_offloading_size: GiB of CPU memory for offloaded blocks, all GPUs together;
            0 for none, as always in v0, or where the number of blocks was given.
        preemption_mode: Forced, or ``None``: v0 recomputes groups of one and swaps
            others, v1 always recomputes.
        scheduling_policy: ``fcfs`` or ``priority``.
        long_prefill_token_threshold: Most tokens of a prefill in a step; 0 for no limit.
        scheduler_reserve_full_isl: Admit a prompt only where all of it fits.
        sliding_window: Tokens that every layer of the model attends to, or ``None``.
        kv_cache_gib: Memory of the KV cache on each GPU.
        num_fitting_gpu_blocks: Blocks that the utilization leaves room for, where the
            number was given and the model fits; else ``None``.
        block_bytes: Bytes of one block on one GPU.
        longest_model_len: Longest sequence that the model takes.
        gpu_memory_gib: Memory of one GPU as vLLM sees it.
        source_of_num_gpu_blocks: ``estimated``, ``kv_cache_gib`` or ``override``.
        step_time_error: Known error of the step times, where it was measured.
        notes: What the user should know about how knobs were resolved.
    """

    policy: str
    engine: str
    vllm_version: str
    model: str
    gpu: str
    tensor_parallel_size: int
    dtype: str | None
    quantization: str | None
    kv_cache_dtype: str | None
    enforce_eager: bool
    gpu_memory_utilization: float
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    kv_cache_gib: float
    num_fitting_gpu_blocks: int | None
    block_bytes: int
    longest_model_len: int
    gpu_memory_gib: float
    source_of_num_gpu_blocks: str
    swap_space: float | None
    kv_offloading_size: float
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    scheduling_policy: str
    long_prefill_token_threshold: int
    scheduler_reserve_full_isl: bool
    sliding_window: int | None
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float
    preemption_mode: PreemptionMode | None
    step_time_error: KnownError | None = None
    notes: tuple[str, ...] = ()

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that the server lets in; in v1 one token must be left.

        Source: vLLM 0.5.5 ``serving_engine.py``; vLLM 0.32 ``input_processor.py``.
        """
        return self.max_model_len - (self.policy == "v1")

    def model_profile(self) -> ModelProfile:
        """The model in the types in force, as the pool was cut for it."""
        return model_of(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """All knobs, for a record of the run."""
        return asdict(self) | {"notes": list(self.notes)}


def no_start(config: EngineConfig) -> str:
    """Why vLLM would not start with the pool that was given; empty where it would."""
    return next((note for note in config.notes if note.startswith(NO_START)), "")
