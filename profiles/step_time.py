"""How long one engine step takes: batch shape in, exact integer femtoseconds out."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple, Protocol

from profiles.copies import H100_COPIES, MI300X_COPIES, V0_SWAP, CopyMethod
from profiles.engine_overhead import NO_OVERHEAD, EngineOverhead
from profiles.gpu import GpuProfile, KnownError
from profiles.gpu_time import GpuTime
from profiles.model import ModelProfile

FS_PER_NS = 10**6
FS_PER_S = 10**15

COMPARED_PARAMS = (7e9, 75e9)
"""Sizes of the models that published servers had, Llama-3-8B and Llama-3.1-70B, or so."""

MOST_GRAPH_TOKENS = 512
"""Batches of more tokens are not captured.

Source: vLLM 0.10 to 0.32, ``config/vllm.py``.
"""


class BatchShape(NamedTuple):
    """What one step computes and moves, as far as its duration depends on it.

    Attributes:
        num_prefill_tokens: Tokens computed by prefills, skipped cached ones excluded.
        prefill_attention: Sum over the prefilled sequences of tokens computed times
            the mean context each attends to, in pairs of tokens.
        num_prefill_seqs: Sequences that prefill in this step.
        num_prefill_context_tokens: KV tokens that they attend to, those found in the
            cache and those computed included.
        num_decode_seqs: Sequences that decode one token each.
        num_context_tokens: KV tokens that the decoding sequences read in the first
            step, the sum of their lengths.
        num_swap_blocks: Blocks copied between CPU and GPU before the step; the step
            waits for them, as in vLLM's v0.
        num_copy_blocks: Copy-on-write copies of whole blocks on the GPU.
    """

    num_prefill_tokens: int
    prefill_attention: int
    num_prefill_seqs: int
    num_decode_seqs: int
    num_context_tokens: int
    num_swap_blocks: int = 0
    num_copy_blocks: int = 0
    num_prefill_context_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the layers."""
        return self.num_prefill_tokens + self.num_decode_seqs

    @property
    def num_seqs(self) -> int:
        """Sequences in the batch."""
        return self.num_prefill_seqs + self.num_decode_seqs


class StepTime(Protocol):
    """A model of step durations whose repeated decodes have a closed form."""

    def step_fs(self, shape: BatchShape) -> int:
        """Femtoseconds of one step."""
        ...

    def growth_fs(self, shape: BatchShape) -> int:
        """Femtoseconds by which each repetition of a decode batch outlasts the last.

        Each repetition finds ``num_decode_seqs`` more context tokens.
        """
        ...

    def swap_fs(self, shape: BatchShape) -> int:
        """Of one step's femtoseconds, those in which it waits for swaps."""
        ...


