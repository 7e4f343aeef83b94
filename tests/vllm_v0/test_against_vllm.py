"""Our v0 policy against the real scheduler of vLLM 0.5.5.

vLLM runs in processes of its own, because loading it puts stand-ins for torch and others
into ``sys.modules``. ``make test-vllm`` has a venv for it; elsewhere this is skipped.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.verify.golden import verify_scenario
from harness.verify.scenario import read_rows

FOLDER = Path(__file__).parent
RECORDINGS = sorted(
    path
    for path in (FOLDER.parent / "data").glob("*/*.scenario.json.gz")
    if not path.name.startswith("v1_")
)
NUM_SCENARIOS = int(os.environ.get("BLOCKBENCH_VLLM_SCENARIOS", "300"))

pytestmark = pytest.mark.vllm


def execute(script: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder with this interpreter, to its end."""
    command = [sys.executable, FOLDER / script, *args]
    return subprocess.run(command, capture_output=True, text=True)


loading = execute("reference.py")
if loading.returncode and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    reason = loading.stderr.strip().splitlines()[-1]
    pytest.skip(f"cannot load vLLM: {reason}", allow_module_level=True)


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the random scenarios; return their folder."""
    folder = tmp_path_factory.mktemp("random")
    done = execute("record_random.py", folder, "--num", str(NUM_SCENARIOS))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def again_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the committed scenarios again; return the folder of the new rows."""
    folder = tmp_path_factory.mktemp("again")
    pairs = [(path, rows_of(path, folder)) for path in RECORDINGS]
    done = execute("record.py", *(path for pair in pairs for path in pair))
    assert done.returncode == 0, done.stderr
    return folder


def rows_of(scenario: Path, folder: Path | None = None) -> Path:
    """Where a scenario's rows are, beside it or in another folder."""
    name = scenario.name.replace(".scenario.json", ".rows.jsonl")
    return (folder or scenario.parent) / name


def test_the_reference_is_there() -> None:
    """Where vLLM is required, it loads."""
    assert loading.returncode == 0, loading.stderr


@pytest.mark.parametrize("seed", range(NUM_SCENARIOS))
def test_random_scenario_is_identical(random_folder: Path, seed: int) -> None:
    """On a random scenario each decision is vLLM's, step by step and repeated."""
    scenario = random_folder / f"random_{seed:04d}.scenario.json.gz"

    result = verify_scenario(scenario, rows_of(scenario))

    assert result.identical, result.first_divergence


@pytest.mark.parametrize("scenario", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_committed_rows_are_vllms(again_folder: Path, scenario: Path) -> None:
    """The rows in tests/data are what vLLM decides when it is asked again."""
    committed = list(read_rows(rows_of(scenario), "v0"))

    assert list(read_rows(rows_of(scenario, again_folder), "v0")) == committed
