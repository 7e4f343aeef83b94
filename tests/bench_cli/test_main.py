"""Tests for :mod:`bench_cli.main` and :mod:`bench_cli.exit_code`."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allocators.errors import AllocatorError
from bench_cli import main as entry
from bench_cli.exit_code import EXPECTED_ERRORS, ExitCode, exit_code_of
from harness.errors import TraceError, UsageError
from profiles.errors import CapacityError, UnknownNameError

BLOCKBENCH = Path(sys.executable).with_name("blockbench")


def call(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Run the app in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["blockbench", *args])
    with pytest.raises(SystemExit) as raised:
        entry.main()
    assert isinstance(raised.value.code, int)
    return raised.value.code


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Let the app raise an error and return the exit code."""

    def app(**_: object) -> None:
        raise error

    monkeypatch.setattr(entry, "app", app)
    return call(monkeypatch)


def test_every_expected_error_exists() -> None:
    """The table names classes that are there, under the name they have."""
    for qualified in EXPECTED_ERRORS:
        module, _, name = qualified.rpartition(".")

        assert issubclass(getattr(importlib.import_module(module), name), Exception)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TraceError("a.csv", "no rows"), 3),
        (UsageError("two flags"), 2),
        (UnknownNameError("GPU", "H1000", ["H100-80GB"]), 2),
        (CapacityError("1 GiB", "2 GiB needed", "raise it"), 4),
    ],
)
def test_expected_errors_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    """A user's mistake is one line on stderr with its own exit code, no traceback."""
    assert fail_with(monkeypatch, error) == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_terminal_obeys_no_file_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters of a name are shown as escapes; other letters stay."""
    assert fail_with(monkeypatch, UsageError("ü\x1b[2J.csv is\nno trace")) == 2
    assert capsys.readouterr().err == "error: ü\\x1b[2J.csv is no trace\n"


@pytest.mark.parametrize("error", [ValueError("x"), AllocatorError("x")])
def test_unexpected_errors_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Our own bug is not dressed up as the user's mistake."""
    monkeypatch.setattr(entry, "app", lambda **_: (_ for _ in ()).throw(error))
    monkeypatch.setattr(sys, "argv", ["blockbench"])

    assert exit_code_of(error) is None
    with pytest.raises(type(error)):
        entry.main()


def test_ctrl_c_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt that no command handles has the shell's code for it."""
    assert fail_with(monkeypatch, KeyboardInterrupt()) == ExitCode.INTERRUPTED


def test_ctrl_c_while_a_class_is_made_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python wraps an interrupt that comes in the import of a library's class."""

    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def import_library(**_: object) -> None:
        type("Column", (), {"cells": Interrupted()})

    monkeypatch.setattr(entry, "app", import_library)

    assert call(monkeypatch, "list") == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that left is no error of ours."""
    assert fail_with(monkeypatch, BrokenPipeError()) == ExitCode.CLOSED_PIPE
    assert capsys.readouterr().err == ""


def test_a_pipe_closed_early_prints_nothing() -> None:
    """Help into a reader that is gone ends without a traceback."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [BLOCKBENCH, "--help"], stdout=write_end, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(write_end)

    assert done.stderr == ""
    assert done.returncode == ExitCode.CLOSED_PIPE


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run"], "Missing argument"),
        (["run", "x", "--no-such-flag"], "No such option"),
        (["run", "x", "--table", "xml"], "xml"),
        (["no-such-command"], "No such command"),
    ],
)
def test_wrong_usage_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    words: str,
) -> None:
    """What the command line does not know is refused with code 2 and a way to help."""
    assert call(monkeypatch, *args) == ExitCode.USAGE

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert second.endswith("--help lists the options")


def test_no_arguments_print_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bare command lists the commands."""
    assert call(monkeypatch) == ExitCode.USAGE

    printed = capsys.readouterr()
    for command in ("run", "verify", "trace"):
        assert f"\n  {command} " in printed.out + printed.err


def test_long_flags_are_printed_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help on a narrow terminal still spells every flag out."""
    monkeypatch.setenv("COLUMNS", "60")
    assert call(monkeypatch, "run", "--help") == ExitCode.FINE

    shown = capsys.readouterr().out
    assert "--gpu-memory-utilization" in shown
    assert "--no-enable-chunked-prefill" in shown


def test_version_is_printed() -> None:
    """The installed script tells its version."""
    done = subprocess.run([BLOCKBENCH, "--version"], capture_output=True, text=True)

    assert done.returncode == 0
    assert done.stdout.startswith("blockbench 0.")
