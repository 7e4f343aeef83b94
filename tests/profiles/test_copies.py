"""Times of KV copies are near those that others measured; versions copy as they do."""

import importlib
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.copies import (
    H100_COPIES,
    LEAST_KERNEL_COPIES,
    NUM_COPIES_AHEAD,
    SMALL_BYTES,
    CopyCall,
    CopyMethod,
    copy_method,
)
from profiles.errors import ProfileError

CALLS: tuple[CopyCall, CopyCall] = ("each", "batch")
MIB = 2**20
FS_PER_MS = 10**12
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

sys.path.append(str(BENCHMARKS))
fidelity_copies: Any = importlib.import_module("fidelity_copies")

HELD_OUT = [
    (fidelity_copies.EACH, 13, 0.032),
    (fidelity_copies.BATCH, 9, 0.069),
    (fidelity_copies.KERNEL, 26, 0.055),
    (fidelity_copies.RATIO, 26, 0.066),
    (fidelity_copies.TTFT, 22, 0.058),
]
FITTED = [
    (fidelity_copies.EACH, 13, 0.017),
    (fidelity_copies.BATCH, 9, 0.045),
    (fidelity_copies.RATIO, 14, 0.031),
    (fidelity_copies.TTFT, 11, 0.014),
]


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    """Every published row with our time."""
    found: list[Any] = fidelity_copies.compared()
    return found


@pytest.mark.parametrize(("family", "num_rows", "error"), HELD_OUT)
def test_held_out_rows_are_near(
    rows: list[Any], family: str, num_rows: int, error: float
) -> None:
    """Rows that set no constant have the stated median error, below the bar of 20 %."""
    errors = fidelity_copies.errors_of(rows, family, is_fitted=False)

    assert len(errors) == num_rows
    assert statistics.median(errors) == pytest.approx(error, abs=0.001)
    assert statistics.median(errors) <= fidelity_copies.MOST_MEDIAN_ERROR


@pytest.mark.parametrize(("family", "num_rows", "error"), FITTED)
def test_fitted_rows_are_nearer(
    rows: list[Any], family: str, num_rows: int, error: float
) -> None:
    """Rows that set the constants have the stated median error."""
    errors = fidelity_copies.errors_of(rows, family, is_fitted=True)

    assert len(errors) == num_rows
    assert statistics.median(errors) == pytest.approx(error, abs=0.001)