def stretch_fs(step_fs: int, growth_fs: int, num_steps: int) -> int:
    """Femtoseconds of ``num_steps`` repetitions, exactly their sum one by one."""
    return num_steps * step_fs + growth_fs * (num_steps * (num_steps - 1) // 2)


def steps_until(step_fs: int, growth_fs: int, elapsed_fs: int, max_steps: int) -> int:
    """Fewest repetitions, from 1 to ``max_steps``, that end at or past ``elapsed_fs``.

    ``max_steps`` when even that many end before. Integers only, so that skipping
    ahead stops at the very step at which stepping one by one would have stopped.
    """
    if stretch_fs(step_fs, growth_fs, max_steps) < elapsed_fs:
        return max_steps
    low, high = 1, max_steps
    while low < high:
        middle = (low + high) // 2
        if stretch_fs(step_fs, growth_fs, middle) >= elapsed_fs:
            high = middle
        else:
            low = middle + 1
    return low


class StepParts(NamedTuple):
    """Where the femtoseconds of one step go; the parts follow one another.

    Attributes:
        linear_fs: Linear layers and experts.
        layer_fs: The small kernels of each layer, or waiting for launches.
        host_fs: What the engine does while the GPU waits.
    """

    linear_fs: int
    lm_head_fs: int
    attention_fs: int
    elementwise_fs: int
    all_reduce_fs: int
    layer_fs: int
    copy_fs: int
    host_fs: int

    @property
    def total_fs(self) -> int:
        """Femtoseconds of the whole step."""
        return sum(self)


class _TokensTime(NamedTuple):
    """Femtoseconds of what depends on nothing but the number of tokens."""

    linear_fs: int
    elementwise_fs: int
    all_reduce_fs: int


class _DecodeTime(NamedTuple):
    """Femtoseconds of what depends on the number of decoding sequences alone."""

    fixed_fs: int
    context_token_fs: int


class RooflineStepTime:
    """Kernels one after another, each as its form says, and what the engine adds.

    For a fixed number of decoding sequences the time of a pure decode step is affine in
    the context tokens, with an integer slope, so a stretch of repeated steps has an exact
    closed form.

    Args:
        model: In the types that its weights and KV cache have.
        gpu: One of the ``tensor_parallel_size`` equal GPUs.
        tensor_parallel_size: GPUs that share each layer.
        block_size: Tokens per KV block.
        overhead: What the engine adds; figures that a calibration of the GPU has
            take the place of these.
        copy_method: How blocks go between CPU and GPU.
        enforce_eager: No CUDA graphs: batches are not padded to the captured sizes, and
            no step is shorter than the launches of its kernels.

    Raises:
        CapacityError: ``tensor_parallel_size`` does not divide the attention heads.
        ProfileError: The GPU's rates are not known.
    """

    def __init__(
        self,
        model: ModelProfile,
        gpu: GpuProfile,
        *,
        tensor_parallel_size: int = 1,
        block_size: int = 16,
        overhead: EngineOverhead = NO_OVERHEAD,
        copy_method: CopyMethod = V0_SWAP,
        enforce_eager: bool = False,
    ) -> None:
        if gpu.calibration is not None:
            overhead = overhead.corrected(gpu.calibration.overhead)
        self.model = model
        self.gpu = gpu
        self.tensor_parallel_size = tensor_parallel_size
        self.overhead = overhead
        self._time = GpuTime(model, gpu, tensor_parallel_size, block_size)
        self._block_bytes = model.block_bytes(block_size, tensor_parallel_size)
        self._copy_method = copy_method
        self._copy_cost = replace(
            MI300X_COPIES if gpu.is_amd else H100_COPIES,
            gb_per_s=gpu.known_rates.pcie_gb_per_s,
        )
        self._is_padded = not enforce_eager
        self._layers_fs = model.num_layers * overhead.layer_ns * FS_PER_NS
        launch_ns = overhead.launch_ns if enforce_eager else 0
        self._launches_fs = model.num_layers * launch_ns * FS_PER_NS
        ranks_ns = (tensor_parallel_size - 1) * overhead.rank_ns
        self._host_fs = (overhead.step_ns + ranks_ns) * FS_PER_NS
        shared_ns = overhead.shared_seq_ns if tensor_parallel_size > 1 else 0
        self._host_seq_fs = (overhead.seq_ns + shared_ns) * FS_PER_NS
        self._prefill = _PrefillTime(self._time)
        self._swap_block_fs = self._copy_cost.copies_fs(
            1, self._block_bytes, copy_method.num_parts(model.num_layers), "each"
        )
        self._of_tokens = cache(self._tokens_time)
        self._of_seqs = cache(self._head_fs)
        self._of_decodes = cache(self._decode_time)
        self._sum_of_tokens = cache(lambda num_tokens: sum(self._of_tokens(num_tokens)))

    @property
    def known_error(self) -> KnownError | None:
        """How far published rows of such models on this GPU were off, or None."""
        return known_error(self.model, self.gpu, enforce_eager=not self._is_padded)

    def step_fs(self, shape: BatchShape) -> int:
        """Femtoseconds of one step, the copies before it included."""
        num_decode_seqs, num_prefill_seqs = shape.num_decode_seqs, shape.num_prefill_seqs
        num_tokens = shape.num_prefill_tokens + num_decode_seqs
        num_seqs = num_prefill_seqs + num_decode_seqs
        step_fs = 0
        if num_tokens:
            decode_fs, context_token_fs = self._of_decodes(num_decode_seqs)
            fixed_fs = self._sum_of_tokens(num_tokens) + self._of_seqs(num_seqs)
            step_fs = (
                max(fixed_fs + decode_fs + self._layers_fs, self._launches_fs)
                + shape.num_context_tokens * context_token_fs
                + self._host_fs
                + num_seqs * self._host_seq_fs
            )
        if num_prefill_seqs:
            step_fs += self._prefill.attention_fs(shape)
        if shape.num_swap_blocks or shape.num_copy_blocks:
            step_fs += self._copy_fs(shape)
        return step_fs

    def growth_fs(self, shape: BatchShape) -> int:
        """Femtoseconds that one more context token per decoding sequence adds.

        Only a pure decode batch without swaps or copies repeats as it is; for any
        other the figure is that of its decoding sequences.
        """
        num_seqs = shape.num_decode_seqs
        return num_seqs * self._of_decodes(num_seqs).context_token_fs

    def transfer_fs(self, num_blocks: int, *, is_load: bool) -> int:
        """Femtoseconds of one transfer between GPU and offload tier, beside the steps."""
        num_parts = self._copy_method.num_parts(self.model.num_layers)
        call = self._copy_method.call(
            num_blocks * num_parts, self._block_bytes / num_parts, is_load=is_load
        )
        return self._copy_cost.copies_fs(
            num_blocks, self._block_bytes, num_parts, call, is_load=is_load
        )

    def swap_fs(self, shape: BatchShape) -> int:
        """Femtoseconds of copies between CPU and GPU, for which the step waits."""
        return shape.num_swap_blocks * self._swap_block_fs

    def parts(self, shape: BatchShape) -> StepParts:
        """Where the time of one step goes; without tokens only the copies remain.

        Without CUDA graphs launches hide behind the kernels, but for what attention
        reads: so a step stays affine in the context.
        """
        copy_fs = self._copy_fs(shape)
        if shape.num_tokens == 0:
            return StepParts(0, 0, 0, 0, 0, 0, copy_fs, 0)
        of_tokens, head_fs = (
            self._of_tokens(shape.num_tokens),
            self._of_seqs(shape.num_seqs),
        )
        decode = self._of_decodes(shape.num_decode_seqs)
        waiting_fs = self._launches_fs - sum(of_tokens) - head_fs - decode.fixed_fs
        attention_fs = (
            decode.fixed_fs
            + shape.num_context_tokens * decode.context_token_fs
            + self._prefill.attention_fs(shape)
        )
        return StepParts(
            linear_fs=of_tokens.linear_fs,
            lm_head_fs=head_fs,
            attention_fs=attention_fs,
            elementwise_fs=of_tokens.elementwise_fs,
            all_reduce_fs=of_tokens.all_reduce_fs,
            layer_fs=max(self._layers_fs, waiting_fs),
            copy_fs=copy_fs,
            host_fs=self._host_fs + shape.num_seqs * self._host_seq_fs,
        )

    def _tokens_time(self, num_tokens: int) -> _TokensTime:
        if self._is_padded:
            num_tokens = graph_size(num_tokens)
        return _TokensTime(
            linear_fs=_fs(self._time.linear_s(num_tokens)),
            elementwise_fs=_fs(self._time.elementwise_s(num_tokens)),
            all_reduce_fs=_fs(self._time.all_reduce_s(num_tokens)),
        )

    def _head_fs(self, num_seqs: int) -> int:
        return _fs(self._time.head_s(num_seqs))

    def _decode_time(self, num_seqs: int) -> _DecodeTime:
        if num_seqs == 0:
            return _DecodeTime(0, 0)
        return _DecodeTime(
            fixed_fs=_fs(self._time.decode_s(num_seqs)),
            context_token_fs=_fs(self._time.context_token_s(num_seqs)),
        )

    def _copy_fs(self, shape: BatchShape) -> int:
        """Swaps over PCIe, then copy-on-write in the GPU's own memory."""
        swap_fs = shape.num_swap_blocks * self._swap_block_fs
        if not shape.num_copy_blocks:
            return swap_fs
        return swap_fs + _fs(self._time.copy_s(shape.num_copy_blocks * self._block_bytes))


class _PrefillTime:
    """Femtoseconds of prefills' attention."""

    def __init__(self, time: GpuTime) -> None:
        self._fixed_fs = _fs(time.prefill_s)
        self._pair_fs = _fs(time.prefill_pair_s)
        self._token_fs = _fs(time.prefill_token_s)
        self._serial_fs = _fs(time.prefill_serial_s)
        self._context_token_fs = _fs(time.prefill_context_token_s)

    def attention_fs(self, shape: BatchShape) -> int:
        """Femtoseconds in all layers; a few tokens after a long prefix mostly read it."""
        if not shape.num_prefill_seqs:
            return 0
        num_tokens = shape.num_prefill_tokens
        compute_fs = shape.prefill_attention * self._pair_fs
        read_fs = shape.num_prefill_context_tokens * self._context_token_fs
        return (
            self._fixed_fs
            + max(compute_fs, read_fs)
            + num_tokens * self._token_fs
            + num_tokens // shape.num_prefill_seqs * self._serial_fs
        )


def known_error(
    model: ModelProfile, gpu: GpuProfile, *, enforce_eager: bool = False
) -> KnownError | None:
    """How far step times on this GPU were off for models such as this, or None.

    The published rows are of dense models of 8 to 70 billion parameters, in some types,
    with CUDA graphs and without windows; of a calibrated GPU, of its own model.
    """
    error = gpu.known_error
    if error is None or model.types not in error.types:
        return None
    if gpu.calibration is not None:
        return error
    is_plain = model.experts is None and model.mla is None and not enforce_eager
    has_windows = any(window is not None for window in model.layer_windows)
    fewest, most = COMPARED_PARAMS
    is_alike = is_plain and not has_windows and fewest <= model.num_params <= most
    return error if is_alike else None


def graph_size(num_tokens: int) -> int:
    """Tokens that a batch is padded to, where a CUDA graph of that size was captured.

    Source: vLLM 0.10 to 0.32, ``config/vllm.py``: 1, 2, 4, multiples of 8 below 256 and
    of 16 from there to 512.
    """
    if num_tokens > MOST_GRAPH_TOKENS or num_tokens <= 2:
        return num_tokens
    multiple = 4 if num_tokens <= 4 else 8 if num_tokens <= 256 else 16
    return -(-num_tokens // multiple) * multiple


def _fs(seconds: float) -> int:
    return round(seconds * FS_PER_S)
