"""What a model's kernels take on a GPU: which kernels a step launches, and how large.

docs/step_time.md says what each kind rests on.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, TypeVar

from profiles.gpu import GpuProfile
from profiles.kernels import ARITHMETIC, Chip, DecodeAttention, PrefillAttention
from profiles.layer import Module
from profiles.model import ModelProfile

FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up"}
FUSED |= {"up_proj": "gate_up", "q_a_proj": "qkv_a", "kv_a_proj_with_mqa": "qkv_a"}
"""Linear layers of the same input that an engine keeps as one matrix.

Source: vLLM ``QKVParallelLinear``, ``MergedColumnParallelLinear``.
"""

ACTIVATION_BYTES = 2

MEASURED_BLOCK_SIZE = 16
"""Of the kernels that were condensed, and the unit of FlashAttention's blocks."""

PAGE_BYTES = 4096
"""A block costs a layer's attention as much as reading so many bytes more.

Source: knobs.csv, argonne, Llama-3-8B on A100, block sizes 128 and 16, a batch of 64.
"""

LEAST_READ = 0.75
"""Large blocks leave at least this share of the reading of a small KV cache.

Source: as far as a row goes (knobs.csv, argonne, Mixtral on four A100, size 128).
"""

READ_AGAIN = 0.22
"""Share of the KV cache that each further query head of a group reads for itself.

Only with blocks that FlashAttention does not take: vLLM's own kernel serves heads one by
one. Source: knobs.csv, argonne, Llama-3-8B on A100, block sizes 8 and 16, a batch of 64;
with as many KV heads as heads (Llama-2-7B) size 8 costs 1.5 %.
"""

_Form = TypeVar("_Form")


class _Matrix(NamedTuple):
    """A GEMM of a layer, or all of a layer's experts, on one rank.

    Attributes:
        num: Experts, each of so many outputs and inputs; 1 for a plain GEMM.
    """

    num_inputs: int
    num_outputs: int
    weight_type: str
    weight_bytes: float
    num: int


