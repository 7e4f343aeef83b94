"""Tests for :mod:`bench_cli.streams`: the installed script on streams that fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench_cli.exit_code import ExitCode

BLOCKBENCH = Path(sys.executable).with_name("blockbench")
EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
RUN = f"run {EXAMPLE} --policy v0 --limit 3 -o out"

pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no /dev/full here"
)


def _shell(tmp_path: Path, arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", f"{BLOCKBENCH} {arguments}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["--help", RUN])
def test_a_closed_stdout_is_refused_at_once(tmp_path: Path, command: str) -> None:
    """With nowhere to print, nothing is run, and one line says so."""
    code, error = _shell(tmp_path, f"{command} >&-")

    assert code == ExitCode.USAGE
    assert error.startswith("error: stdout is closed")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["--help", "--version", RUN, f"{RUN} --json"])
def test_a_full_stdout_is_one_line(tmp_path: Path, command: str) -> None:
    """What could not be printed is told once, without a traceback, with code 5."""
    code, error = _shell(tmp_path, f"{command} >/dev/full")

    assert code == ExitCode.ENGINE_FAILED
    assert error.startswith("error: stdout cannot be written: No space left on device;")
    assert error.count("\n") == 1
    assert (tmp_path / "out" / "run.json").exists() == ("run" in command)


@pytest.mark.parametrize("stderr", ["&-", "/dev/full"])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{RUN} --json >printed", ExitCode.FINE),
        ("run nowhere", ExitCode.BAD_TRACE),
        ("run", ExitCode.USAGE),
        ("--version >/dev/full", ExitCode.ENGINE_FAILED),
    ],
)
def test_a_stderr_that_fails_changes_no_exit_code(
    tmp_path: Path, stderr: str, command: str, expected: ExitCode
) -> None:
    """The run goes on without anybody to tell, and ends as it would have."""
    assert _shell(tmp_path, f"{command} 2>{stderr}") == (expected, "")
