"""Tests for :mod:`bench_cli.entry`."""

import signal
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from bench_cli import entry, main
from bench_cli.exit_code import ExitCode

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

{before}
sys.meta_path.insert(0, Finder())
sys.argv = ["blockbench", "--version"]
from bench_cli.entry import main
main()
"""


def interrupted(module: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command that gets Ctrl-C when it imports the module."""
    code = INTERRUPTED_WHILE_LOADING.format(module=module, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["bench_cli.main", "typer", "bench_cli.workload"])
def test_ctrl_c_while_loading_is_quiet(module: str) -> None:
    """Whichever import it comes in, nothing is printed and the exit code is 130."""
    done = interrupted(module)

    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")
    assert entry.INTERRUPTED == ExitCode.INTERRUPTED


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    """A script's background job, which ignores Ctrl-C, loads to its end."""
    done = interrupted("typer", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")

    assert (done.returncode, done.stderr) == (ExitCode.FINE, "")


def test_commands_are_interrupted_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all is loaded, Ctrl-C raises KeyboardInterrupt again."""
    handlers: list[object] = []
    monkeypatch.setattr(
        main, "main", lambda: handlers.append(signal.getsignal(signal.SIGINT))
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        entry.main()
    finally:
        signal.signal(signal.SIGINT, before)

    assert handlers == [signal.default_int_handler]


def test_the_command_starts_here() -> None:
    """The installed script begins with what imports nothing large."""
    (script,) = entry_points(group="console_scripts", name="blockbench")

    assert script.value == "bench_cli.entry:main"
