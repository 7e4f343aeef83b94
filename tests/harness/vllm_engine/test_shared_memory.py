"""Shared memory of killed processes is removed, that of others is not."""

import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from harness.vllm_engine.process import ChildProcess
from harness.vllm_engine.shared_memory import segments_of

if not Path("/dev/shm").is_dir():
    pytest.skip("no /dev/shm", allow_module_level=True)

WORKER = """
import os, sys, time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")  # else it would clean up
os.write(int(sys.argv[2]), b'{"event": "hello"}\\n')
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 60)
os._exit(3)
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    """A segment of a process that is none of vLLM's: this one."""
    memory = SharedMemory(create=True, size=4096)
    yield Path("/dev/shm", memory.name)
    memory.close()
    memory.unlink()


@pytest.fixture
def child(tmp_path: Path) -> Callable[[str], ChildProcess]:
    """Return what starts a process with a segment, which a child of its own has made."""

    def child(seconds: str) -> ChildProcess:
        worker = tmp_path / "worker.py"
        worker.write_text(WORKER)
        script = f'"{sys.executable}" "{worker}" "$1" "$2" {seconds} & wait'
        command = ["sh", "-c", script, "sh"]
        return ChildProcess(sys.executable, tmp_path, tmp_path / "log", command)

    return child


def test_what_a_worker_had_goes_with_it(
    child: Callable[[str], ChildProcess], segment: Path
) -> None:
    """All that the group has mapped, and nothing of others."""
    process = child("60")
    assert next(filter(None, process.events(lambda: False)))["event"] == "hello"
    (theirs,) = segments_of(process.pid)
    assert theirs.exists()

    process.kill()

    assert not theirs.exists()
    assert segment.exists()


def test_what_a_worker_had_before_it_ended_by_itself_goes_too(
    child: Callable[[str], ChildProcess],
) -> None:
    """A crash leaves no process to ask, so that it was asked before."""
    process = child("1")
    assert next(filter(None, process.events(lambda: False)))["event"] == "hello"
    process.note_segments()
    (theirs,) = segments_of(process.pid)
    deadline_s = time.monotonic() + 20
    while segments_of(process.pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert theirs.exists()

    process.kill()

    assert not theirs.exists()
