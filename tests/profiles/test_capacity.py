"""Tests for :mod:`profiles.capacity`."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.capacity import (
    BlockPlan,
    GivenSizes,
    blocks_in,
    fewest_gpus,
    plan_blocks,
)
from profiles.errors import CapacityError
from profiles.gpu import load_gpu
from profiles.memory import Deployment
from profiles.model import load_model

LLAMA_8B = load_model("Llama-3.1-8B")
H100 = load_gpu("H100-80GB")


GIVEN = {field.name for field in dataclasses.fields(GivenSizes)}


def _deployment(**changes: Any) -> Deployment:
    """Llama-3.1-8B as vLLM 0.11.0 starts it, but for the batch limits."""
    settings: dict[str, Any] = {
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 8192,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "vllm_version": "0.11.0",
    } | changes
    return Deployment(**settings)


def _plan(*, model: Any = LLAMA_8B, gpu: Any = H100, **changes: Any) -> BlockPlan:
    given = {name: changes.pop(name) for name in GIVEN & changes.keys()}
    sizes = GivenSizes(**({"swap_space_gib": 4.0} | given))
    return plan_blocks(model, gpu, _deployment(**changes), sizes)


# What vLLM printed on real machines, from kv_ground_truth.csv (vllm issue numbers):
# layers, KV heads per GPU, head size, swap GiB, CPU blocks; 16-bit KV, block size 16.
PRINTED_CPU_BLOCKS = [
    pytest.param(32, 8, 128, 4, 2048, id="12330-Llama-3-8B"),
    pytest.param(32, 8, 128, 4, 2048, id="10517-Llama-3.1-8B"),
    pytest.param(32, 32, 128, 4, 512, id="2798-Llama-2-7B"),
    pytest.param(32, 4, 128, 4, 4096, id="2520-Mistral-7B-TP2"),
    pytest.param(80, 1, 128, 4, 6553, id="2217-Llama-2-70B-TP8"),
    pytest.param(40, 20, 128, 8, 1310, id="2136-CodeLlama-13B-TP2"),
    pytest.param(48, 64, 112, 4, 195, id="407-mpt-30b"),
    pytest.param(32, 32, 96, 4, 682, id="6124-Phi-3-vision"),
    pytest.param(48, 8, 128, 4, 1365, id="6509-CodeLlama-34B"),
    pytest.param(40, 8, 128, 4, 1638, id="12126-Llama-3.2-11B"),
    pytest.param(12, 12, 64, 4, 7281, id="2106-opt-125m"),
]


@pytest.mark.parametrize(
    ("num_layers", "num_kv_heads", "head_dim", "swap_space_gib", "num_cpu_blocks"),
    PRINTED_CPU_BLOCKS,
)
def test_cpu_blocks_are_what_vllm_printed(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    swap_space_gib: float,
    num_cpu_blocks: int,
) -> None:
    """Swap space is cut into exactly the blocks that the engine's log showed."""
    model = dataclasses.replace(
        LLAMA_8B,
        num_layers=num_layers,
        num_attention_heads=num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    plan = _plan(model=model, kv_cache_gib=8.0, swap_space_gib=swap_space_gib)

    assert plan.num_cpu_blocks == num_cpu_blocks


@pytest.mark.parametrize(
    ("kv_cache_gib", "num_gpu_blocks"),
    [(11.12, 5691), (3.81, 1952), (2.89, 1478), (4.60, 2356)],
    ids=["12330", "10517-20k", "10517-29k", "OCI-A10"],
)
def test_gpu_blocks_follow_from_the_printed_cache_size(
    kv_cache_gib: float, num_gpu_blocks: int
) -> None:
    """Printed GiB give the printed blocks, within the rounding of the printed digits.

    Rows of kv_ground_truth.csv: vllm issues 12330 and 10517, and the OCI page.
    """
    fewest = _plan(kv_cache_gib=kv_cache_gib - 0.005).num_gpu_blocks
    most = _plan(kv_cache_gib=kv_cache_gib + 0.005).num_gpu_blocks

    assert fewest <= num_gpu_blocks <= most


# memory.csv, llm-d-benchmark on H100, vLLM 0.11.0, 1,024 sequences: printed GiB.
@pytest.mark.parametrize(
    ("name", "tensor_parallel_size", "weights", "activation", "kv_cache"),
    [
        ("Llama-3.1-8B", 1, 14.99, 4.76, 51.38),
        ("Qwen3-32B", 1, 61.03, 5.64, 4.45),
        ("Qwen3-32B", 2, 30.59, 5.64, 34.49),
    ],
)
def test_memory_splits_as_vllm_printed_it(
    name: str,
    tensor_parallel_size: int,
    weights: float,
    activation: float,
    kv_cache: float,
) -> None:
    """Weights, activations and cache are within 1 % of the rows they were set on."""
    budget = _plan(
        model=load_model(name),
        tensor_parallel_size=tensor_parallel_size,
        max_num_seqs=1024,
    ).budget

    assert budget.weights_gib == pytest.approx(weights, rel=0.01)
    assert budget.activation_gib == pytest.approx(activation, rel=0.01)
    assert budget.kv_cache_gib == pytest.approx(kv_cache, rel=0.01)


@pytest.mark.parametrize(("num_tokens", "printed_gib"), [(20_000, 2.07), (29_000, 2.99)])
def test_long_prefills_take_what_the_mlp_holds(
    num_tokens: int, printed_gib: float
) -> None:
    """The activation peak grows with the batch as vllm issue 10517 printed it.

    The row gives it as a difference of two figures of two digits: 0.011 GiB of play.
    """
    plan = _plan(max_num_batched_tokens=num_tokens)

    assert plan.budget.activation_gib == pytest.approx(printed_gib, abs=0.011)


def test_estimate_of_a_row_that_set_nothing() -> None:
    """Llama-3-8B on an H100 of 79.22 GiB is within 4 % of 53.29 GiB (pull 10511)."""
    plan = _plan(gpu=dataclasses.replace(H100, memory_gib=79.22))

    assert plan.kv_cache_gib == pytest.approx(53.29, rel=0.04)
    assert plan.source_of_num_gpu_blocks == "estimated"


def test_facts_replace_the_estimate() -> None:
    """An override beats a given cache size, which beats the estimate."""
    given_gib = _plan(kv_cache_gib=1.0)
    override = _plan(kv_cache_gib=1.0, num_gpu_blocks_override=7)

    assert (given_gib.num_gpu_blocks, given_gib.source_of_num_gpu_blocks) == (
        512,
        "kv_cache_gib",
    )
    assert (override.num_gpu_blocks, override.source_of_num_gpu_blocks) == (
        7,
        "override",
    )


def test_the_largest_pool_is_taken() -> None:
    """The limit itself is still a pool, on the GPU and in swap space."""
    plan = _plan(num_gpu_blocks_override=10**7, num_cpu_blocks_override=10**7)

    assert (plan.num_gpu_blocks, plan.num_cpu_blocks) == (10**7, 10**7)


def test_an_override_excuses_nothing() -> None:
    """An override does not excuse a cache size that means nothing."""
    with pytest.raises(CapacityError, match="kv_cache_gib is nan"):
        _plan(kv_cache_gib=float("nan"), num_gpu_blocks_override=7)


def test_facts_spare_a_model_that_would_not_fit() -> None:
    """With blocks given, nothing has to fit a GPU that is only simulated."""
    plan = _plan(model=load_model("Llama-3.1-70B"), num_gpu_blocks_override=100)

    assert plan.num_gpu_blocks == 100


def test_a_model_too_large_is_refused_with_the_remedy() -> None:
    """70B on one H100 leaves a deficit, never a negative number of blocks.

    Two hold it with a request of 8,192 tokens; one of 131,072 needs four.
    """
    fits = r"leave -.*it starts on 2 GPUs: tensor_parallel_size 2"
    with pytest.raises(CapacityError, match=fits):
        _plan(model=load_model("Llama-3.1-70B"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override is 0"),
        ({"num_gpu_blocks_override": -1}, "at least 1"),
        ({"num_cpu_blocks_override": -1}, "at least 0"),
        ({"swap_space_gib": -4}, "swap_space is -4"),
        ({"swap_space_gib": float("nan")}, "swap_space is nan"),
        ({"swap_space_gib": float("inf")}, "swap_space is inf.*at most 1,000,000"),
        ({"swap_space_gib": 1e300}, r"is 1e\+300.*at most 1,000,000"),
        ({"kv_cache_gib": float("nan")}, "kv_cache_gib is nan"),
        ({"kv_cache_gib": float("inf")}, "kv_cache_gib is inf.*at most 1,000,000"),
        ({"kv_cache_gib": 1e300}, r"is 1e\+300.*at most 1,000,000"),
        ({"kv_cache_gib": 1e6}, "num_gpu_blocks comes to .*lower kv_cache_gib"),
        ({"swap_space_gib": 1e6}, "num_cpu_blocks comes to .*lower swap_space"),
        ({"num_gpu_blocks_override": 10**7 + 1}, "10,000,001.*at most 10,000,000"),
        ({"num_cpu_blocks_override": 10**400}, "at most 10,000,000"),
        ({"max_num_batched_tokens": 10**400}, "at most 2,147,483,647"),
        ({"gpu_memory_utilization": 90}, "above 0 and at most 1"),
        ({"gpu_memory_utilization": 0.0}, "above 0 and at most 1"),
        ({"kv_cache_gib": 0.0}, "one block takes"),
        ({"kv_cache_gib": -1.0}, "kv_cache_gib is -1; one block takes"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"tensor_parallel_size": 5}, "must divide the 32 attention heads"),
    ],
)
def test_nonsense_is_refused_in_words(changes: dict[str, Any], message: str) -> None:
    """A value that means nothing is named, with what it must be."""
    with pytest.raises(CapacityError, match=message):
        _plan(**changes)


