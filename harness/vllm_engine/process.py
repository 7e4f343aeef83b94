"""The child's process, as its parent sees it: events come out, orders go in."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.vllm_engine.shared_memory import remove, segments_of

CHILD = ("-P", "-m", "harness.vllm_engine.child")
POLL_S = 0.2
END_S = 10.0
"""Wall time that a killed process has to be gone."""

Event = dict[str, Any]


class ChildProcess:
    """A process in a group of its own, so that all that it starts ends with it.

    Args:
        python: Its interpreter.
        folder: Its task.
        log: Gets all that it prints.
        command: What to run in place of our child, for tests; folder and number of the
            pipe follow.

    Raises:
        OSError: The interpreter cannot be run.
    """

    def __init__(
        self, python: str, folder: Path, log: Path, command: Sequence[str] | None = None
    ) -> None:
        self._fd, theirs = os.pipe()
        words = list(command) if command is not None else [python, *CHILD]
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [*words, str(folder), str(theirs)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._fd)
            raise
        finally:
            os.close(theirs)
        self._buffer = b""
        self._is_open = True
        self._segments: set[Path] = set()

    @property
    def pid(self) -> int:
        """Its number, and that of its group."""
        return self._process.pid

    def events(self, is_over: Callable[[], bool]) -> Iterator[Event | None]:
        """Its events as they come, and None each time that none came for a moment.

        They end when the process is gone and all that it said was read, or when
        ``is_over`` says so.
        """
        while not is_over():
            is_ready = self._is_open and select.select([self._fd], [], [], POLL_S)[0]
            if is_ready:
                yield from self._read()
            elif self._process.poll() is not None:
                yield from self._rest()
                return
            else:
                if not self._is_open:
                    time.sleep(POLL_S)
                yield None

    def order(self, word: str) -> None:
        """Send it an order; one that is gone gets none."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def how_it_ended(self) -> str:
        """By what it ended, as in "with exit code 1"; waits for it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.returncode
        if code is None:
            return "not at all"
        if code >= 0:
            return f"with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        why = ", perhaps by the kernel for want of memory" if name == "SIGKILL" else ""
        return f"by {name}{why}"

    def note_segments(self) -> None:
        """Remember what shared memory it has, for when it has ended by itself."""
        self._segments |= segments_of(self._process.pid)

    def kill(self) -> None:
        """End it and all that it has started; a second call has no effect."""
        self.note_segments()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        remove(self._segments)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._is_open = -1, False

    def _read(self) -> Iterator[Event]:
        content = os.read(self._fd, 2**20)
        self._is_open = bool(content)
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _rest(self) -> Iterator[Event]:
        while self._is_open and select.select([self._fd], [], [], 0)[0]:
            yield from self._read()
