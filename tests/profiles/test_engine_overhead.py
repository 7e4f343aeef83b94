"""Tests for :mod:`profiles.engine_overhead`."""

import csv
import re
import statistics
from dataclasses import fields, replace
from pathlib import Path

import pytest

from profiles.engine_overhead import (
    NO_OVERHEAD,
    V0,
    V1,
    V1_LEAN,
    EngineOverhead,
    engine_overhead,
)
from profiles.gpu import load_gpu
from profiles.model import load_model
from profiles.step_time import BatchShape, RooflineStepTime, StepParts, stretch_fs

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
FS_PER_NS = 10**6
FS_PER_S = 10**15
SHAPE = BatchShape(100, 5050, 2, 8, 8000, num_prefill_context_tokens=100)


def _parts(overhead: EngineOverhead, tensor_parallel_size: int = 1) -> StepParts:
    """Of a batch of 10 sequences of Qwen3-32B on H100."""
    return RooflineStepTime(
        load_model("Qwen3-32B"),
        load_gpu("H100-80GB"),
        tensor_parallel_size=tensor_parallel_size,
        overhead=overhead,
    ).parts(SHAPE)


@pytest.mark.parametrize("version", ["0.4.2", "0.9.0", "0.10.2"])
def test_v0_is_the_same_in_all_its_versions(version: str) -> None:
    """It schedules before each step, whatever the caller says of async scheduling."""
    assert engine_overhead("v0", version) is V0
    assert engine_overhead("v0", version, async_scheduling=True) is V0


@pytest.mark.parametrize(
    ("version", "overhead"),
    [
        ("0.8.5", V1),
        ("0.11.0", V1),
        ("0.13.0", V1),
        ("0.14.0", V1_LEAN),
        ("0.19.1", V1_LEAN),
        ("0.32.0", V1_LEAN),
    ],
)
def test_layers_are_lean_from_0_14_on(version: str, overhead: EngineOverhead) -> None:
    """Graphs of whole steps leave less between the kernels; the rest is as before."""
    assert engine_overhead("v1", version) is overhead
    assert V1_LEAN.layer_ns < V1.layer_ns
    assert replace(V1_LEAN, layer_ns=V1.layer_ns, source=V1.source) == V1


@pytest.mark.parametrize("version", ["0.12.0", "0.19.1"])
def test_async_scheduling_hides_what_a_step_and_its_ranks_take(version: str) -> None:
    """Layers and sequences still count, and the way of a request to the scheduler."""
    plain = engine_overhead("v1", version)

    hidden = engine_overhead("v1", version, async_scheduling=True)
    assert (hidden.step_ns, hidden.rank_ns) == (0, 0)
    assert min(plain.step_ns, plain.rank_ns) > 0
    assert replace(hidden, step_ns=plain.step_ns, rank_ns=plain.rank_ns) == plain


@pytest.mark.parametrize("overhead", [V0, V1, V1_LEAN])
def test_figures_are_nanoseconds_with_a_source(overhead: EngineOverhead) -> None:
    """A slip of a unit leaves the range; each was fitted to rows that are named."""
    assert 5_000 < overhead.layer_ns < 50_000
    assert 200_000 < overhead.launch_ns < 500_000
    assert 200_000 < overhead.step_ns < 1_000_000
    assert 10_000 < overhead.seq_ns < 100_000
    assert 10_000_000 < overhead.request_ns < 30_000_000
    assert ".csv" in overhead.source


def test_no_overhead_is_none_at_all() -> None:
    """Kernels alone: no figure but 0."""
    names = [field.name for field in fields(EngineOverhead) if field.name != "source"]

    assert len(names) == 7
    assert [getattr(NO_OVERHEAD, name) for name in names] == 7 * [0]
    assert (_parts(NO_OVERHEAD).host_fs, _parts(NO_OVERHEAD).layer_fs) == (0, 0)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "host_ns"),
    [(1, 1000 + 10 * 10), (4, 1000 + 10 * (10 + 7) + 3 * 100)],
)
def test_overhead_grows_with_sequences_and_gpus(
    tensor_parallel_size: int, host_ns: int
) -> None:
    """A step pays once, for each further GPU, and for each sequence, shared ones more."""
    overhead = EngineOverhead(
        layer_ns=5,
        launch_ns=10**9,
        step_ns=1000,
        seq_ns=10,
        shared_seq_ns=7,
        rank_ns=100,
        request_ns=10**9,
    )

    parts = _parts(overhead, tensor_parallel_size)
    assert parts.host_fs == host_ns * FS_PER_NS
    assert parts.layer_fs == 64 * 5 * FS_PER_NS


