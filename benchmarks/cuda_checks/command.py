"""Commands in process groups of their own, which end with whoever started them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE_S = 4.0
"""Wall time in which a command that was told to end may do so."""

_WITHOUT_SCRIPT = "import sys; from bench_cli.main import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    seconds: float
    stdout: str
    stderr: str

    def document(self) -> dict[str, Any]:
        """What it printed with ``--json``; nothing where that is none."""
        try:
            found = json.loads(self.stdout)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def complaint(self) -> str:
        """Its exit code and the last error that it printed."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")] or lines[-1:]
        return f"exit code {self.code}: {errors[-1]}" if errors else f"exit {self.code}"


def blockbench_command() -> list[str]:
    """The installed script of this interpreter, or what it does."""
    folders = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    for folder in folders:
        found = shutil.which("blockbench", path=str(folder))
        if found:
            return [found]
    return [sys.executable, "-P", "-c", _WITHOUT_SCRIPT]


def run_command(
    words: Sequence[object], *, folder: Path, env: Mapping[str, str] | None = None
) -> Done:
    """Run a command to its end; whatever ends the wait for it ends the command too.

    Args:
        words: Program and arguments.
        folder: Where it runs.
        env: Variables besides those that are there.
    """
    began_s = time.monotonic()
    with subprocess.Popen(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate()
        finally:
            end_group(process)
    return Done(process.returncode, time.monotonic() - began_s, stdout, stderr)


def end_group(process: "subprocess.Popen[Any]") -> None:
    """End a process that leads a group, and the group; first it is asked to."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: "subprocess.Popen[Any]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
