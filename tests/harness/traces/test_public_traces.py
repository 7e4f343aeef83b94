"""The published traces, whole."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.traces import open_trace
from harness.traces.inspection import inspect_workload

pytestmark = pytest.mark.data

# In a process of its own, as memory once taken by other tests is not given back.
_LOAD = """
import resource, sys
import numpy, orjson
from harness.traces import open_trace

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak_mb()
workload = open_trace(sys.argv[1])
print(peak_mb() - before)
"""


@pytest.fixture
def mooncake(data_dir: Path) -> Path:
    """Return Mooncake's conversation trace."""
    return data_dir / "traces" / "mooncake" / "conversation_trace.jsonl"


def test_mooncake_figures(mooncake: Path) -> None:
    """Our figures of the conversation trace are those that others measured."""
    document = inspect_workload(open_trace(mooncake), block_size=512)

    assert document["num_requests"] == 12_031
    assert document["format"] == "mooncake"
    assert document["duration_s"] == pytest.approx(3537.0, abs=0.05)
    assert round(document["ideal_hit_rate"], 4) == 0.3819
    assert round(document["input_tokens"]["mean"]) == 12_035
    assert document["input_tokens"]["p50"] == 6909
    assert round(document["input_tokens"]["p99"]) == 85_400
    assert document["input_tokens"]["max"] == 126_195
    assert round(document["output_tokens"]["mean"]) == 343


def test_mooncake_part_hits_less(mooncake: Path) -> None:
    """The first 2,000 rows alone hit less, as others measured."""
    part = open_trace(mooncake).select(slice(2000))

    document = inspect_workload(part, block_size=512)

    assert round(document["ideal_hit_rate"], 4) == 0.2997


def test_mooncake_loads_compactly(mooncake: Path) -> None:
    """145 million prompt tokens take less than 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(mooncake)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 300


@pytest.mark.parametrize(
    ("name", "count", "span_s", "context", "generated"),
    [
        ("conv", 19_366, 3501.7, (1155, 1020, 14_050), (211, 129, 1000)),
        ("code", 8_819, 3435.9, (2048, 1469, 7437), (27.9, 13, 1899)),
    ],
)
def test_azure_figures(
    data_dir: Path,
    name: str,
    count: int,
    span_s: float,
    context: tuple[float, ...],
    generated: tuple[float, ...],
) -> None:
    """Our figures of both Azure traces are those that others measured."""
    file = f"AzureLLMInferenceTrace_{name}.csv"
    workload = open_trace(data_dir / "traces" / "azure_llm_2023" / file)

    assert len(workload) == count
    assert not workload.has_sharing
    assert workload.duration_s == pytest.approx(span_s, abs=0.05)
    for tokens, figures in (
        (workload.input_tokens, context),
        (workload.output_tokens, generated),
    ):
        found = tokens.mean(), np.median(tokens), tokens.max()
        assert found == pytest.approx(figures, rel=1e-3)