def test_sequences_cost_more_with_several_gpus() -> None:
    """V1's figures say so: 54 us a sequence where layers are shared, 26 where not."""
    seqs_ns = []
    for size in (1, 2):
        few, many = (
            RooflineStepTime(
                load_model("Qwen3-32B"),
                load_gpu("H100-80GB"),
                tensor_parallel_size=size,
                overhead=V1,
            ).parts(BatchShape(0, 0, 0, num_seqs, 1000 * num_seqs))
            for num_seqs in (1, 65)
        )
        seqs_ns.append((many.host_fs - few.host_fs) / 64 / FS_PER_NS)

    assert seqs_ns == [V1.seq_ns, V1.seq_ns + V1.shared_seq_ns]
    assert seqs_ns[1] > 2 * seqs_ns[0]


def test_a_calibration_corrects_figures_by_name() -> None:
    """Others stay; a figure that is not there is an error."""
    assert V1.corrected({"seq_ns": 1}) == replace(V1, seq_ns=1)
    with pytest.raises(TypeError, match="speed_ns"):
        V1.corrected({"speed_ns": 1})


def _static_batches() -> list[tuple[int, int, float]]:
    """Batch, block size and seconds of Llama-3-8B's static batches, 1,024 + 1,024."""
    with (PUBLISHED / "knobs.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["knob"] == "block_size" and row["model"].endswith("Meta-Llama-3-8B")
        ]
    return [
        (
            int(_found(r"batch (\d+)", row["notes"])),
            int(row["setting"]),
            float(_found(r"latency ([\d.]+)", row["notes"])),
        )
        for row in rows
    ]


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None
    return found[1]


def _static_s(num_seqs: int, block_size: int) -> float:
    """Seconds of a batch that starts at once and decodes without others."""
    step_time = RooflineStepTime(
        load_model("Meta-Llama-3-8B"),
        load_gpu("A100-40GB"),
        block_size=block_size,
        overhead=V0,
    )
    num_tokens = num_seqs * 1024
    pairs = num_tokens * 1025 // 2
    prefill = BatchShape(num_tokens, pairs, num_seqs, 0, 0, 0, 0, num_tokens)
    decode = BatchShape(0, 0, 0, num_seqs, num_seqs * 1025)
    decodes_fs = stretch_fs(step_time.step_fs(decode), step_time.growth_fs(decode), 1023)
    return (step_time.step_fs(prefill) + decodes_fs) / FS_PER_S


@pytest.mark.parametrize(
    ("is_small", "num_rows", "median", "most"),
    [(False, 13, 0.025, 0.036), (True, 4, 0.023, 0.047)],
)
def test_static_batches_of_v0_are_met(
    is_small: bool, num_rows: int, median: float, most: float
) -> None:
    """Blocks of 16 and more were fitted; batches with blocks of 8 are met as well."""
    errors = [
        abs(_static_s(num_seqs, block_size) / seconds - 1)
        for num_seqs, block_size, seconds in _static_batches()
        if (block_size < 16) == is_small
    ]

    assert len(errors) == num_rows
    assert statistics.median(errors) == pytest.approx(median, abs=0.002)
    assert max(errors) < most


def test_kernels_alone_are_short_of_static_batches() -> None:
    """Without V0's overhead 64 sequences would end a seventh earlier than they did."""
    step_time = RooflineStepTime(load_model("Meta-Llama-3-8B"), load_gpu("A100-40GB"))
    decode = BatchShape(0, 0, 0, 64, 64 * 1025)
    decodes_fs = stretch_fs(step_time.step_fs(decode), step_time.growth_fs(decode), 1023)

    measured_s = {row[:2]: row[2] for row in _static_batches()}[64, 32]
    assert decodes_fs / FS_PER_S < 0.87 * measured_s
