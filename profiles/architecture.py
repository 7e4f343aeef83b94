"""What a decoder is made of, and the numbers of parameters that follow from it."""

from dataclasses import dataclass, replace

from profiles.errors import CapacityError, ProfileError
from profiles.layer import Experts, Mla, Module
from profiles.quantization import Quantization, requantized

BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
BYTES_OF_KV_DTYPE = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A decoder: attention and an MLP or experts in each of its layers.

    Attributes:
        max_model_len: Tokens that the positions reach to.
        bytes_per_param: Of what is not quantised; 2 for bf16.
        bytes_per_kv: Of one element of the KV cache, 2 for bf16.
        qk_norm: Whether each query and key head is normalised (Qwen3).
        has_wide_qk_norm: Whether all heads of a token are normalised together (OLMo 2).
        num_norms_per_layer: Norms of hidden vectors in a layer; 4 in Gemma 2.
        has_norm_bias: Norms have a bias beside the weight (LayerNorm).
        has_sinks: Each head has a number that its attention may go to (gpt-oss).
        num_positions: Rows of the table of learned positions; 0 where there is none.
        rotary_dim: Elements of a head that are rotated; 0 where positions are learned.
        layer_windows: For each layer the tokens that it attends to, the newest included,
            or None where it attends to all.
        source: Where the architecture was read.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_model_len: int
    bytes_per_param: int = 2
    bytes_per_kv: int = 2
    is_mlp_gated: bool = True
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_lm_head_bias: bool = False
    has_norm_bias: bool = False
    has_sinks: bool = False
    qk_norm: bool = False
    has_wide_qk_norm: bool = False
    num_norms_per_layer: int = 2
    num_positions: int = 0
    rotary_dim: int
    layer_windows: tuple[int | None, ...]
    mla: Mla | None = None
    experts: Experts | None = None
    quantization: Quantization | None = None
    source: str

    @property
    def sliding_window(self) -> int | None:
        """Tokens that every layer attends to; None where they differ or attend to all."""
        return None if self.mixes_windows else self.layer_windows[0]

    @property
    def mixes_windows(self) -> bool:
        """Layers differ, so that an engine keeps a group of KV caches for each kind."""
        return len(set(self.layer_windows)) > 1

    @property
    def has_experts(self) -> bool:
        """Whether some layer has experts in place of one MLP."""
        return self.experts is not None

    @property
    def num_params(self) -> int:
        """Parameters of the decoder: draft layers and vision towers do not count."""
        num_tables = 1 if self.tie_word_embeddings else 2
        layers = sum(
            sum(module.num_params for module in self.layer_modules(layer))
            + self.num_vector_params(layer)
            for layer in range(self.num_layers)
        )
        tables = num_tables * self.num_lm_head_params + self.num_position_params
        head_biases = self.vocab_size if self.has_lm_head_bias else 0
        return layers + tables + head_biases + self.num_norm_params

    @property
    def num_active_params(self) -> int:
        """Parameters without the experts that a token does not take, tables included."""
        if self.experts is None:
            return self.num_params
        num_idle = self.experts.num_experts - self.experts.num_experts_per_token
        of_experts = sum(
            module.num_params // module.num
            for layer in self.experts.layers
            for module in self.layer_modules(layer)
            if module.num > 1
        )
        return self.num_params - num_idle * of_experts

    @property
    def num_lm_head_params(self) -> int:
        """Parameters that each sampled token is multiplied with."""
        return self.vocab_size * self.hidden_size

    @property
    def num_position_params(self) -> int:
        """Parameters of the table of learned positions."""
        return self.num_positions * self.hidden_size

    @property
    def num_norm_params(self) -> int:
        """Parameters of one norm of a hidden vector."""
        return self.hidden_size * (2 if self.has_norm_bias else 1)

    def layer_modules(self, layer: int, tensor_parallel_size: int = 1) -> list[Module]:
        """The linear layers of a layer, as much of them as one rank holds.

        Raises:
            CapacityError: The attention heads cannot be shared out evenly.
        """
        size = tensor_parallel_size
        attention = self._mla(self.mla, size) if self.mla else self._attention(size)
        if self.experts is None or layer not in self.experts.layers:
            modules = attention + self._mlp("mlp", self.intermediate_size, size)
        else:
            modules = attention + self._experts(self.experts, size)
        return [
            module._replace(name=f"model.layers.{layer}.{module.name}")
            for module in modules
        ]

    @property
    def types(self) -> str:
        """Those of weights and KV cache; ``bfloat16`` where nothing is quantised."""
        quantization = self.quantization
        weights = "bfloat16" if quantization is None else quantization.weight_type
        return f"{weights}, KV {'fp8' if self.bytes_per_kv == 1 else 'bfloat16'}"

    def weight_type(self, module: str) -> tuple[str, float]:
        """Type of a linear layer's weights, and bytes of each with its share of scales.

        Routers keep the dtype, whose type is called ``bfloat16`` whatever it is.
        """
        quantization = self.quantization
        is_router = module.endswith("mlp.gate")
        if quantization is None or is_router or not quantization.has_quantized(module):
            return "bfloat16", self.bytes_per_param
        return quantization.weight_type, quantization.bytes_per_param

    def num_vector_params(self, layer: int) -> int:
        """Parameters of a layer that are no matrices, all of them on every rank."""
        num_params = self.num_norms_per_layer * self.num_norm_params
        if self.qk_norm:
            num_params += 2 * self.head_dim
        if self.has_wide_qk_norm:
            num_params += (self.num_attention_heads + self.num_kv_heads) * self.head_dim
        if self.has_sinks:
            num_params += self.num_attention_heads
        if self.mla is not None:
            num_params += self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
        return num_params

    def _attention(self, size: int) -> list[Module]:
        hidden = self.hidden_size
        kv_outputs = self.kv_heads_per_gpu(size) * self.head_dim
        q_outputs = self.num_attention_heads // size * self.head_dim
        has_bias = self.has_qkv_bias
        return [
            Module("self_attn.q_proj", hidden, q_outputs, has_bias * q_outputs),
            Module("self_attn.k_proj", hidden, kv_outputs, has_bias * kv_outputs),
            Module("self_attn.v_proj", hidden, kv_outputs, has_bias * kv_outputs),
            Module("self_attn.o_proj", q_outputs, hidden, self.has_o_bias * hidden),
        ]

    def _mla(self, mla: Mla, size: int) -> list[Module]:
        """Projections to the latent vectors are whole on every rank."""
        self.kv_heads_per_gpu(size)
        hidden, heads = self.hidden_size, self.num_attention_heads // size
        q_outputs = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        kv_outputs = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        modules = [Module("self_attn.q_proj", hidden, q_outputs)]
        if mla.q_lora_rank is not None:
            modules = [
                Module("self_attn.q_a_proj", hidden, mla.q_lora_rank),
                Module("self_attn.q_b_proj", mla.q_lora_rank, q_outputs),
            ]
        return [
            *modules,
            Module("self_attn.kv_a_proj_with_mqa", hidden, mla.latent_dim),
            Module("self_attn.kv_b_proj", mla.kv_lora_rank, kv_outputs),
            Module("self_attn.o_proj", heads * mla.v_head_dim, hidden),
        ]

    def _mlp(self, name: str, width: int, size: int) -> list[Module]:
        share, hidden = -(-width // size), self.hidden_size
        inward = ("gate_proj", "up_proj") if self.is_mlp_gated else ("up_proj",)
        has_bias = self.has_mlp_bias
        return [
            *(Module(f"{name}.{n}", hidden, share, has_bias * share) for n in inward),
            Module(f"{name}.down_proj", share, hidden, has_bias * hidden),
        ]

    def _experts(self, experts: Experts, size: int) -> list[Module]:
        """A rank holds a share of each expert, or as many whole ones: the bytes agree."""
        hidden, num = self.hidden_size, experts.num_experts
        inner = replace(self, has_mlp_bias=experts.has_bias)
        modules = [Module("mlp.gate", hidden, num, experts.has_router_bias * num)]
        modules += [
            module._replace(num=num)
            for module in inner._mlp("mlp.experts", experts.intermediate_size, size)
        ]
        if experts.shared_intermediate_size:
            width = experts.shared_intermediate_size
            modules += self._mlp("mlp.shared_experts", width, size)
        if experts.has_shared_gate:
            modules.append(Module("mlp.shared_expert_gate", hidden, 1))
        return modules

    def kv_heads_per_gpu(self, tensor_parallel_size: int) -> int:
        """KV heads on each GPU: shared out, and copied once there are too few.

        Raises:
            CapacityError: The attention or KV heads cannot be shared out evenly.

        Source: vLLM config.py ``get_num_kv_heads``; a latent vector is one head.
        """
        if tensor_parallel_size < 1 or self.num_attention_heads % tensor_parallel_size:
            raise CapacityError(
                f"tensor_parallel_size is {tensor_parallel_size}",
                f"it must divide the {self.num_attention_heads} attention heads of"
                f" {self.name}",
                "use a power of two such as 1, 2, 4 or 8",
            )
        if self.mla is not None:
            return 1
        fewer, more = sorted((self.num_kv_heads, tensor_parallel_size))
        if more % fewer:
            raise CapacityError(
                f"tensor_parallel_size is {tensor_parallel_size}",
                f"it must divide the {self.num_kv_heads} KV heads of {self.name}, or be a"
                " multiple of them",
                "use a power of two such as 1, 2, 4 or 8, as far as the KV heads allow",
            )
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of KV cache that one token takes on each GPU, all layers together."""
        heads = self.kv_heads_per_gpu(tensor_parallel_size)
        elements = self.mla.latent_dim if self.mla else 2 * heads * self.head_dim
        return self.num_layers * elements * self.bytes_per_kv

    def block_bytes(self, block_size: int, tensor_parallel_size: int = 1) -> int:
        """Bytes of one KV block on each GPU; ``block_size`` is in tokens."""
        return block_size * self.kv_bytes_per_token(tensor_parallel_size)

    def with_types(
        self,
        dtype: str | None = None,
        quantization: str | None = None,
        kv_cache_dtype: str | None = None,
    ) -> "ModelProfile":
        """The same model in the types of vLLM's options of these names.

        None and ``auto`` leave what the checkpoint says; the KV cache then follows dtype.

        Raises:
            ProfileError: A type is unknown, or does not follow from this checkpoint.
        """
        bytes_per_param = _bytes_of("dtype", dtype, BYTES_OF_DTYPE, self.bytes_per_param)
        by_default = self.bytes_per_kv if dtype in (None, "auto") else bytes_per_param
        quantized = self.quantization
        if quantization not in (None, "auto"):
            quantized = requantized(quantized, str(quantization), self.name)
        return replace(
            self,
            bytes_per_param=bytes_per_param,
            bytes_per_kv=_bytes_of(
                "kv_cache_dtype", kv_cache_dtype, BYTES_OF_KV_DTYPE, by_default
            ),
            quantization=quantized,
        )


def _bytes_of(option: str, value: str | None, known: dict[str, int], default: int) -> int:
    if value is None or value == "auto":
        return default
    if value not in known:
        raise ProfileError(
            f"{option} is {value!r}; it must be auto or one of {', '.join(known)}; leave"
            " it out for what the checkpoint says"
        )
    return known[value]