@given(
    utilization=st.floats(0.01, 1.0),
    num_tokens=st.integers(1, 10**6),
    num_seqs=st.integers(1, 10**4),
)
def test_blocks_never_outgrow_the_memory(
    utilization: float, num_tokens: int, num_seqs: int
) -> None:
    """Any plan has a block and stays inside its budget; otherwise it is refused."""
    try:
        plan = _plan(
            gpu_memory_utilization=utilization,
            max_num_batched_tokens=num_tokens,
            max_num_seqs=num_seqs,
        )
    except CapacityError:
        return

    assert plan.num_gpu_blocks >= 1
    assert plan.num_gpu_blocks == blocks_in(plan.kv_cache_gib, plan.block_bytes)
    budget = plan.budget
    used_gib = plan.kv_cache_gib + budget.weights_gib + budget.activation_gib
    assert used_gib + budget.non_torch_gib <= utilization * H100.memory_gib + 1e-9


def test_what_a_measurement_adds_goes_into_every_other_plan() -> None:
    """A correction moves the KV cache by itself, and the estimate is no longer loose."""
    plan, corrected = _plan(), _plan(correction_gib=-1.5)

    assert corrected.kv_cache_gib == pytest.approx(plan.kv_cache_gib - 1.5)
    assert corrected.interval == (corrected.num_gpu_blocks, corrected.num_gpu_blocks)
    assert plan.interval[0] < plan.num_gpu_blocks < plan.interval[1]


