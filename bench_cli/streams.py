"""stdout and stderr as they may be found: closed, full, or short of letters."""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from harness.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(Exception):
    """What was to be printed on stdout could not be written there."""


class _Stdout(io.FileIO):
    """Says which write failed: an OSError of its own would look like anybody's."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"stdout cannot be written: {error.strerror or error};"
                " make room or send it elsewhere"
            ) from error


class _Stderr(io.FileIO):
    """Drops what cannot be written: nobody is left to be told, and the run goes on."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Make stdout and stderr fit to be printed on.

    What they cannot encode is shown as an escape. Streams that somebody put in place of
    the process's own are left as they are otherwise.

    Raises:
        UsageError: stdout is closed.
    """
    _prepare_stderr()
    if sys.stdout is None:
        raise UsageError(
            "stdout is closed, so nothing could be shown; open it, perhaps as >/dev/null"
        )
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _text_stream(sys.stdout, _Stdout)
    _survive_any_encoding(sys.stdout)


def _prepare_stderr() -> None:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the end
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text_stream(sys.stderr, _Stderr)
    _survive_any_encoding(sys.stderr)


def _survive_any_encoding(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _text_stream(stream: io.TextIOWrapper, kind: type[io.FileIO]) -> TextIO:
    """The same stream, each of its writes made by ``kind``."""
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        line_buffering=stream.line_buffering,
    )


def printable(text: str) -> str:
    """The text with an escape in place of what a terminal would obey; lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def flush_stdout() -> None:
    """Flush stdout while a failure can still be told; what is left is dropped.

    Raises:
        BrokenPipeError: The reader has gone.
        OutputError: It cannot be written.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputError):
        # The interpreter flushes again at exit, which must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
