"""Shared memory that a killed vLLM leaves behind: what its workers tell each other by.

Source: vLLM 0.32.0, ``distributed/device_communicators/shm_broadcast.py``: segments of
160 MiB and more, under the names that Python gives them, which no exit but a polite one
removes.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

RENDEZVOUS = "blockbench_rendezvous_"
"""Begins the name of the file that workers meet by."""

SEGMENTS = ("/dev/shm/psm_", f"/dev/shm/{RENDEZVOUS}")
"""Python's own names, and those that workers on a CPU take from that file's."""


def segments_of(group: int) -> set[Path]:
    """The segments that processes of a group have mapped; none without a /proc."""
    found: set[Path] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended, or is somebody else's
            behind_name = stat.read_text().rpartition(")")[2].split()
            if int(behind_name[2]) == group:
                words = stat.with_name("maps").read_text().split()
                found |= {Path(word) for word in words if word.startswith(SEGMENTS)}
    return found


def remove(segments: Iterable[Path]) -> None:
    """Remove segments; who has them mapped keeps them as long as it lives."""
    for path in segments:
        with suppress(OSError):
            path.unlink(missing_ok=True)
