"""Tests for :mod:`harness.sizing`: cases of operators about sizes (cases.md, group B)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError, UsageError
from harness.sizing import Sizer, Sizing, refuse_beyond_host
from profiles.errors import CapacityError
from profiles.startup_log import StartupLog


def _sizer(**changes: Any) -> Sizer:
    settings: dict[str, Any] = {
        "model": "Llama-3.1-8B",
        "gpu": "H100-80GB",
        "vllm_version": "0.11.0",
    } | changes
    return Sizer(**settings)


def _size(sizer: Sizer, **knobs: Any) -> Sizing:
    return sizer.size(**knobs)


V0_ON_3090 = {"gpu": "RTX-3090", "vllm_version": "0.6.3"}


@pytest.mark.parametrize(
    ("max_model_len", "starts"),
    [(20_000, True), (29_000, False), (35_000, True), (45_000, True)],
)
def test_longer_may_fit_where_shorter_did_not(max_model_len: int, starts: bool) -> None:
    """Above 32,768 tokens v0 turns to chunks; activations shrink (vllm issue 10517)."""
    assert _size(_sizer(**V0_ON_3090), max_model_len=max_model_len).starts == starts


def test_the_longest_is_searched_on_both_sides_of_the_turn() -> None:
    """What starts is the longest of all, not the last before one that does not."""
    longest = _size(_sizer(**V0_ON_3090), max_model_len=29_000).max_model_len_that_fits

    assert longest is not None
    assert longest > 45_000
    assert _size(_sizer(**V0_ON_3090), max_model_len=longest).starts
    assert not _size(_sizer(**V0_ON_3090), max_model_len=longest + 1).starts


@pytest.mark.parametrize(
    ("model", "knobs", "version", "longest"),
    [
        # vllm issue 38516 (0.17), 29233 (CPU, 0.11 or 0.12): what the refusal named.
        ("Qwen3-4B", {"kv_cache_gib": 4.89}, "0.17.1", 35_600),
        ("Qwen3-0.6B", {"kv_cache_gib": 4.0, "block_size": 128}, "0.12.0", 37_376),
        # One block is never handed out, which later versions know (vllm pull 47272).
        ("Qwen3-0.6B", {"kv_cache_gib": 4.0, "block_size": 128}, "0.32.0", 37_248),
    ],
)
def test_a_refusal_names_the_longest_length(
    model: str, knobs: dict[str, Any], version: str, longest: int
) -> None:
    """The estimated maximum model length is vLLM's."""
    sizing = _size(_sizer(model=model, vllm_version=version), **knobs)

    assert not sizing.starts
    assert sizing.max_model_len_that_fits == longest


def test_nothing_but_fewer_tokens_helps_without_memory_for_one_block() -> None:
    """No length starts where no block fits; the error says how many GPUs would do."""
    with pytest.raises(CapacityError, match=r"it starts on 4 GPUs"):
        _size(_sizer(model="Llama-3.1-70B"))


@pytest.mark.parametrize(("version", "is_noted"), [("0.11.0", True), ("0.32.0", False)])
def test_graphs_need_room_where_they_are_captured_later(
    version: str, is_noted: bool
) -> None:
    """At 0.995 old versions leave less than their graphs take; new ones count them in."""
    sizing = _size(_sizer(vllm_version=version), gpu_memory_utilization=0.995)
    noted = [note for note in sizing.notes if "CUDA graphs take" in note]

    assert bool(noted) == is_noted
    if noted:
        assert ": 0.99 leaves 0.15 GiB" in noted[0]
        lower = _size(_sizer(vllm_version=version), gpu_memory_utilization=0.99)
        assert lower.headroom_gib >= 0.15


def test_what_few_short_requests_can_never_fill_is_said() -> None:
    """One sequence of 1,024 tokens fills 1,024 of 175,856 tokens (vllm issue 33263)."""
    sizing = _size(
        _sizer(model="Qwen3-1.7B"), kv_cache_gib=18.78, max_num_seqs=1, max_model_len=1024
    )

    assert any("can fill 1,024 of 175,8" in note for note in sizing.notes)


def test_latent_attention_is_the_same_on_every_rank() -> None:
    """DeepSeek-R1 keeps 70,272 bytes of a token on each GPU, however many share it."""
    sizes = [
        _size(
            _sizer(model="DeepSeek-R1", gpu="H200"),
            tensor_parallel_size=size,
            kv_cache_gib=10,
        )
        for size in (8, 16)
    ]

    assert {s.plan.block_bytes for s in sizes} == {16 * 70_272}


