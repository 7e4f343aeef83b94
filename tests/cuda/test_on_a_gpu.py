"""All that only a GPU can tell: the checks of ``make cuda-check``, a test each.

The script runs once, for all of them, and takes up to six minutes.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
checks: Any = importlib.import_module("cuda_checks.checks")
machine: Any = importlib.import_module("cuda_checks.machine")
report: Any = importlib.import_module("cuda_checks.report")
session: Any = importlib.import_module("cuda_checks.session")

NAMES = [
    check.name
    for check in checks.plan(
        session.Session("cpu", machine.Machine((), "", False), Path("unused"))
    )
]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of this machine; skips where it has no GPU, or this Python no vLLM."""
    if why_not := machine.Machine.ask().why_not("cuda"):
        pytest.skip(why_not)
    file = tmp_path_factory.mktemp("cuda") / "cuda_check.json"
    words = [sys.executable, str(BENCHMARKS / "cuda_check.py"), "-o", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert file.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_report_is_whole(sent: dict[str, Any]) -> None:
    """Each check is in it, and it was made in under six minutes."""
    assert report.problems_of(sent) == []
    assert [check["name"] for check in sent["checks"]] == NAMES
    assert sent["wall_s"] < 360


@pytest.mark.parametrize("name", NAMES)
def test_check(name: str, sent: dict[str, Any]) -> None:
    """What is checked is so, or cannot be checked on this machine."""
    (check,) = (each for each in sent["checks"] if each["name"] == name)
    if check["verdict"] == "skipped":
        pytest.skip(check["reason"])

    assert check["verdict"] == "passed", check
