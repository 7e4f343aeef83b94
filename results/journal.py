"""Rows of a run under way: what a run that is killed leaves behind.

One JSON object a line: a step once, a request again each time that it changed, so its
last line counts. Who writes holds a lock, by which others see that the run is alive.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import count, islice
from pathlib import Path
from typing import Any

import orjson

from results.errors import RunFolderError
from results.record import RequestRecord, StepRecord, add_later_columns

REQUESTS_JOURNAL = "requests.jsonl"
STEPS_JOURNAL = "steps.jsonl"
JOURNALS = (STEPS_JOURNAL, REQUESTS_JOURNAL)
SILENCE_S = 10  # where nothing can be locked, a journal silent for longer is a dead run's


class Journal:
    """The journals of a run, which hold whole rows only while nothing is written.

    Rows survive the process, not a power failure: to wait for the disk every second
    would hold up a run whose times are measured.

    Args:
        folder: Where they are made.

    Raises:
        FileExistsError: There is a journal already.
        OSError: They cannot be made; then none is left there.
    """

    def __init__(self, folder: Path) -> None:
        self._steps = _RowFile(folder / STEPS_JOURNAL)
        try:
            self._requests = _RowFile(folder / REQUESTS_JOURNAL)
        except OSError:
            self._steps.close()
            self._steps.path.unlink()
            raise
        self._step_numbers = count()
        self._is_locked = _try_lock(self._steps.fd, shared=False)

    @property
    def is_empty(self) -> bool:
        """No row is in the files."""
        return self._steps.num_bytes + self._requests.num_bytes == 0

    def append(
        self, requests: Iterable[RequestRecord], steps: Iterable[StepRecord]
    ) -> None:
        """Record the steps since the last call and the requests changed since then.

        A full disk stops nothing: rows wait until a later call finds room for them.
        """
        for step in steps:
            self._steps.add(next(self._step_numbers), step)
        for request in requests:
            self._requests.add(request.request_id, request)
        self.flush()

    def flush(self) -> None:
        """Write the rows that wait; requests only after the steps that led to them."""
        with suppress(OSError):  # what could not be written goes on waiting
            self._steps.flush()
            self._requests.flush()
            if not self._is_locked:
                os.utime(self._steps.path)

    @property
    def is_in_place(self) -> bool:
        """The file that is written still lies where it was made."""
        try:
            found = os.stat(self._steps.path)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self._steps.fd))

    def close(self) -> None:
        """Write what waits and let go of the lock; a second call has no effect."""
        if not self._steps.is_closed:
            self.flush()
            self._requests.close()
            self._steps.close()

    def remove(self) -> None:
        """Close and remove the files, as far as that can be done.

        Other files that lie in their place by now are left alone.
        """
        is_in_place = not self._steps.is_closed and self.is_in_place
        self.close()
        for file in (self._steps, self._requests) if is_in_place else ():
            with suppress(OSError):
                file.path.unlink()


class _RowFile:
    """A file of rows; ``num_bytes`` of it are whole rows, and what follows is void."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self.path = path
        self.fd = os.open(path, flags, 0o666)
        self.num_bytes = 0
        self.is_closed = False
        self._waiting: dict[int, bytes] = {}

    def add(self, key: int, record: RequestRecord | StepRecord) -> None:
        """Let a row wait, in place of one with the same key that still waits."""
        self._waiting[key] = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)

    def flush(self) -> None:
        """Write what waits; rows that a full disk has no room for go on waiting.

        Raises:
            OSError: Not all could be written; the file ends with a whole row.
        """
        rows = b"".join(self._waiting.values())
        num_written = 0
        os.lseek(self.fd, self.num_bytes, os.SEEK_SET)
        try:
            while num_written < len(rows):
                num_written += os.write(self.fd, memoryview(rows)[num_written:])
        finally:
            self._settle(rows, num_written)

    def _settle(self, rows: bytes, num_written: int) -> None:
        whole = rows.rfind(b"\n", 0, num_written) + 1
        written = list(islice(self._waiting, rows.count(b"\n", 0, whole)))
        for key in written:
            del self._waiting[key]
        self.num_bytes += whole
        if whole < len(rows):  # should this fail too, the next row is written over it
            with suppress(OSError):
                os.ftruncate(self.fd, self.num_bytes)

    def close(self) -> None:
        os.close(self.fd)
        self.is_closed = True


def is_under_way(folder: Path) -> bool:
    """Whether a process is still writing the journals of this folder."""
    try:
        fd = os.open(folder / STEPS_JOURNAL, os.O_RDONLY)
    except OSError:
        return False
    try:
        is_free = _try_lock(fd, shared=True)  # two readers do not block each other
    finally:
        os.close(fd)
    return _was_written_lately(folder) if is_free is None else not is_free


def _try_lock(fd: int, *, shared: bool) -> bool | None:
    """Whether the lock was free and is now ours; None where nothing can be locked."""
    try:
        import fcntl  # Windows has none
    except ImportError:
        return None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network disks
        return None
    return True


def _was_written_lately(folder: Path) -> bool:
    try:
        written = max((folder / name).stat().st_mtime for name in JOURNALS)
    except OSError:  # one is gone: the run has just ended
        return False
    return time.time() - written < SILENCE_S


def read_journal(path: Path, record_type: type[Any]) -> list[dict[str, Any]]:
    """The rows of a journal, without a last one that was cut off.

    Raises:
        RunFolderError: The file cannot be read, or a line is no row of this kind.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read: {error.strerror or error};"
            " repeat the run that wrote it"
        ) from error
    names = {field.name for field in fields(record_type)}
    return [
        _read_row(f"{path}, line {number}", line, names)
        for number, line in enumerate(lines, start=1)
    ]


def _read_row(where: str, line: bytes, names: set[str]) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RunFolderError(
            f"{where} is damaged: {error};"
            " delete that line to read the others, or repeat the run"
        ) from error
    if isinstance(row, dict):
        add_later_columns(row)
    if not isinstance(row, dict) or not names <= row.keys():
        raise RunFolderError(
            f"{where} is no row as this blockbench writes it;"
            " repeat the run, or read it with the version that wrote it"
        )
    return row


def last_of_each(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of every request, by request_id."""
    last = {row["request_id"]: row for row in rows}
    return [last[request_id] for request_id in sorted(last)]
