"""Tests for :mod:`profiles.vllm_v1`."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import CapacityError, ProfileError
from profiles.gpu import GpuProfile, gpu_names, load_gpu
from profiles.vllm_v1 import (
    DEFAULT_V1_VERSION,
    SWAP_SPACE_REMOVED,
    V1Defaults,
    has_option,
    is_hybrid_allocator_default,
    is_newer_than_known,
    num_offload_blocks,
    offered_block_sizes,
    subtracts_cuda_graphs,
    v1_defaults,
    v1_support,
)
from profiles.vllm_version import parse_version

KNOBS = Path(__file__).resolve().parents[1] / "data" / "published" / "vllm_knobs.csv"
H100, A100 = load_gpu("H100-80GB"), load_gpu("A100-80GB")
MIB = 2**20


def published() -> list[dict[str, str]]:
    """Rows of the versions that run v1 by themselves."""
    with KNOBS.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["engines"].startswith("v1")]


def defaults(
    version: str = DEFAULT_V1_VERSION, gpu: GpuProfile = H100, **knobs: Any
) -> V1Defaults:
    """Defaults for 8,192 tokens unless told otherwise."""
    given: dict[str, Any] = {"gpu": gpu, "max_model_len": 8192} | knobs
    return v1_defaults(version, **given)


@pytest.mark.parametrize("row", published(), ids=lambda row: str(row["vllm"]))
def test_options_and_defaults_are_the_published_ones(row: dict[str, str]) -> None:
    """Each version has the defaults and the options that its row in the table says."""
    version = row["vllm"]
    known = defaults(version)

    assert known.gpu_memory_utilization == float(row["gpu_memory_utilization_default"])
    assert known.async_scheduling == row["async_scheduling"].startswith("auto")
    assert has_option("async_scheduling", version) == (row["async_scheduling"] != "no")
    for name in (
        "watermark",
        "scheduler_reserve_full_isl",
        "kv_offloading_size",
        "kv_cache_memory_bytes",
        "prefix_match_unit",
    ):
        assert has_option(name, version) == row[name].startswith("yes")
    assert known.scheduler_reserve_full_isl == (
        "default on" in row["scheduler_reserve_full_isl"]
    )
    assert row["prefix_caching_default"].startswith("on") == known.enable_prefix_caching
    assert row["block_size_default"].startswith(f"{known.block_size} ")
    is_removed = parse_version(version) >= SWAP_SPACE_REMOVED
    assert is_removed == (row["swap_space"] == "removed")
    sizes = offered_block_sizes(version)
    listed = row["block_size_choices"]
    assert listed == (
        "any the attention backend accepts"
        if sizes is None
        else " ".join(map(str, sizes))
    )


@pytest.mark.parametrize("row", published(), ids=lambda row: str(row["vllm"]))
def test_limits_of_a_batch_are_the_published_ones(row: dict[str, str]) -> None:
    """Small GPUs and A100, large ones, and those of 160 GiB have limits of their own."""
    small, large = re.findall(r"serve (\d+)", row["max_num_batched_tokens_default"])
    assert row["max_num_seqs_default"] == (
        "256; 1024 on GPUs of 70 GiB and more other than A100"
    )
    is_told_apart = "16384 at 160 GiB" in row["max_num_batched_tokens_default"]
    huge = "16384" if is_told_apart else large

    for name in gpu_names()[:-1]:
        gpu = load_gpu(name)
        known = defaults(row["vllm"], gpu, max_model_len=131072)
        is_small = gpu.memory_gib < 70 or name.startswith("A100")
        tokens = small if is_small else huge if gpu.memory_gib >= 160 else large
        assert known.max_num_batched_tokens == int(tokens), name
        assert known.max_num_seqs == (256 if is_small else 1024), name


def test_no_published_version_is_unknown() -> None:
    """The last row of the table is the last version whose options are known."""
    newest = max(parse_version(row["vllm"]) for row in published())

    assert not is_newer_than_known(str(newest))
    assert is_newer_than_known(f"{newest.major}.{newest.minor + 1}.0")


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("0.7.3", "none"),
        ("0.8.0", "approximate"),
        ("0.30.0", "approximate"),
        ("0.31.0", "exact"),
        ("0.32.0", "exact"),
        ("0.32.1", "exact"),
        ("0.33.0", "approximate"),
    ],
)
def test_support_is_exact_where_decisions_were_recorded(
    version: str, support: str
) -> None:
    """Policy v1 is exact for 0.32, approximate for others since 0.8."""
    assert v1_support(version) == support


def test_versions_without_v1_have_no_defaults() -> None:
    """Before 0.8 nothing runs v1 by itself."""
    with pytest.raises(ProfileError, match="use policy v0"):
        defaults("0.7.3")


def test_large_gpus_batch_more() -> None:
    """An H100 takes batches of 8,192 tokens and 1,024 sequences, an A100 of 2,048."""
    large, small = defaults(), defaults(gpu=A100)

    assert (large.max_num_batched_tokens, large.max_num_seqs) == (8192, 1024)
    assert (small.max_num_batched_tokens, small.max_num_seqs) == (2048, 256)


@pytest.mark.parametrize(
    ("knobs", "num_tokens", "num_seqs"),
    [
        ({"enable_chunked_prefill": False, "max_model_len": 9000}, 9000, 1024),
        ({"enable_chunked_prefill": False, "max_model_len": 500}, 8192, 1024),
        ({"max_num_seqs": 3, "max_model_len": 500}, 1500, 3),
        ({"max_num_batched_tokens": 300}, 300, 300),
        ({"max_num_batched_tokens": 300, "max_num_seqs": 7}, 300, 7),
        ({"max_model_len": 1}, 1024, 1024),
    ],
)
def test_limits_of_a_batch_depend_on_each_other(
    knobs: dict[str, Any], num_tokens: int, num_seqs: int
) -> None:
    """Only what was not given gives way to what was."""
    known = defaults(**knobs)

    assert (known.max_num_batched_tokens, known.max_num_seqs) == (num_tokens, num_seqs)


@pytest.mark.parametrize(
    ("name", "num_tokens"),
    [("H100-PCIe", 8192), ("H100-NVL", 8192), ("MI300X", 16384), ("B200", 16384)],
)
def test_memory_decides_over_the_kind_of_gpu(name: str, num_tokens: int) -> None:
    """Boards of an H100 are as the H100; AMD's GPU counts by its memory like a B200."""
    known = defaults(gpu=load_gpu(name))

    assert (known.max_num_batched_tokens, known.max_num_seqs) == (num_tokens, 1024)