@pytest.mark.parametrize(
    ("name", "num_gpus"),
    [("Llama-3.1-8B", 1), ("Llama-3.1-70B", 4), ("Llama-3.1-405B", 16)],
)
def test_the_fewest_gpus_are_found(name: str, num_gpus: int) -> None:
    """Weights and activations of 70B need four H100; 405B in bf16 more than eight."""
    found = fewest_gpus(load_model(name), H100, _deployment(max_num_seqs=1024))

    assert found == num_gpus


def test_pipeline_stages_hold_their_layers_only() -> None:
    """Two even stages have blocks of half the size: twice as many fit.

    kv_ground_truth.csv, README of vllm_pp: 3,796 blocks at PP 1, 7,592 at 2.
    """
    whole = _plan(kv_cache_gib=8.0, swap_space_gib=0.0)
    halved = _plan(kv_cache_gib=8.0, swap_space_gib=0.0, pipeline_parallel_size=2)

    assert halved.num_gpu_blocks == 2 * whole.num_gpu_blocks
    assert halved.block_bytes * 2 == whole.block_bytes


def test_the_smallest_rank_decides() -> None:
    """The last stage holds the head and has as many layers: it has the fewest blocks."""
    plan = _plan(pipeline_parallel_size=2)
    alone = LLAMA_8B.num_lm_head_params * 2 / 2**30

    assert plan.budget.weights_gib == pytest.approx(7.5, abs=0.3)
    assert plan.budget.weights_gib > alone


def test_batch_tokens_cost_blocks() -> None:
    """What a token of the batch costs in activations is what vLLM lost of its blocks.

    Vllm issue 2509, Yi-34B-AWQ on four A10 (0.2.7): 4,485 blocks at 20,480 tokens, 758 at
    50,000, 121 KiB a token; the MLP alone accounts for two thirds of it.
    """
    yi = dataclasses.replace(
        LLAMA_8B,
        num_layers=60,
        hidden_size=7168,
        intermediate_size=20480,
        num_attention_heads=56,
        layer_windows=(None,) * 60,
    )
    few, many = (
        _plan(model=yi, tensor_parallel_size=4, max_num_batched_tokens=n, max_num_seqs=1)
        for n in (20_480, 50_000)
    )
    lost_kib = (few.kv_cache_gib - many.kv_cache_gib) * 2**20 / (50_000 - 20_480)

    assert 60 < lost_kib < 121
