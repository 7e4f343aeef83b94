"""A trace file, opened: unpacked, refused if it is no text, read line by line."""

import codecs
import difflib
import errno
import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import cast

from harness.errors import TraceError

_NUM_HEAD_LINES = 20
_READ_ERRORS = (EOFError, OSError, zlib.error)

_REMEDY_OF_ERRNO = {
    errno.EISDIR: "name a file in it",
    errno.EACCES: "make it readable or copy it elsewhere",
    errno.ELOOP: "the link leads back to itself; name the file",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "check the path",
}

# First bytes -> what such a file is, and what to do with it.
_NOT_A_TRACE = (
    (b"PAR1", "a Parquet file", "convert it to JSON lines or CSV first"),
    (b"ARROW1", "an Arrow file", "convert it to JSON lines or CSV first"),
    (b"PK\x03\x04", "a zip archive", "unpack it with 'unzip'"),
    (b"BZh", "packed with bzip2", "unpack it with 'bunzip2'"),
    (b"\xfd7zXZ", "packed with xz", "unpack it with 'unxz'"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it with '7z x'"),
    (b"\x1f\x8b", "packed twice", "unpack it once with 'gunzip'"),
    (b"\x28\xb5\x2f\xfd", "packed twice", "unpack it once with 'unzstd'"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "save it as UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save it as UTF-8"),
    (b"<!doctype html", "a web page, not a trace", "download the raw file instead"),
    (b"<html", "a web page, not a trace", "download the raw file instead"),
    (b"<?xml", "an XML document, not a trace", "download the raw file instead"),
)

# JSON that is not one object a line, by how it begins.
_OTHER_JSON = (
    (
        re.compile(rb"\[\s*[\[{\]]"),
        "one JSON array",
        "write one object a line: 'jq -c .[] FILE > NEW_FILE'",
    ),
    (
        re.compile(rb'\{\s*\n\s*"'),
        "JSON laid out over several lines",
        "write one object a line: 'jq -c . FILE > NEW_FILE'",
    ),
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
            first_bytes = _start_of_text(self._stream)
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
                _remedy(self.path, error.errno),
            )
        place = f" after line {self._num_lines_read:,}" if self._num_lines_read else ""
        return TraceError(
            self.path,
            f"the packed data ends or breaks{place} ({error})",
            "download the file again",
        )


def _remedy(path: Path, error_number: int) -> str:
    if error_number != errno.ENOENT:
        return _REMEDY_OF_ERRNO.get(error_number, "check the path and its disk")
    if str(path).startswith(("http:/", "https:/")):
        return "download it and name the file"
    near = _nearest_file(path)
    return f"did you mean {near}?" if near else "check the path"


def _nearest_file(path: Path) -> Path | None:
    """The file beside a missing one whose name is most like its own, if any is."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return None
    near = map(path.with_name, difflib.get_close_matches(path.name, names, cutoff=0.75))
    return next(filter(Path.is_file, near), None)


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


def _start_of_text(stream: io.BufferedReader) -> bytes:
    """The first bytes after a byte-order mark, which is passed over for good."""
    if stream.peek(3).startswith(codecs.BOM_UTF8):
        stream.read(3)
    return stream.peek(4096)[:4096]


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
    if first_bytes[257:262] == b"ustar":
        raise TraceError(path, "this is a tar archive", "unpack it with 'tar -xf'")
    if b"\x00" in first_bytes:
        raise TraceError(
            path, "this is a binary file", "give a text trace: JSON lines or CSV"
        )
    for beginning, kind, remedy in _OTHER_JSON:
        if beginning.match(start):
            raise TraceError(path, f"this is {kind}", remedy)