def test_cpu_backend_has_defaults_of_its_own() -> None:
    """Its limits grow with the ranks; blocks are large and scheduling is not ahead."""
    one, two = defaults(gpu=load_gpu("cpu")), defaults(gpu=load_gpu("cpu"), num_gpus=2)

    assert (one.max_num_batched_tokens, one.max_num_seqs) == (2048, 128)
    assert (two.max_num_batched_tokens, two.max_num_seqs) == (4096, 256)
    assert one.block_size == 128
    assert not one.async_scheduling


@pytest.mark.parametrize(
    ("knobs", "num_tokens", "num_seqs"),
    [
        ({}, 16384, 2048),
        ({"gpu": A100}, 4096, 512),
        ({"max_num_seqs": 5}, 16384, 5),
        ({"max_num_batched_tokens": 300}, 300, 300),
        ({"enable_chunked_prefill": False, "max_model_len": 20000}, 20000, 2048),
        ({"max_model_len": 2}, 4096, 2048),
    ],
)
def test_throughput_mode_doubles_what_nobody_gave(
    knobs: dict[str, Any], num_tokens: int, num_seqs: int
) -> None:
    """Both limits of a batch double before the rules between them apply."""
    known = defaults(performance_mode="throughput", **knobs)

    assert (known.max_num_batched_tokens, known.max_num_seqs) == (num_tokens, num_seqs)


@pytest.mark.parametrize("mode", [None, "balanced", "interactivity"])
def test_other_modes_leave_batches_alone(mode: str | None) -> None:
    """Interactivity is about CUDA graphs, and balanced is the default."""
    assert defaults(performance_mode=mode) == defaults()


def test_unknown_modes_are_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(ProfileError, match="balanced, interactivity, throughput"):
        defaults(performance_mode="fast")


@pytest.mark.parametrize(
    ("name", "since", "before"),
    [
        ("performance_mode", "0.17.0", "0.16.0"),
        ("kv_cache_memory_bytes", "0.10.2", "0.10.1"),
        ("prefix_match_unit", "0.26.0", "0.25.1"),
    ],
)
def test_options_came_with_a_version(name: str, since: str, before: str) -> None:
    """An option is there from its version on, and not in the one before."""
    assert has_option(name, since)
    assert not has_option(name, before)


def test_cuda_graphs_are_subtracted_since_0_21() -> None:
    """The log of later versions says so; 0.20 only offered it."""
    assert subtracts_cuda_graphs("0.21.0")
    assert not subtracts_cuda_graphs("0.20.2")


def test_hybrid_allocator_came_with_0_9_1() -> None:
    """Before, sliding-window layers are billed as full attention."""
    assert is_hybrid_allocator_default("0.9.1")
    assert not is_hybrid_allocator_default("0.9.0")


@pytest.mark.parametrize(
    ("gib", "block_bytes", "num_ranks", "num_blocks"),
    [
        (1, 2 * MIB, 1, 512),
        (1, MIB, 2, 512),
        (1.5, 2 * MIB, 1, 768),
        (3 * MIB / 2**30, 2 * MIB, 1, 1),
        (12288 / 2**30, 4097, 1, 1),
        (8192 / 2**30, 1024, 4, 2),
    ],
)
def test_tier_holds_whole_blocks_of_all_ranks(
    gib: float, block_bytes: int, num_ranks: int, num_blocks: int
) -> None:
    """The memory is of all ranks together, and a block of them ends on a page."""
    assert num_offload_blocks(gib, block_bytes, num_ranks) == num_blocks


@pytest.mark.parametrize("gib", [0, -1, 0.001, float("nan"), float("inf"), 1e6])
def test_tiers_that_cannot_be_are_refused(gib: float) -> None:
    """Less than a block is no tier, and there is an end to the books."""
    with pytest.raises(CapacityError, match="kv_offloading_size is"):
        num_offload_blocks(gib, 2 * MIB, 1)
