"""Our v1 policy against the scheduler of the installed vLLM.

vLLM records in processes of its own. ``make test-vllm`` has a venv for it; elsewhere this
is skipped.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.verify.golden import verify_scenario
from harness.verify.scenario import read_rows

FOLDER = Path(__file__).parent
RECORDINGS = sorted((FOLDER.parent / "data" / "golden").glob("v1_*.scenario.json.gz"))
NUM_SCENARIOS = int(os.environ.get("BLOCKBENCH_VLLM_SCENARIOS", "200"))

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)


def execute(script: str, *args: str | Path) -> None:
    """Run a script of this folder with this interpreter, to its end."""
    command = [sys.executable, FOLDER / script, *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the random scenarios; return their folder."""
    folder = tmp_path_factory.mktemp("random")
    execute("record_random.py", folder, "--num", str(NUM_SCENARIOS))
    return folder


@pytest.fixture(scope="module")
def again_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the committed scenarios again; return the folder of the new rows."""
    folder = tmp_path_factory.mktemp("again")
    execute("record.py", *RECORDINGS, "-o", folder)
    return folder


def rows_of(scenario: Path, folder: Path | None = None) -> Path:
    """Where a scenario's rows are, beside it or in another folder."""
    name = scenario.name.replace(".scenario.json", ".rows.jsonl")
    return (folder or scenario.parent) / name


@pytest.mark.parametrize("scenario", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_committed_rows_are_vllms(again_folder: Path, scenario: Path) -> None:
    """The rows in tests/data are what vLLM decides when it is asked again."""
    committed = list(read_rows(rows_of(scenario), "v1"))

    assert list(read_rows(rows_of(scenario, again_folder), "v1")) == committed


@pytest.mark.parametrize("seed", range(NUM_SCENARIOS))
def test_random_scenario_is_identical(random_folder: Path, seed: int) -> None:
    """On a random scenario each decision is vLLM's, step by step and repeated."""
    scenario = random_folder / f"random_{seed:04d}.scenario.json.gz"

    result = verify_scenario(scenario, rows_of(scenario))

    assert result.identical, result.first_divergence
