"""How long an engine's steps take, whether or not its memory holds the batches.

The knobs are settled as for a run; nothing is sized or replayed, and what no memory holds
can be timed. ``harness.timing`` is for configurations that were sized.
"""

from dataclasses import asdict, dataclass
from typing import Unpack

from harness.config.knobs import GivenKnobs
from harness.config.model_type import ModelTypes
from harness.config.resolve import settle
from harness.config.version import in_force
from profiles.engine_overhead import engine_overhead
from profiles.gpu import load_gpu
from profiles.model import ModelProfile
from profiles.step_time import BatchShape, RooflineStepTime
from profiles.weights import weight_bytes

FS_PER_MS = 10**12
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClock:
    """Step times of an engine, and what they follow from.

    Attributes:
        types: As they were given.
        step_time: As a run of the same knobs without an offload tier has it.
        notes: What the user should know.
    """

    policy: str
    vllm_version: str
    types: ModelTypes
    async_scheduling: bool
    enforce_eager: bool
    step_time: RooflineStepTime
    notes: tuple[str, ...]

    def decode_ms(self, num_seqs: int, context_len: int) -> float:
        """Milliseconds in which so many sequences of one length decode a token each."""
        return self.step_time.step_fs(decode_shape(num_seqs, context_len)) / FS_PER_MS

    def prefill_ms(self, num_tokens: int) -> float:
        """Milliseconds of a step that computes one whole prompt."""
        return self.step_time.step_fs(prefill_shape(num_tokens)) / FS_PER_MS

    @property
    def evidence(self) -> str:
        """What stands behind step times of this model on this GPU, in one sentence."""
        model, gpu = self.step_time.model, self.step_time.gpu
        is_measured = gpu.calibration is None and gpu.known_error is not None
        if is_measured and self.step_time.known_error is None:
            return (
                f"no published row of a model such as {model.name}, in its types, was"
                f" compared with step times of {gpu.name}"
            )
        return gpu.evidence


def engine_clock(
    *,
    model: str,
    gpu: str,
    policy: str | None = None,
    vllm_version: str | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    **knobs: Unpack[GivenKnobs],
) -> EngineClock:
    """The clock of an engine, what was not given as that vLLM version would have it.

    Raises:
        UsageError: A policy, version or knob that is not there.
        ConfigError: Knobs or types with which vLLM would not start.
        ProfileError: An unknown name or type, or a GPU whose rates nobody knows.
    """
    types = ModelTypes(
        dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    gpu_profile = load_gpu(gpu)
    chosen = in_force(
        policy, vllm_version, gpu=gpu_profile, options={**knobs, **asdict(types)}
    )
    model_profile = types.load(model)
    types.check(chosen.vllm_version, gpu_profile, model_profile)
    limits, scheduling = settle(chosen, model_profile, gpu_profile, knobs)
    enforce_eager = knobs.get("enforce_eager", False)
    step_time = RooflineStepTime(
        model_profile,
        gpu_profile,
        tensor_parallel_size=knobs.get("tensor_parallel_size", 1),
        block_size=limits.block_size,
        overhead=engine_overhead(
            chosen.policy,
            chosen.vllm_version,
            async_scheduling=scheduling.async_scheduling,
        ),
        enforce_eager=enforce_eager,
    )
    return EngineClock(
        policy=chosen.policy,
        vllm_version=chosen.vllm_version,
        types=types,
        async_scheduling=scheduling.async_scheduling,
        enforce_eager=enforce_eager,
        step_time=step_time,
        notes=(
            *chosen.notes,
            *_note_on_weights(step_time),
            *_note_on_windows(model_profile),
        ),
    )


def decode_shape(num_seqs: int, context_len: int) -> BatchShape:
    """A step in which sequences of one length, the new token included, decode."""
    return BatchShape(
        num_prefill_tokens=0,
        prefill_attention=0,
        num_prefill_seqs=0,
        num_decode_seqs=num_seqs,
        num_context_tokens=num_seqs * context_len,
    )


def prefill_shape(num_tokens: int) -> BatchShape:
    """A step that computes one prompt, nothing of it cached."""
    return BatchShape(
        num_prefill_tokens=num_tokens,
        prefill_attention=num_tokens * (num_tokens + 1) // 2,
        num_prefill_seqs=1,
        num_decode_seqs=0,
        num_context_tokens=0,
        num_prefill_context_tokens=num_tokens,
    )


def _note_on_weights(step_time: RooflineStepTime) -> list[str]:
    """A note where not even the weights have room on so many GPUs."""
    model, gpu = step_time.model, step_time.gpu
    num_bytes = weight_bytes(model, tensor_parallel_size=step_time.tensor_parallel_size)
    if num_bytes <= gpu.memory_gib * GIB:
        return []
    return [
        f"the weights take {num_bytes / GIB:,.1f} GiB of a GPU that has"
        f" {gpu.memory_gib:,.1f}: it does not start; blockbench capacity finds how many"
        " GPUs it needs"
    ]


def _note_on_windows(model: ModelProfile) -> list[str]:
    """A note where layers read less of a context than they are timed for."""
    windows = [window for window in model.layer_windows if window is not None]
    if not windows:
        return []
    return [
        f"{len(windows)} of {model.num_layers} layers of {model.name} attend to no more"
        f" than {max(windows):,} tokens, and are timed as if they read all; longer"
        " contexts take less"
    ]