def test_report_prints_families_and_meets_its_gates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report names each family once and both gates are met."""
    is_met = fidelity_copies.print_copies()
    printed = capsys.readouterr().out

    assert is_met
    assert printed.count("met     held out") == 2
    assert "| each block a call         | 13       | 1.7%" in printed


@pytest.mark.parametrize(
    ("block_bytes", "is_load", "gb_per_s"),
    [
        (2 * MIB, False, 46.2),
        (2 * MIB, True, 47.7),
        (32 * 1024, False, 8.15),
        (32 * 1024, True, 7.47),
    ],
)
def test_each_block_a_call_has_the_published_rate(
    block_bytes: int, is_load: bool, gb_per_s: float
) -> None:
    """1,000 blocks on H100 (vLLM blog 2026-01-08, figures 3 and 4), within 15 %."""
    fs = H100_COPIES.copies_fs(1000, block_bytes, 1, "each", is_load=is_load)

    assert 1000 * block_bytes / fs * 1e6 == pytest.approx(gb_per_s, rel=0.15)


def test_both_directions_share_the_link() -> None:
    """Reads and writes of 2 MiB at once sum to 83.4 GB/s on H100 (the same blog)."""
    fs = H100_COPIES.copies_fs(1000, 2 * MIB, 1, "each", is_both_ways=True)

    assert 2 * 1000 * 2 * MIB / fs * 1e6 == pytest.approx(83.4, rel=0.01)


@pytest.mark.parametrize(
    ("num_layers", "saved_ms"), [(24, 580 - 300), (36, 830 - 340)], ids=["20b", "120b"]
)
def test_one_call_saves_what_llm_d_saw(num_layers: int, saved_ms: int) -> None:
    """What gpt-oss saved lies between copying full-attention layers and copying all.

    llm-d-kv-cache pull 607: 128k tokens, TP 4, so 8 KiB for 16 tokens of a layer; every
    other layer keeps a window only.
    """
    num_blocks, layer_bytes = 128 * 1024 // 16, 16 * 2 * 2 * 64 * 2

    def saved_of(num_copied: int) -> float:
        each, batch = (
            H100_COPIES.copies_fs(num_blocks, num_copied * layer_bytes, num_copied, call)
            for call in CALLS
        )
        return (each - batch) / FS_PER_MS

    assert saved_of(num_layers // 2) < saved_ms < saved_of(num_layers)


def test_cut_blocks_cost_more_calls_for_the_same_bytes() -> None:
    """64 parts of a block add 63 calls; the bytes stay."""
    whole = H100_COPIES.copies_fs(10, 2 * MIB, 1, "each")
    parts = H100_COPIES.copies_fs(10, 2 * MIB, 64, "each")

    assert parts - whole == 10 * 63 * H100_COPIES.copy_ns * 10**6


@pytest.mark.parametrize("call", ["each", "batch", "kernel"])
def test_no_blocks_take_no_time(call: CopyCall) -> None:
    """A transfer of nothing makes no call."""
    assert H100_COPIES.copies_fs(0, 2 * MIB, 1, call) == 0


def test_small_copies_of_a_batch_are_slow_to_the_gpu_alone() -> None:
    """The cliff at 28 KiB is that of loads; stores have none."""
    load, store = (
        [
            H100_COPIES.copies_fs(50_000, size, 1, "batch", is_load=is_load)
            for size in (SMALL_BYTES - 1024, SMALL_BYTES)
        ]
        for is_load in (True, False)
    )

    assert load[0] > 4 * load[1]
    assert store[0] < store[1]


def test_later_copies_of_a_batch_are_prepared_meanwhile() -> None:
    """Past the first 10,000 copies only bytes are added."""
    first, second, third = (
        H100_COPIES.copies_fs(n * NUM_COPIES_AHEAD, 64 * 1024, 1, "batch")
        for n in (1, 2, 3)
    )

    assert third - second == pytest.approx(64 * 1024 * NUM_COPIES_AHEAD / 50.4 * 1e6)
    assert first > second - first


def test_slow_link_slows_small_copies_too() -> None:
    """No rate is above that of the link."""
    slow = replace(H100_COPIES, gb_per_s=4.0)
    fs = slow.copies_fs(1000, 16 * 1024, 1, "batch")

    assert fs > 1000 * 16 * 1024 / 4.0 * 1e6


@pytest.mark.parametrize(
    ("policy", "version", "cut", "is_batch", "has_kernel"),
    [
        ("v0", "0.5.5", "key_and_value", False, False),
        ("v0", "0.10.2", "key_and_value", False, False),
        ("v1", "0.11.0", "key_and_value", False, False),
        ("v1", "0.11.2", "key_and_value", False, False),
        ("v1", "0.12.0", "block", False, False),
        ("v1", "0.19.1", "block", False, False),
        ("v1", "0.20.2", "block", True, False),
        ("v1", "0.23.0", "layer", True, True),
        ("v1", "0.33.0", "layer", True, True),
    ],
)
def test_versions_copy_as_their_source_says(
    policy: str, version: str, cut: Any, is_batch: bool, has_kernel: bool
) -> None:
    """Each change is at the first release known to have it."""
    assert copy_method(policy, version) == CopyMethod(cut, is_batch, has_kernel)


@pytest.mark.parametrize(
    ("version", "cut"), [("0.23.0", "block"), ("0.28.1", "block"), ("0.29.0", "layer")]
)
def test_models_with_experts_kept_whole_blocks_longer(version: str, cut: str) -> None:
    """Their model runner had blocks across layers until 0.28."""
    assert copy_method("v1", version, has_experts=True).cut == cut


def test_v1_before_offloading_is_refused() -> None:
    """The message says what is there and what to give."""
    with pytest.raises(ProfileError, match="0.10.2 has no OffloadingConnector.*0.11"):
        copy_method("v1", "0.10.2")


@pytest.mark.parametrize(
    ("version", "block_bytes", "copy_bytes"),
    [
        ("0.11.0", 2 * MIB, 32 * 1024),
        ("0.12.0", 2 * MIB, 2 * MIB),
        ("0.23.0", 2 * MIB, 64 * 1024),
    ],
)
def test_llama_8b_is_cut_as_published(
    version: str, block_bytes: int, copy_bytes: int
) -> None:
    """32 KiB a copy in 0.11.0, 2 MiB in 0.12.0 (the blog's table); then K with V."""
    assert block_bytes / copy_method("v1", version).num_parts(32) == copy_bytes


def test_kernel_takes_small_loads_alone() -> None:
    """Few copies, large ones and stores stay with the one call."""
    method = copy_method("v1", "0.23.0")
    few = LEAST_KERNEL_COPIES - 1

    assert method.call(few + 1, SMALL_BYTES - 8, is_load=True) == "kernel"
    assert method.call(few, SMALL_BYTES - 8, is_load=True) == "batch"
    assert method.call(few + 1, SMALL_BYTES, is_load=True) == "batch"
    assert method.call(few + 1, SMALL_BYTES - 8, is_load=False) == "batch"
    assert copy_method("v1", "0.12.0").call(1000, 64, is_load=True) == "each"
