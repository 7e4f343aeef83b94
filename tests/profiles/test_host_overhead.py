"""The errors that docs/step_time.md states for v1's TPOT are those of the rows."""

import csv
import math
import statistics
from pathlib import Path

import pytest

from profiles.gpu import load_gpu
from profiles.host_overhead import (
    V0_HOST,
    V1_ASYNC_HOST,
    V1_HOST,
    HostOverhead,
    host_overhead,
)
from profiles.model import load_model
from profiles.step_time import BatchShape, RooflineStepTime

ROWS = Path(__file__).resolve().parents[1] / "data" / "published" / "tpot_v1.csv"
MS = 10**12


def rows(use: str) -> list[dict[str, str]]:
    """Published TPOT of vLLM 0.11 and 0.12 that was fitted, or kept to check."""
    with ROWS.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["use"] == use]


def tpot_ms(row: dict[str, str], host: HostOverhead) -> float:
    """A step's mean time where as many prompts are computed as requests end."""
    prompt, output = int(row["isl"]), int(row["osl"])
    num_seqs = float(row["num_seqs"])
    step_time = RooflineStepTime(
        load_model(row["model"]),
        load_gpu(row["gpu"]),
        tensor_parallel_size=int(row["tp"]),
        host=host,
    )
    decode = (max(1, round(num_seqs)), int(num_seqs * (prompt + output / 2)))
    num_prompts = math.ceil(num_seqs / output)
    pairs = num_prompts * prompt * (prompt + 1) // 2
    plain = step_time.step_fs(BatchShape(0, 0, 0, *decode))
    mixed = step_time.step_fs(
        BatchShape(num_prompts * prompt, pairs, num_prompts, *decode)
    )
    return (plain + num_seqs / output / num_prompts * (mixed - plain)) / MS


def errors(use: str, host: HostOverhead) -> list[float]:
    """Relative errors of the predictions."""
    return [tpot_ms(row, host) / float(row["tpot_ms"]) - 1 for row in rows(use)]


@pytest.mark.parametrize(
    ("use", "num_rows", "median", "bias"),
    [("fit", 26, 0.025, 0.005), ("check", 21, 0.074, 0.074)],
)
def test_stated_errors_are_the_measured_ones(
    use: str, num_rows: int, median: float, bias: float
) -> None:
    """TPOT is met within 2.5 % in the median, and 7 % too long where prompts prevail."""
    found = errors(use, V1_HOST)

    assert len(found) == num_rows
    assert statistics.median(map(abs, found)) == pytest.approx(median, abs=0.001)
    assert statistics.mean(found) == pytest.approx(bias, abs=0.001)


def test_without_overhead_the_rows_are_not_met() -> None:
    """The GPU's time alone is 16 % short in the median of the rows that were fitted."""
    found = errors("fit", V1_ASYNC_HOST)

    assert statistics.median(found) == pytest.approx(-0.162, abs=0.0005)


def test_overhead_grows_with_sequences_and_gpus() -> None:
    """A step pays once, once for each further GPU, and for each of its sequences."""
    shape = BatchShape(100, 5050, 2, 8, 8000)
    step_time = RooflineStepTime(
        load_model("Qwen3-32B"),
        load_gpu("H100-80GB"),
        tensor_parallel_size=4,
        host=HostOverhead(step_ns=1000, seq_ns=10, rank_ns=100, source="made up"),
    )

    assert step_time.parts(shape).host_fs == (1000 + 10 * 10 + 3 * 100) * 10**6


def test_each_engine_has_its_own_overhead() -> None:
    """Policy and scheduling decide."""
    assert host_overhead("v0") is V0_HOST
    assert host_overhead("v1") is V1_HOST
    assert host_overhead("v1", async_scheduling=True) is V1_ASYNC_HOST
