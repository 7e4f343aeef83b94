"""Tests for :mod:`profiles.gpu_time`."""

from dataclasses import replace

import pytest

from profiles.errors import CapacityError
from profiles.gpu import load_gpu
from profiles.gpu_time import GpuTime
from profiles.kernels import ARITHMETIC, Chip
from profiles.layer import Experts
from profiles.model import load_model

H100, A100 = load_gpu("H100-80GB"), load_gpu("A100-80GB")
KERNELS = H100.known_rates.kernels
CHIP = Chip(bytes_per_s=3350e9, bf16_flop_per_s=989.4e12, link_bytes_per_s=450e9)
LLAMA_8B = load_model("Llama-3.1-8B")
DEEPSEEK_V3 = load_model("DeepSeek-V3")
FP8_BLOCK_BYTES = 1 + 4 / 128**2
NUM_TOKENS = [1, 64, 4096]


def _gemms_s(
    m: int,
    *shapes: tuple[int, int],
    weight_type: str = "bfloat16",
    weight_bytes: float = 2,
) -> float:
    """Seconds on H100 of GEMMs of these inputs and outputs."""
    form, arithmetic = KERNELS.gemm[weight_type], ARITHMETIC[weight_type]
    return sum(
        float(
            form.seconds(
                CHIP, m=m, k=k, n=n, weight_bytes=weight_bytes, arithmetic=arithmetic
            )
        )
        for k, n in shapes
    )


def _fp8_block_s(m: int, *shapes: tuple[int, int]) -> float:
    return _gemms_s(m, *shapes, weight_type="fp8_block", weight_bytes=FP8_BLOCK_BYTES)


def _experts_s(
    num_tokens: int,
    sizes: tuple[int, int, int, int],
    weight_type: str = "bfloat16",
    weight_bytes: float = 2,
) -> float:
    """Seconds on H100 of experts of this hidden size, width, number and number taken."""
    hidden, inter, num_experts, topk = sizes
    seconds = KERNELS.experts[weight_type].seconds(
        CHIP,
        num_tokens=num_tokens,
        hidden=hidden,
        inter=inter,
        num_experts=num_experts,
        topk=topk,
        weight_bytes=weight_bytes,
        arithmetic=ARITHMETIC[weight_type],
    )
    return float(seconds)


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_a_layer_of_llama_is_four_gemms(num_tokens: int) -> None:
    """Q, K and V are one matrix, gate and up another; weights are those of 32 layers."""
    layer_s = _gemms_s(
        num_tokens, (4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)
    )

    seconds = GpuTime(LLAMA_8B, H100).linear_s(num_tokens)

    assert seconds == pytest.approx(32 * layer_s)


@pytest.mark.parametrize(
    ("size", "qkv"), [(2, 3072), (4, 1536), (8, 768), (16, 256 + 2 * 128)]
)
def test_ranks_share_columns_then_rows(size: int, qkv: int) -> None:
    """A rank has a share of each matrix; KV heads are copied once there are too few."""
    inner, width = 4096 // size, 14336 // size
    layer_s = _gemms_s(64, (4096, qkv), (inner, 4096), (4096, 2 * width), (width, 4096))

    assert GpuTime(LLAMA_8B, H100, size).linear_s(64) == pytest.approx(32 * layer_s)


def test_heads_that_cannot_be_shared_are_refused() -> None:
    """No time is made up for a number of ranks that the engine refuses."""
    with pytest.raises(CapacityError, match="tensor_parallel_size is 3"):
        GpuTime(LLAMA_8B, H100, 3)


