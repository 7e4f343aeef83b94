"""How long one engine step takes: batch shape in, exact integer femtoseconds out."""

from functools import cache
from typing import NamedTuple, Protocol

from profiles.errors import ProfileError
from profiles.gpu import GpuProfile, KnownError
from profiles.host_overhead import V0_HOST, HostOverhead
from profiles.model import ModelProfile

FS_PER_NS = 10**6
FS_PER_S = 10**15


class BatchShape(NamedTuple):
    """What one step computes and moves, as far as its duration depends on it.

    Attributes:
        num_prefill_tokens: Tokens computed by prefills, skipped cached ones excluded.
        prefill_attention: Sum over the prefilled sequences of tokens computed times
            the mean context each attends to, in pairs of tokens.
        num_prefill_seqs: Sequences that prefill in this step.
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
    """Where the femtoseconds of one step go; the parts follow one another."""

    gemm_fs: int
    lm_head_fs: int
    attention_fs: int
    elementwise_fs: int
    all_reduce_fs: int
    copy_fs: int
    host_fs: int

    @property
    def total_fs(self) -> int:
        """Femtoseconds of the whole step."""
        return sum(self)


class RooflineStepTime:
    """Each part of a step at the slower of memory and arithmetic, at known efficiency.

    A first model, to be refined: no overlap of parts, no CUDA-graph
    padding, and one host overhead for every machine. For a fixed number of decoding
    sequences the time of a pure decode step is affine in the context tokens, with an
    integer slope, so a stretch of repeated steps has an exact closed form.

    Args:
        model: Architecture; weights and KV cache in the types it names.
        gpu: One of the ``tensor_parallel_size`` equal GPUs.
        tensor_parallel_size: GPUs that share each layer.
        block_size: Tokens per KV block.
        host: Overhead of the engine around the GPU's work.

    Raises:
        CapacityError: ``tensor_parallel_size`` does not divide the attention heads.
        ProfileError: A model with experts, latent attention or quantised weights.
    """

    def __init__(
        self,
        model: ModelProfile,
        gpu: GpuProfile,
        *,
        tensor_parallel_size: int = 1,
        block_size: int = 16,
        host: HostOverhead = V0_HOST,
    ) -> None:
        _refuse_what_is_not_modelled(model)
        self.model = model
        self.gpu = gpu
        self.tensor_parallel_size = tensor_parallel_size
        self.block_size = block_size
        self.host = host
        self._memory_bytes_per_s = gpu.memory_bandwidth_gb_per_s * 1e9
        self._weight_bytes_per_s = self._memory_bytes_per_s * gpu.memory_efficiency
        self._flop_per_s = gpu.bf16_tflop_per_s * 1e12
        self._num_linear_params = model.num_layers * model.num_linear_params_per_layer
        self._attention_latency_fs = (
            model.num_layers * gpu.attention_latency_ns * FS_PER_NS
        )
        self._context_token_fs = self._fs_per_context_token()
        self._attention_pair_fs = self._fs_per_attention_pair()
        self._swap_block_fs = self._fs_per_swap_block()
        self._fs_of_tokens = cache(self._parts_of_tokens)
        self._fs_of_seqs = cache(self._parts_of_seqs)

    @property
    def known_error(self) -> KnownError | None:
        """Error of the GPU's part, measured on rows the fit had not seen, or None."""
        return self.gpu.known_error

    def step_fs(self, shape: BatchShape) -> int:
        """Femtoseconds of one step, the copies before it included."""
        num_tokens = shape.num_prefill_tokens + shape.num_decode_seqs
        if num_tokens == 0:
            return self._copy_fs(shape)
        num_seqs = shape.num_prefill_seqs + shape.num_decode_seqs
        tokens_fs = sum(self._fs_of_tokens(num_tokens))
        seqs_fs = sum(self._fs_of_seqs(num_seqs))
        return tokens_fs + seqs_fs + self._attention_fs(shape) + self._copy_fs(shape)

    def growth_fs(self, shape: BatchShape) -> int:
        """Femtoseconds that one more context token per decoding sequence adds.

        Only a pure decode batch without swaps or copies repeats as it is; for any
        other the figure is that of its decoding sequences.
        """
        return shape.num_decode_seqs * self._context_token_fs

    @property
    def transfer_fs_per_block(self) -> int:
        """Femtoseconds to copy a block between GPU and offload tier, beside the steps.

        One copy a block, in which the layers follow one another.

        Source: vLLM blog of 2026-01-08 on the KV offloading connector; transfer.csv.
        """
        bytes_fs = round(self._block_bytes / (self.gpu.pcie_gb_per_s * 1e9) * FS_PER_S)
        return self.gpu.copy_overhead_ns * FS_PER_NS + bytes_fs

    def swap_fs(self, shape: BatchShape) -> int:
        """Femtoseconds of copies between CPU and GPU, for which the step waits."""
        return shape.num_swap_blocks * self._swap_block_fs

    def parts(self, shape: BatchShape) -> StepParts:
        """Where the time of one step goes; without tokens only the copies remain."""
        num_tokens = shape.num_prefill_tokens + shape.num_decode_seqs
        num_seqs = shape.num_prefill_seqs + shape.num_decode_seqs
        if num_tokens == 0:
            return StepParts(0, 0, 0, 0, 0, self._copy_fs(shape), 0)
        gemm_fs, elementwise_fs, all_reduce_fs = self._fs_of_tokens(num_tokens)
        lm_head_fs, host_fs = self._fs_of_seqs(num_seqs)
        return StepParts(
            gemm_fs=gemm_fs,
            lm_head_fs=lm_head_fs,
            attention_fs=self._attention_fs(shape),
            elementwise_fs=elementwise_fs,
            all_reduce_fs=all_reduce_fs,
            copy_fs=self._copy_fs(shape),
            host_fs=host_fs,
        )

    def _parts_of_tokens(self, num_tokens: int) -> tuple[int, int, int]:
        """Parts that depend on nothing but the number of tokens."""
        return (
            self._matmul_fs(self._num_linear_params, num_tokens),
            self._elementwise_fs(num_tokens),
            self._all_reduce_fs(num_tokens),
        )

    def _parts_of_seqs(self, num_seqs: int) -> tuple[int, int]:
        """Parts that depend on nothing but the number of sequences."""
        lm_head_fs = self._matmul_fs(self.model.num_lm_head_params, num_seqs)
        return lm_head_fs, self._host_fs(num_seqs)

    def _host_fs(self, num_seqs: int) -> int:
        ranks_ns = (self.tensor_parallel_size - 1) * self.host.rank_ns
        return (self.host.step_ns + ranks_ns + num_seqs * self.host.seq_ns) * FS_PER_NS

    def _matmul_fs(self, num_params: int, num_rows: int) -> int:
        """Weights read once, or two operations per weight and row if that is slower."""
        params = num_params / self.tensor_parallel_size
        read_s = params * self.model.bytes_per_param / self._weight_bytes_per_s
        compute_s = (
            2 * params * num_rows / (self._flop_per_s * self.gpu.compute_efficiency)
        )
        return round(max(read_s, compute_s) * FS_PER_S)

    def _attention_fs(self, shape: BatchShape) -> int:
        """Prefills by arithmetic, decodes by the KV cache they read.

        Each of the two kinds launches kernels of its own in every layer.
        """
        num_kinds = (shape.num_prefill_seqs > 0) + (shape.num_decode_seqs > 0)
        return (
            num_kinds * self._attention_latency_fs
            + shape.prefill_attention * self._attention_pair_fs
            + shape.num_context_tokens * self._context_token_fs
        )

    def _fs_per_context_token(self) -> int:
        kv_bytes = self.model.kv_bytes_per_token(self.tensor_parallel_size)
        rate = self._memory_bytes_per_s * self.gpu.attention_memory_efficiency
        return round(kv_bytes / rate * FS_PER_S)

    def _fs_per_attention_pair(self) -> int:
        """QK and PV: two multiply-adds per head element for each pair of tokens."""
        heads = self.model.num_attention_heads / self.tensor_parallel_size
        flop = 4 * self.model.num_layers * heads * self.model.head_dim
        rate = self._flop_per_s * self.gpu.attention_compute_efficiency
        return round(flop / rate * FS_PER_S)

    def _elementwise_fs(self, num_tokens: int) -> int:
        """Activations that norms, rotary embedding and gated MLP read and write.

        Per token and layer: two residual norms read and write two vectors each, the
        rotation reads and writes Q and K, the cache takes K and V, and the gate reads
        two MLP rows and writes one. Derived from the architecture, not fitted.
        """
        model = self.model
        heads = 2 * model.num_attention_heads + 4 * model.num_kv_heads
        shared = heads * model.head_dim + 3 * model.intermediate_size
        elements = 8 * model.hidden_size + shared / self.tensor_parallel_size
        moved_bytes = num_tokens * model.num_layers * elements * model.bytes_per_param
        return round(moved_bytes / self._weight_bytes_per_s * FS_PER_S)

    def _all_reduce_fs(self, num_tokens: int) -> int:
        """Two sums of hidden states per layer; a ring moves 2 (n - 1) / n of each.

        Source: NCCL performance notes, bus bandwidth of all-reduce.
        """
        size = self.tensor_parallel_size
        if size == 1:
            return 0
        message = num_tokens * self.model.hidden_size * self.model.bytes_per_param
        rate = self.gpu.nvlink_gb_per_s * 1e9 * self.gpu.nvlink_efficiency
        transfer_fs = round(2 * (size - 1) / size * message / rate * FS_PER_S)
        latency_fs = self.gpu.all_reduce_latency_ns * FS_PER_NS
        return 2 * self.model.num_layers * (latency_fs + transfer_fs)

    def _copy_fs(self, shape: BatchShape) -> int:
        """Swaps over PCIe, then copy-on-write in the GPU's own memory."""
        if not shape.num_copy_blocks:
            return self.swap_fs(shape)
        moved_bytes = 2 * shape.num_copy_blocks * self._block_bytes
        on_gpu_fs = round(moved_bytes / self._weight_bytes_per_s * FS_PER_S)
        return self.swap_fs(shape) + on_gpu_fs

    def _fs_per_swap_block(self) -> int:
        """K and V of every layer are separate copies; each pays its overhead.

        Source: vLLM 0.5.5 ``cache_kernels.cu`` ``swap_blocks``, called per layer, one
        ``cudaMemcpyAsync`` per block for K and one for V.
        """
        num_copies = 2 * self.model.num_layers
        bytes_fs = round(self._block_bytes / (self.gpu.pcie_gb_per_s * 1e9) * FS_PER_S)
        return num_copies * self.gpu.copy_overhead_ns * FS_PER_NS + bytes_fs

    @property
    def _block_bytes(self) -> int:
        return self.model.block_bytes(self.block_size, self.tensor_parallel_size)


def _refuse_what_is_not_modelled(model: ModelProfile) -> None:
    parts = {
        "experts": model.experts,
        "latent attention": model.mla,
        "quantised weights": model.quantization,
    }
    missing = [part for part, found in parts.items() if found is not None]
    if missing:
        raise ProfileError(
            f"step times of models with {' and '.join(missing)} are not known yet, and"
            f" {model.name} has them; blockbench capacity sizes it, and a replay needs a"
            " dense model in bf16 such as meta-llama/Llama-3.1-8B"
        )
