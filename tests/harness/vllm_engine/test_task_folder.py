"""Tests for :mod:`harness.vllm_engine.task_folder`."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.vllm_engine.task_folder import PREFIX, YOUNG_S, TaskFolder

MAKE_AND_WAIT = """
import time
from harness.vllm_engine.task_folder import TaskFolder
folder = TaskFolder()
(folder.path / "vllm.log").write_text("said")
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def grow_old(path: Path) -> None:
    """Let nobody have changed it for long."""
    then = path.stat().st_mtime - 2 * YOUNG_S
    os.utime(path, (then, then))


def test_a_folder_is_removed_with_all_in_it() -> None:
    """Once or twice."""
    folder = TaskFolder()
    (folder.path / "file").write_text("x")

    folder.remove()
    folder.remove()

    assert not folder.path.exists()


def test_the_folder_of_a_killed_process_goes_with_the_next(tmp_path: Path) -> None:
    """As long as its process runs it stays, whatever its age."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        grow_old(theirs)
        TaskFolder().remove()
        was_kept = theirs.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    TaskFolder().remove()

    assert was_kept
    assert theirs.parent == tmp_path
    assert not theirs.exists()


def test_what_may_not_be_left_behind_is_left_alone(tmp_path: Path) -> None:
    """A folder that was made just now, a file, a link, and other names."""
    young, file = tmp_path / f"{PREFIX}young", tmp_path / f"{PREFIX}file"
    other, link = tmp_path / "other", tmp_path / f"{PREFIX}link"
    young.mkdir()
    other.mkdir()
    file.write_text("mine")
    link.symlink_to(other)
    for path in (other, file):
        grow_old(path)

    TaskFolder().remove()

    assert {path.name for path in tmp_path.iterdir()} == {
        young.name,
        file.name,
        other.name,
        link.name,
    }