class GpuTime:
    """Seconds of a model's kernels on one of ``tensor_parallel_size`` equal GPUs.

    Args:
        model: In the types that its weights and KV cache have.
        gpu: Its rates and kernels.
        tensor_parallel_size: GPUs that share each layer.
        block_size: Tokens in a KV block.

    Raises:
        CapacityError: The attention heads cannot be shared out evenly.
        ProfileError: Nobody knows the GPU's rates.
    """

    def __init__(
        self,
        model: ModelProfile,
        gpu: GpuProfile,
        tensor_parallel_size: int = 1,
        block_size: int = MEASURED_BLOCK_SIZE,
    ) -> None:
        rates = gpu.known_rates
        self._model = model
        self._size = tensor_parallel_size
        self._kernels = rates.kernels
        self._has_links = rates.nvlink_gb_per_s > rates.pcie_gb_per_s
        self._chip = Chip(
            bytes_per_s=rates.memory_bandwidth_gb_per_s * 1e9,
            bf16_flop_per_s=rates.bf16_tflop_per_s * 1e12,
            link_bytes_per_s=rates.nvlink_gb_per_s * 1e9,
        )
        self._matrices = self._count_matrices()
        self._kv_heads = model.kv_heads_per_gpu(tensor_parallel_size)
        self._kv_bytes = model.kv_bytes_per_token(tensor_parallel_size)
        self._read_bytes = self._bytes_read(block_size)

    # -- linear layers ---------------------------------------------------------------

    def linear_s(self, num_tokens: int) -> float:
        """Seconds of the linear layers and experts of all layers."""
        return sum(
            count * self._matrix_s(matrix, num_tokens)
            for matrix, count in self._matrices.items()
        )

    def head_s(self, num_rows: int) -> float:
        """Seconds of the language head for so many sequences."""
        model = self._model
        head = _Matrix(
            model.hidden_size,
            -(-model.vocab_size // self._size),
            "bfloat16",
            model.bytes_per_param,
            1,
        )
        return self._matrix_s(head, num_rows)

    def _matrix_s(self, matrix: _Matrix, num_tokens: int) -> float:
        if matrix.num > 1:
            return self._experts_s(matrix, num_tokens)
        gemm, arithmetic = _of_type(self._kernels.gemm, matrix.weight_type)
        return float(
            gemm.seconds(
                self._chip,
                m=num_tokens,
                n=matrix.num_outputs,
                k=matrix.num_inputs,
                weight_bytes=matrix.weight_bytes,
                arithmetic=arithmetic,
            )
        )

    def _experts_s(self, matrix: _Matrix, num_tokens: int) -> float:
        experts, arithmetic = _of_type(self._kernels.experts, matrix.weight_type)
        assert self._model.experts is not None
        return float(
            experts.seconds(
                self._chip,
                num_tokens=num_tokens,
                hidden=matrix.num_inputs,
                inter=matrix.num_outputs,
                num_experts=matrix.num,
                topk=self._model.experts.num_experts_per_token,
                weight_bytes=matrix.weight_bytes,
                arithmetic=arithmetic,
            )
        )

    def _count_matrices(self) -> Counter[_Matrix]:
        found: Counter[_Matrix] = Counter()
        for layer in range(self._model.num_layers):
            found.update(self._matrices_of(layer))
        return found

    def _matrices_of(self, layer: int) -> list[_Matrix]:
        """A layer's GEMMs, those of one input fused; its experts as one matrix."""
        fused: dict[str, _Matrix] = {}
        for module in self._model.layer_modules(layer, self._size):
            path, _, name = module.name.rpartition(".")
            if module.num > 1 and name == "down_proj":
                continue  # the form for experts counts all three of their matrices
            key = f"{path}.{FUSED.get(name, name)}"
            matrix = self._matrix(module)
            if module.num == 1 and key in fused:
                outputs = fused[key].num_outputs + matrix.num_outputs
                matrix = matrix._replace(num_outputs=outputs)
            fused[key] = matrix
        return list(fused.values())

    def _matrix(self, module: Module) -> _Matrix:
        """The matrix of a linear layer; experts as wide as the engine pads them."""
        weight_type, num_bytes = self._model.weight_type(module.name)
        num_inputs, quantization = module.num_inputs, self._model.quantization
        if module.num > 1 and quantization is not None:
            multiple = quantization.hidden_multiple
            num_inputs = -(-num_inputs // multiple) * multiple
        return _Matrix(num_inputs, module.num_outputs, weight_type, num_bytes, module.num)

    # -- attention -------------------------------------------------------------------

    def decode_s(self, num_seqs: int) -> float:
        """Seconds of the decoding sequences' attention before any token is read."""
        pairs = num_seqs * self._kv_heads
        return self._model.num_layers * float(self._decode.fixed_s(pairs))

    def context_token_s(self, num_seqs: int) -> float:
        """Seconds for each KV token that so many decoding sequences read.

        Latent attention multiplies each latent with every head, and may take longer at
        that than to read it.
        """
        pairs = num_seqs * self._kv_heads
        read_s = self._read_bytes * self._decode.seconds_per_byte(self._chip, pairs)
        mla = self._model.mla
        if mla is None:
            return float(read_s)
        flop = 2 * self._num_heads * (mla.latent_dim + mla.kv_lora_rank)
        flop *= self._model.num_layers
        return float(max(read_s, self._prefill.arithmetic_s(self._chip, flop)))

    def _bytes_read(self, block_size: int) -> float:
        """Bytes for each token of a decode's context, with what its blocks cost."""
        pages = 1 / block_size - 1 / MEASURED_BLOCK_SIZE
        num_bytes = self._kv_bytes + self._model.num_layers * PAGE_BYTES * pages
        num_bytes = max(num_bytes, LEAST_READ * self._kv_bytes)
        if block_size % MEASURED_BLOCK_SIZE == 0 or self._model.mla is not None:
            return num_bytes
        group_size = self._num_heads / self._kv_heads
        return num_bytes * (1 + READ_AGAIN * (group_size - 1))

    @cached_property
    def prefill_s(self) -> float:
        """Seconds of a prefill's attention before anything is computed."""
        return self._model.num_layers * self._prefill.latency_s

    @cached_property
    def prefill_pair_s(self) -> float:
        """Seconds for each pair of tokens of which one attends to the other."""
        mla, head_dim = self._model.mla, 2 * self._model.head_dim
        if mla is not None:
            head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
        flop = 2 * self._num_heads * head_dim * self._model.num_layers
        return float(self._prefill.arithmetic_s(self._chip, flop))

    @cached_property
    def prefill_token_s(self) -> float:
        """Seconds of attention for each token that is prefilled.

        Latent attention makes keys and values of each head from the latent vector.
        """
        mla = self._model.mla
        if mla is None:
            vectors = 2 * self._num_heads + 2 * self._kv_heads
            elements = vectors * self._model.head_dim
        else:
            elements = 2 * self._num_heads * (self._model.head_dim + mla.v_head_dim)
        moved = self._model.num_layers * elements * ACTIVATION_BYTES
        return float(self._prefill.moving_s(self._chip, moved))

    @cached_property
    def prefill_serial_s(self) -> float:
        """Seconds of attention for each token of the longest sequence prefilled."""
        return self._model.num_layers * self._prefill.serial_s_per_token

    @cached_property
    def prefill_context_token_s(self) -> float:
        """Seconds to read a KV token that prefills attend to, once for each layer."""
        many = 2**20
        return float(self._kv_bytes * self._decode.seconds_per_byte(self._chip, many))

    @property
    def _num_heads(self) -> float:
        return self._model.num_attention_heads / self._size

    @cached_property
    def _decode(self) -> DecodeAttention:
        return _of_cache(self._kernels.generation, self._model)

    @cached_property
    def _prefill(self) -> PrefillAttention:
        return _of_cache(self._kernels.context, self._model)

    # -- the rest of a layer -----------------------------------------------------------

    def elementwise_s(self, num_tokens: int) -> float:
        """Seconds to read and write what norms, rotary embedding and gated MLP touch.

        Per token and layer: two residual norms read and write two vectors each, the
        rotation reads and writes Q and K, the cache takes K and V, and the gate reads
        two MLP rows and writes one; that of routed experts is in their form. Derived
        from the architecture, not fitted.
        """
        model = self._model
        heads = (2 * self._num_heads + 4 * self._kv_heads) * model.head_dim
        elements = model.num_layers * (8 * model.hidden_size + heads)
        elements += 3 * self._mlp_width / self._size
        rate = self._chip.bytes_per_s * self._kernels.gemm["bfloat16"].memory_efficiency
        return num_tokens * elements * ACTIVATION_BYTES / rate

    @property
    def _mlp_width(self) -> int:
        """Width of the MLPs that every token takes, all layers together."""
        model, experts = self._model, self._model.experts
        if experts is None:
            return model.num_layers * model.intermediate_size
        num_sparse = len(experts.layers)
        num_dense = model.num_layers - num_sparse
        dense = num_dense * model.intermediate_size
        return dense + num_sparse * experts.shared_intermediate_size

    def all_reduce_s(self, num_tokens: int) -> float:
        """Seconds of two sums of hidden vectors in each layer, and one of embeddings.

        Source: vLLM 0.14 ``RowParallelLinear``, ``VocabParallelEmbedding``.
        """
        if self._size == 1:
            return 0.0
        message = num_tokens * self._model.hidden_size * ACTIVATION_BYTES
        once_s = self._kernels.all_reduce.seconds(
            self._chip, self._size, message, has_links=self._has_links
        )
        return (2 * self._model.num_layers + 1) * once_s

    def copy_s(self, num_bytes: int) -> float:
        """Seconds to copy so many bytes within the GPU's memory."""
        efficiency = self._kernels.gemm["bfloat16"].memory_efficiency
        return 2 * num_bytes / (self._chip.bytes_per_s * efficiency)


def _of_type(forms: Mapping[str, _Form], weight_type: str) -> tuple[_Form, float]:
    """The form for a type of weights, and its arithmetic over that of bf16.

    A type without kernels of its own is read as it is and multiplied as bf16.
    """
    if weight_type in forms:
        return forms[weight_type], ARITHMETIC[weight_type]
    return forms["bfloat16"], 1


def _of_cache(forms: Mapping[str, _Form], model: ModelProfile) -> _Form:
    return forms.get("fp8" if model.bytes_per_kv == 1 else "", forms["bfloat16"])