def test_fp8_halves_the_blocks_bytes() -> None:
    """As many tokens again fit into the same memory."""
    whole, half = (
        _size(_sizer(kv_cache_dtype=dtype), kv_cache_gib=10) for dtype in ("auto", "fp8")
    )

    assert half.kv_cache_tokens == 2 * whole.kv_cache_tokens


@pytest.mark.parametrize(
    ("settings", "knobs", "error", "message"),
    [
        (
            {"gpu": "V100-32GB", "kv_cache_dtype": "fp8"},
            {},
            ConfigError,
            "V100-32GB has no",
        ),
        (
            {"vllm_version": "0.32.0"},
            {"swap_space": 4.0},
            UsageError,
            "kv-offloading-size",
        ),
        ({"gpu": "T4", "dtype": "bfloat16"}, {}, ConfigError, "give --dtype float16"),
        (
            {"vllm_version": "0.5.5", "kv_cache_dtype": "bfloat16"},
            {},
            ConfigError,
            "0.5.5 has no --kv-cache-dtype bfloat16; it has auto, fp8, fp8_e4m3",
        ),
        (
            {"model": "DeepSeek-V2-Lite", "vllm_version": "0.7.0"},
            {},
            ConfigError,
            "keeps whole heads of deepseek-ai/DeepSeek-V2-Lite",
        ),
        ({}, {"performance_mode": "throughput"}, UsageError, "it came with 0.17"),
        (
            {"vllm_version": "0.6.3"},
            {"performance_mode": "throughput"},
            UsageError,
            "v0 has one set of defaults",
        ),
        ({}, {"tensor_parallel_size": 3}, CapacityError, "must divide the 32 attention"),
        ({"gpu": "CPU"}, {}, ConfigError, "give --kv-cache-gib"),
        ({}, {"gpu_memory_utilization": 0.2}, CapacityError, "leave -"),
    ],
)
def test_nonsense_is_refused_in_words(
    settings: dict[str, Any], knobs: dict[str, Any], error: type, message: str
) -> None:
    """Each error names what is wrong and what to do."""
    with pytest.raises(error, match=message):
        _size(_sizer(**settings), **knobs)


def test_swap_space_is_of_every_gpu() -> None:
    """Eight ranks of 4 GiB take 32 GiB of the host: more than 70 % of 40."""
    sizer = _sizer(model="Llama-3.1-70B", policy="v0", vllm_version="0.6.3")
    sizing = _size(sizer, tensor_parallel_size=8, swap_space=4.0)

    assert sizing.host_memory_gib == 32
    refuse_beyond_host(sizing, 64)
    with pytest.raises(ConfigError, match="take 32 of 40 GiB"):
        refuse_beyond_host(sizing, 40)


@settings(max_examples=25, deadline=None)
@given(
    num_tokens=st.integers(1, 400_000),
    stages=st.sampled_from([1, 3]),
    model=st.sampled_from(["Llama-3.1-8B", "gpt-oss-20b"]),
)
def test_the_smallest_utilization_is_the_smallest(
    num_tokens: int, stages: int, model: str
) -> None:
    """It holds the tokens, and a hundredth less does not, whichever rank decides."""
    sizer = _sizer(model=model, vllm_version="0.32.0")
    knobs = {"pipeline_parallel_size": stages}
    utilization = sizer.smallest_utilization(num_tokens, **knobs)
    enough = _size(sizer, **knobs, gpu_memory_utilization=utilization)

    assert enough.kv_cache_tokens >= num_tokens
    lower = round(utilization - 0.01, 2)
    try:
        less = _size(sizer, **knobs, gpu_memory_utilization=lower)
    except CapacityError:
        return
    assert less.kv_cache_tokens < num_tokens


def test_a_log_is_believed_and_carried_over() -> None:
    """Another setting differs from the printed one by as much as the estimates do."""
    log = StartupLog(num_gpu_blocks=20_000, weights_gib=14.99, activation_gib=6.0)
    sizer = _sizer(log=log)
    printed, wider = _size(sizer), _size(sizer, gpu_memory_utilization=0.95)

    assert printed.plan.num_gpu_blocks == 20_000
    assert printed.plan.budget.activation_gib == 6.0
    assert printed.plan.source_of_num_gpu_blocks == "log"
    gained_gib = wider.plan.kv_cache_gib - printed.plan.kv_cache_gib
    assert gained_gib == pytest.approx(0.05 * 79.18)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (StartupLog(num_gpu_blocks=-1), "-1 blocks fitted"),
        (StartupLog(num_gpu_blocks=0), "0 blocks fitted"),
        (StartupLog(kv_cache_gib=-2.28), "0 blocks fitted"),
        (StartupLog(weights_gib=14.99), "neither blocks nor tokens nor memory"),
        (StartupLog(kv_cache_tokens=99, kv_tokens_reliable=False), "neither blocks"),
    ],
)
def test_a_log_without_blocks_is_refused(log: StartupLog, message: str) -> None:
    """What vLLM refused, or never printed, is no size."""
    with pytest.raises(CapacityError, match=message):
        _size(_sizer(log=log))


