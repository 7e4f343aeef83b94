"""The errors that profiles state are those that the published rows give."""

import csv
import gzip
import statistics
from pathlib import Path

import pytest

from profiles.gpu import known_gpus, load_gpu
from profiles.host_overhead import HostOverhead
from profiles.model import load_model
from profiles.step_time import BatchShape, RooflineStepTime

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
ROWS = PUBLISHED / "steps_composed_from_ops.csv.gz"
GPU_COLUMN = {
    "A100-80GB": "A100-SXM-80GB",
    "H100-80GB": "H100-SXM-80GB",
    "H200": "H200-SXM",
}


@pytest.fixture(scope="module")
def held_out_rows() -> list[dict[str, str]]:
    """Composed steps of Llama-3.1-70B bf16, which no fit has used."""
    with gzip.open(ROWS, "rt", newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["model"].endswith("70B") and row["weights"] == "bfloat16"
        ]


def _error(row: dict[str, str], gpu: str) -> float:
    num_tokens, num_decode = int(row["num_prefill_tokens"]), int(row["num_decode"])
    shape = BatchShape(
        num_prefill_tokens=num_tokens,
        prefill_attention=num_tokens * (num_tokens + 1) // 2,
        num_prefill_seqs=int(num_tokens > 0),
        num_decode_seqs=num_decode,
        num_context_tokens=int(row["context_tokens"]) if num_decode else 0,
    )
    parts = RooflineStepTime(
        load_model(row["model"]),
        load_gpu(gpu),
        tensor_parallel_size=int(row["tp"]),
        host=HostOverhead(0, 0, "the rows are kernels only"),
    ).parts(shape)
    kernels_fs = parts.total_fs - parts.elementwise_fs  # the rows leave these out too
    return kernels_fs / 1e12 / float(row["step_ms"]) - 1


@pytest.mark.parametrize("gpu", known_gpus())
def test_stated_error_is_the_measured_one(
    held_out_rows: list[dict[str, str]], gpu: str
) -> None:
    """Recomputing the held-out rows gives the stated median and number of rows."""
    errors = [
        abs(_error(row, gpu))
        for row in held_out_rows
        if row["gpu"] == GPU_COLUMN[gpu]
        and not (gpu == "H200" and int(row["num_prefill_tokens"]))
    ]
    known_error = load_gpu(gpu).known_error

    assert known_error is not None
    assert len(errors) == known_error.num_rows
    assert statistics.median(errors) == pytest.approx(known_error.fraction, abs=0.0005)
