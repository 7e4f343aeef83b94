"""A trace file, opened: unpacked, refused if it is no text, read line by line."""

import errno
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import cast

from harness.errors import TraceError

_NUM_HEAD_LINES = 20
_READ_ERRORS = (EOFError, OSError, zlib.error)

_REMEDY_OF_ERRNO = {
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file in it",
    errno.EACCES: "make it readable or copy it elsewhere",
}

# First bytes -> what such a file is, and what to do with it.
_NOT_A_TRACE = (
    (b"PAR1", "a Parquet file", "convert it to JSON lines or CSV first"),
    (b"ARROW1", "an Arrow file", "convert it to JSON lines or CSV first"),
    (b"PK\x03\x04", "a zip archive", "unpack it with 'unzip'"),
    (b"BZh", "packed with bzip2", "unpack it with 'bunzip2'"),
    (b"\xfd7zXZ", "packed with xz", "unpack it with 'unxz'"),
    (
        b"\xef\xbb\xbf",
        "text that starts with a byte-order mark",
        "save it as UTF-8 without BOM, for example with 'tail -c +4 FILE > NEW_FILE'",
    ),
    (b"\xff\xfe", "UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save it as UTF-8"),
    (b"<!doctype html", "a web page, not a trace", "download the raw file instead"),
    (b"<html", "a web page, not a trace", "download the raw file instead"),
    (b"<?xml", "an XML document, not a trace", "download the raw file instead"),
    (b"[", "one JSON array", "write one object a line: 'jq -c .[] FILE > NEW_FILE'"),
)


class TraceSource:
    """The lines of one trace file, read once.

    Args:
        path: The file; it may be packed with gzip or zstd.

    Raises:
        TraceError: The file cannot be read, or is not lines of text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_lines_read = 0
        try:
            self._file = _HashedFile(path)
            self._stream = _unpacked(io.BufferedReader(self._file, 1 << 20))
            first_bytes = self._stream.peek(4096)[:4096]
        except _READ_ERRORS as error:
            raise self._unreadable(error) from error
        _refuse_if_no_text(path, first_bytes)
        lines = self._numbered_lines()
        self.head = list(islice(lines, _NUM_HEAD_LINES))
        self._rest = lines
        if not self.head:
            raise TraceError(path, "the file is empty", "check the download")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line number, from 1, and content of each line that is not blank."""
        return chain(self.head, self._rest)

    def content_hash(self) -> str:
        """SHA-256 of the file's bytes as stored, in hex; ends the reading."""
        return self._file.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()

    def _numbered_lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            for line in self._stream:
                self._num_lines_read += 1
                if stripped := line.strip():
                    yield self._num_lines_read, stripped
        except _READ_ERRORS as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> TraceError:
        if isinstance(error, OSError) and error.errno is not None:
            return TraceError(
                self.path,
                (error.strerror or str(error)).lower(),
                _REMEDY_OF_ERRNO.get(error.errno, "check the path and its disk"),
            )
        return TraceError(
            self.path,
            f"the packed data ends or breaks after line {self._num_lines_read:,}"
            f" ({error})",
            "download the file again",
        )


class _HashedFile(io.RawIOBase):
    """A file that hashes what is read from it."""

    def __init__(self, path: Path) -> None:
        self._digest = hashlib.sha256()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed in close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        count = cast(int, self._file.readinto(buffer))
        self._digest.update(buffer[:count])
        return count

    def hexdigest(self) -> str:
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def _unpacked(stream: io.BufferedReader) -> io.BufferedReader:
    magic = stream.peek(4)[:4]
    if magic.startswith(b"\x1f\x8b"):
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)))
    if magic == b"\x28\xb5\x2f\xfd":
        # Imported here: nothing else in a load needs it.
        import pyarrow as pa

        unpacked = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
        return io.BufferedReader(cast(io.RawIOBase, unpacked))
    return stream


def _refuse_if_no_text(path: Path, first_bytes: bytes) -> None:
    start = first_bytes.lstrip(b" \t\r\n").lower()
    if start.startswith(b"version https://git-lfs"):
        size = first_bytes.rpartition(b"size ")[2].strip().decode(errors="replace")
        raise TraceError(
            path,
            f"this is a Git LFS pointer to a file of {size} bytes, not the trace",
            "run 'git lfs pull' in its repository",
        )
    for magic, kind, remedy in _NOT_A_TRACE:
        if first_bytes.startswith(magic) or start.startswith(magic):
            raise TraceError(path, f"this is {kind}", remedy)
    if b"\x00" in first_bytes:
        raise TraceError(
            path, "this is a binary file", "give a text trace: JSON lines or CSV"
        )