def test_impossible_figures_of_a_log_are_left_out() -> None:
    """A GPU of 0 GiB is none, graphs below 0 are none, and what the log notes is told."""
    log = StartupLog(
        num_gpu_blocks=100, total_gpu_gib=0.0, cuda_graph_gib=-0.45, notes=("two ranks",)
    )
    sizing = _size(_sizer(log=log))

    assert sizing.gpu.memory_gib == 79.18
    assert sizing.plan.budget.cuda_graph_gib == 0
    assert "two ranks" in sizing.notes


@pytest.mark.parametrize(
    ("version", "block_size", "words"),
    [
        ("0.6.3", 64, "does not offer block size 64; it has 8, 16, 32"),
        ("0.11.0", 2, "does not offer block size 2"),
        ("0.32.0", 8, "FlashAttention has multiples of 16"),
        ("0.32.0", 32, ""),
    ],
)
def test_block_sizes_that_a_version_lacks_are_noted(
    version: str, block_size: int, words: str
) -> None:
    """As a run would note it."""
    sizing = _size(_sizer(vllm_version=version), block_size=block_size)
    noted = [note for note in sizing.notes if "block size" in note]

    assert (words in noted[0]) if words else (noted == [])


def test_throughput_doubles_the_batch() -> None:
    """Both limits, where nobody set them (vLLM 0.32.0 ``arg_utils.py``)."""
    sizer = _sizer(vllm_version="0.32.0")
    usual, doubled = (
        _size(sizer, performance_mode=mode).deployment for mode in (None, "throughput")
    )

    assert doubled.max_num_seqs == 2 * usual.max_num_seqs
    assert doubled.max_num_batched_tokens == 2 * usual.max_num_batched_tokens


def test_unified_memory_holds_the_cpu_blocks_too(tmp_path: Path) -> None:
    """Swap space comes out of the same memory, and a high utilization is warned of."""
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "Jetson-64"\nmemory_gib = 61.4\nis_unified = true\n'
        "memory_bandwidth_gb_per_s = 204.8\nbf16_tflop_per_s = 42.5\n"
        'pcie_gb_per_s = 100.0\nkernels_of = "A100-80GB"\n'
        "[sources]\n"
        + "".join(
            f'{key} = "a test"\n'
            for key in (
                "memory_gib",
                "memory_bandwidth_gb_per_s",
                "bf16_tflop_per_s",
                "pcie_gb_per_s",
            )
        )
    )
    sizer = _sizer(gpu=str(path), vllm_version="0.6.3")
    without, beside = (_size(sizer, swap_space=gib) for gib in (0.0, 4.0))

    lost_gib = without.plan.kv_cache_gib - beside.plan.kv_cache_gib
    assert lost_gib == pytest.approx(4.0, abs=0.01)
    assert any("shares its memory" in note for note in beside.notes)
    lower = _size(sizer, gpu_memory_utilization=0.8)
    assert not any("shares its memory" in note for note in lower.notes)


def test_tier_blocks_are_as_large_as_those_of_the_pool() -> None:
    """8 GiB of host memory hold 21,845 blocks of gpt-oss-20b's groups of 12 layers."""
    sizing = _size(
        _sizer(model="gpt-oss-20b", vllm_version="0.32.0"), kv_offloading_size=8.0
    )

    assert sizing.plan.num_cpu_blocks == 8 * 2**30 // sizing.plan.block_bytes == 21_845


def test_the_least_of_tokens_and_memory_counts() -> None:
    """8.69 GiB were one rank's; 81,536 tokens are what all had (vllm issue 13061)."""
    log = StartupLog(kv_cache_tokens=81_536, kv_cache_gib=8.69)
    sizer = _sizer(model="DeepSeek-R1-Distill-Qwen-14B", gpu="RTX-4090", log=log)
    sizing = _size(sizer, tensor_parallel_size=2)

    assert sizing.kv_cache_tokens == 81_536
    assert sizing.plan.kv_cache_gib == pytest.approx(7.46, abs=0.01)