@pytest.mark.parametrize("size", [1, 8])
def test_the_head_is_a_gemm_of_the_vocabulary(size: int) -> None:
    """One row a sequence, the vocabulary shared out; it stays in bf16 in any model."""
    head_s = _gemms_s(5, (4096, 128256 // size))

    for name in ("Llama-3.1-8B", "Meta-Llama-3.1-8B-Instruct-FP8"):
        head = GpuTime(load_model(name), H100, size).head_s(5)
        assert head == pytest.approx(head_s)


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("size", [1, 4])
def test_experts_are_counted_once(num_tokens: int, size: int) -> None:
    """A layer of Mixtral is attention, a router, and one kernel for all its experts."""
    gemms = (4096, 6144 // size), (4096 // size, 4096), (4096, 8)
    layer_s = _gemms_s(num_tokens, *gemms)
    layer_s += _experts_s(num_tokens, (4096, 14336 // size, 8, 2))

    time = GpuTime(load_model("Mixtral-8x7B-v0.1"), H100, size)

    assert time.linear_s(num_tokens) == pytest.approx(32 * layer_s)


def test_the_router_of_a_quantised_model_is_bf16() -> None:
    """Beside it, attention and experts of Qwen3-30B-A3B-FP8 are in blocks of fp8."""
    layer_s = _fp8_block_s(64, (2048, 5120), (4096, 2048)) + _gemms_s(64, (2048, 128))
    layer_s += _experts_s(64, (2048, 768, 128, 8), "fp8_block", FP8_BLOCK_BYTES)

    time = GpuTime(load_model("Qwen3-30B-A3B-FP8"), H100)

    assert time.linear_s(64) == pytest.approx(48 * layer_s)


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_a_type_without_kernels_is_multiplied_as_bf16(num_tokens: int) -> None:
    """GEMMs of AWQ read four bits, a scale and a zero point for each 128."""
    layer_s = _gemms_s(
        num_tokens,
        (4096, 6144),
        (4096, 4096),
        (4096, 28672),
        (14336, 4096),
        weight_bytes=0.5 + 2.5 / 128,
    )

    time = GpuTime(load_model("Meta-Llama-3.1-8B-Instruct-AWQ-INT4"), H100)

    assert "int4" not in KERNELS.gemm
    assert time.linear_s(num_tokens) == pytest.approx(32 * layer_s)


def test_experts_of_gpt_oss_are_as_wide_as_the_engine_pads_them() -> None:
    """Only they are mxfp4, read at their own bytes; 2,880 inputs become 3,072."""
    layer_s = _gemms_s(64, (2880, 5120), (4096, 2880), (2880, 32))
    layer_s += _experts_s(64, (3072, 2880, 32, 4), weight_bytes=0.5 + 1 / 32)

    time = GpuTime(load_model("gpt-oss-20b"), H100)

    assert time.linear_s(64) == pytest.approx(24 * layer_s)


@pytest.mark.parametrize("size", [1, 8])
def test_deepseek_makes_both_latent_vectors_at_once(size: int) -> None:
    """Their projection is whole on every rank; 3 layers are dense, 58 have experts."""
    heads = 128 // size
    attention_s = _fp8_block_s(
        64,
        (7168, 1536 + 576),
        (1536, heads * 192),
        (512, heads * 256),
        (heads * 128, 7168),
    )
    dense, shared = 18432 // size, 2048 // size
    dense_s = _fp8_block_s(64, (7168, 2 * dense), (dense, 7168))
    sparse_s = _fp8_block_s(64, (7168, 2 * shared), (shared, 7168))
    sparse_s += _gemms_s(64, (7168, 256))
    sparse_s += _experts_s(64, (7168, shared, 256, 8), "fp8_block", FP8_BLOCK_BYTES)

    seconds = GpuTime(DEEPSEEK_V3, H100, size).linear_s(64)

    assert seconds == pytest.approx(61 * attention_s + 3 * dense_s + 58 * sparse_s)


def test_queries_without_a_latent_vector_have_a_gemm_of_their_own() -> None:
    """DeepSeek-V2-Lite shares its q_proj out and keeps the KV projection whole."""
    model = replace(load_model("DeepSeek-V2-Lite"), experts=None)
    gemms = (2048, 8 * 192), (2048, 576), (512, 8 * 256), (8 * 128, 2048)
    layer_s = _gemms_s(64, *gemms, (2048, 10944), (10944 // 2, 2048))

    assert GpuTime(model, H100, 2).linear_s(64) == pytest.approx(27 * layer_s)


@pytest.mark.parametrize(("size", "kv_heads"), [(1, 8), (8, 1), (16, 1)])
def test_decodes_read_the_kv_heads_of_their_rank(size: int, kv_heads: int) -> None:
    """A latency a layer, something for each sequence and head, and bytes by bandwidth."""
    form, time = KERNELS.generation["bfloat16"], GpuTime(LLAMA_8B, H100, size)
    pairs, token_bytes = 40 * kv_heads, 32 * 2 * kv_heads * 128 * 2
    rate = 3350e9 * form.memory_efficiency / (1 + form.split / pairs)

    assert time.decode_s(40) == pytest.approx(32 * (form.latency_s + form.pair_s * pairs))
    assert time.context_token_s(40) == pytest.approx(token_bytes / rate)


def test_a_cache_of_fp8_has_its_own_kernels() -> None:
    """Half of the bytes, at the shares that attention reaches with fp8."""
    form = KERNELS.generation["fp8"]
    time = GpuTime(LLAMA_8B.with_types(kv_cache_dtype="fp8"), H100)
    rate = 3350e9 * form.memory_efficiency / (1 + form.split / 320)

    assert time.context_token_s(40) == pytest.approx(32 * 2 * 1024 / rate)
    assert time.prefill_s == 32 * KERNELS.context["fp8"].latency_s
    assert "fp8" not in A100.known_rates.kernels.generation
    a100 = A100.known_rates.kernels.generation["bfloat16"]
    on_a100 = GpuTime(LLAMA_8B.with_types(kv_cache_dtype="fp8"), A100)
    assert on_a100.decode_s(1) == pytest.approx(32 * (a100.latency_s + 8 * a100.pair_s))


@pytest.mark.parametrize(("size", "is_reading"), [(1, False), (8, True)])
def test_latent_attention_is_the_larger_of_reading_and_arithmetic(
    size: int, is_reading: bool
) -> None:
    """On A100 128 heads multiply for longer than the latent vector takes to read."""
    kernels = A100.known_rates.kernels
    form = kernels.generation["bfloat16"]
    read_s = 61 * 576 * 2 * (1 + form.split / 64) / (2039e9 * form.memory_efficiency)
    flop = 61 * 2 * (128 / size) * (576 + 512)
    multiply_s = flop / (312e12 * kernels.context["bfloat16"].compute_efficiency)

    seconds = GpuTime(DEEPSEEK_V3, A100, size).context_token_s(64)

    assert (read_s > multiply_s) == is_reading
    assert seconds == pytest.approx(max(read_s, multiply_s))


@pytest.mark.parametrize("size", [1, 4])
def test_prefills_multiply_queries_with_keys_and_values(size: int) -> None:
    """4 operations for each pair, head and element; Q, K, V and the outcome are moved."""
    form, time = KERNELS.context["bfloat16"], GpuTime(LLAMA_8B, H100, size)
    flop = 32 * 4 * (32 / size) * 128
    moved = 32 * (2 * 32 + 2 * 8) / size * 128 * 2

    compute_rate = 989.4e12 * form.compute_efficiency
    assert time.prefill_pair_s == pytest.approx(flop / compute_rate)
    memory_rate = 3350e9 * form.memory_efficiency
    assert time.prefill_token_s == pytest.approx(moved / memory_rate)
    assert time.prefill_serial_s == pytest.approx(32 * form.serial_s_per_token)
    assert time.prefill_s == pytest.approx(32 * form.latency_s)


@pytest.mark.parametrize("size", [1, 8])
def test_latent_prefills_have_keys_and_values_for_every_head(size: int) -> None:
    """Queries and keys of 192, values and outcomes of 128."""
    form, time = KERNELS.context["bfloat16"], GpuTime(DEEPSEEK_V3, H100, size)
    heads = 61 * 128 / size

    compute_rate = 989.4e12 * form.compute_efficiency
    pair_s = heads * 2 * (192 + 128) / compute_rate
    assert time.prefill_pair_s == pytest.approx(pair_s)
    moved = heads * 2 * (192 + 128) * 2
    memory_rate = 3350e9 * form.memory_efficiency
    assert time.prefill_token_s == pytest.approx(moved / memory_rate)


def test_prefills_read_the_context_at_full_bandwidth() -> None:
    """A long prompt has tiles enough for all of it."""
    form = KERNELS.generation["bfloat16"]
    rate = 3350e9 * form.memory_efficiency

    seconds = GpuTime(LLAMA_8B, H100).prefill_context_token_s

    assert seconds == pytest.approx(131_072 / rate, rel=1e-5)


def _elements(time: GpuTime) -> float:
    """Elements that the small kernels touch for a token."""
    rate = 3350e9 * KERNELS.gemm["bfloat16"].memory_efficiency
    return time.elementwise_s(1000) / 1000 * rate / 2


@pytest.mark.parametrize("size", [1, 2])
def test_small_kernels_touch_vectors_heads_and_gates(size: int) -> None:
    """Norms touch whole vectors, rotation and gates a rank's share."""
    share = ((2 * 32 + 4 * 8) * 128 + 3 * 14336) / size

    elements = _elements(GpuTime(LLAMA_8B, H100, size))

    assert elements == pytest.approx(32 * (8 * 4096 + share))


def test_gates_of_dense_layers_and_shared_experts_are_touched() -> None:
    """Those of routed experts are in their form: Mixtral has no other."""
    mixtral = load_model("Mixtral-8x7B-v0.1")
    attention = 32 * (8 * 4096 + (2 * 32 + 4 * 8) * 128)
    assert _elements(GpuTime(mixtral, H100)) == pytest.approx(attention)

    experts = mixtral.experts
    assert isinstance(experts, Experts)
    some = replace(experts, layers=frozenset(range(3, 32)), shared_intermediate_size=1024)
    elements = _elements(GpuTime(replace(mixtral, experts=some), H100, 2))
    half = 32 * 8 * 4096 + (32 * (2 * 32 + 4 * 8) * 128) / 2
    assert elements == pytest.approx(half + 3 * (3 * 14336 + 29 * 1024) / 2)


def test_ranks_sum_embeddings_and_twice_a_layer() -> None:
    """Messages are hidden vectors in bf16; one GPU alone sums nothing."""
    once_s = KERNELS.all_reduce.seconds(CHIP, 4, 64 * 4096 * 2)

    assert GpuTime(LLAMA_8B, H100, 4).all_reduce_s(64) == pytest.approx(65 * once_s)
    assert GpuTime(LLAMA_8B, H100).all_reduce_s(64) == 0


def test_a_copy_reads_and_writes() -> None:
    """Copies within the GPU take twice their bytes, by bandwidth."""
    rate = 3350e9 * KERNELS.gemm["bfloat16"].memory_efficiency

    assert GpuTime(LLAMA_8B, H100).copy_s(2**30) == pytest.approx(2 * 2**30 / rate)
