"""The built wheel works in a clean environment, away from the source folder."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_MEGABYTES = 600

pytestmark = pytest.mark.wheel


def execute(*command: str | Path, cwd: Path) -> str:
    """Run a command to its end and return its stdout; stderr tells why it failed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist; return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    execute(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def bin_folder(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a new environment; return the folder of its scripts."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    execute(sys.executable, "-m", "venv", venv, cwd=dist)
    scripts = venv / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = dist.glob("*.whl")
    execute(scripts / "python", "-m", "pip", "install", "-q", wheel, cwd=dist)
    return scripts


def test_wheel_holds_our_packages_and_nothing_else(dist: Path) -> None:
    """No test, trace or cache lands in site-packages; profiles bring their data."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"bench_cli", "allocators", "harness", "profiles", "results"}
    assert any(name.startswith("profiles/data/") for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_sdist_can_be_tested(dist: Path) -> None:
    """The source archive holds the licence, the tests and the examples they read."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}

    assert {"LICENSE", "pyproject.toml", "tests/test_wheel.py"} <= names
    assert "examples/chat_1000.jsonl" in names


def test_installed_script_answers(bin_folder: Path, tmp_path: Path) -> None:
    """Help and version come from the installed wheel."""
    help_text = execute(bin_folder / "blockbench", "--help", cwd=tmp_path)
    version = execute(bin_folder / "blockbench", "--version", cwd=tmp_path)

    assert "run" in help_text
    assert version.startswith("blockbench ")


def test_installed_script_runs_the_example(bin_folder: Path, tmp_path: Path) -> None:
    """From another folder, the bundled trace replays to one JSON document."""
    trace = ROOT / "examples" / "chat_1000.jsonl"

    out = execute(
        bin_folder / "blockbench",
        "run",
        trace,
        "--policy",
        "v0",
        "--limit",
        "50",
        "--json",
        cwd=tmp_path,
    )

    document = json.loads(out)
    assert document["trace"]["num_requests"] == 50
    assert document["counts"]["finished"] > 0


def test_base_install_is_small(bin_folder: Path, tmp_path: Path) -> None:
    """Without extras no torch and no matplotlib; site-packages is within its limit."""
    code = (
        "import importlib.util, sysconfig; print(sysconfig.get_path('purelib'));"
        "print(*map(importlib.util.find_spec, ('torch', 'vllm', 'matplotlib')))"
    )
    folder, found = execute(bin_folder / "python", "-c", code, cwd=tmp_path).splitlines()

    size = sum(f.lstat().st_size for f in Path(folder).rglob("*") if f.is_file())
    assert found == "None None None"
    assert size <= MAX_MEGABYTES * 1e6
