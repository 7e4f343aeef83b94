"""Tests for :mod:`profiles.vllm_v1`."""

import csv
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import CapacityError, ProfileError
from profiles.gpu import GpuProfile, load_gpu
from profiles.vllm_v1 import (
    DEFAULT_V1_VERSION,
    V1Defaults,
    has_option,
    is_newer_than_known,
    num_offload_blocks,
    offered_block_sizes,
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
    return v1_defaults(version, **({"gpu": gpu, "max_model_len": 8192} | knobs))


@pytest.mark.parametrize("row", published(), ids=lambda row: str(row["vllm"]))
def test_options_and_defaults_are_the_published_ones(row: dict[str, str]) -> None:
    """Each version has the defaults and the options that its row in the table says."""
    version = row["vllm"]
    known = defaults(version)

    assert known.gpu_memory_utilization == float(row["gpu_memory_utilization_default"])
    assert known.async_scheduling == row["async_scheduling"].startswith("auto")
    assert has_option("async_scheduling", version) == (row["async_scheduling"] != "no")
    for name in ("watermark", "scheduler_reserve_full_isl", "kv_offloading_size"):
        assert has_option(name, version) == row[name].startswith("yes")
    sizes = offered_block_sizes(version)
    listed = row["block_size_choices"]
    assert listed == (
        "any the attention backend accepts"
        if sizes is None
        else " ".join(map(str, sizes))
    )


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
