"""Where a command's JSON document goes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from bench_cli.output_file import write_whole


def deliver(document: dict[str, Any], *, as_json: bool, output: Path | None) -> None:
    """Write the document to ``output`` if there is one, and to stdout with ``--json``.

    A file is replaced only by a document of the same kind; a device or a pipe is written
    to.

    Raises:
        UsageError: The file holds something else, or cannot be written.
    """
    assert {"schema_version", "kind"} <= document.keys(), "every document has its kind"
    text = json.dumps(document, indent=2, allow_nan=False)
    if output is not None:
        _write(output, text + "\n", kind=document["kind"])
    if as_json:
        typer.echo(text)


def check_document(path: Path, *, kind: str) -> None:
    """Refuse a file that ``deliver`` would not write, before what takes long.

    Raises:
        UsageError: It holds something else, or there is no folder for it.
    """
    with _refused_in_words(path):
        _refuse_other(path, kind)
        path.parent.stat()


def _write(path: Path, text: str, *, kind: str) -> None:
    with _refused_in_words(path):
        _refuse_other(path, kind)
        write_whole(path, text.encode())


@contextmanager
def _refused_in_words(path: Path) -> Iterator[None]:
    from harness.errors import UsageError

    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; choose another file with -o"
        ) from error


def _refuse_other(path: Path, kind: str) -> None:
    from harness.errors import UsageError

    if path.is_file() and not _holds(path, kind):
        raise UsageError(
            f"{path} is there and holds no {kind} document of blockbench, so it stays"
            " as it is; choose another file with -o"
        )


def _holds(path: Path, kind: str) -> bool:
    """Whether the file is empty, or a document of this kind."""
    data = path.read_bytes()
    try:
        found = json.loads(data) if data.strip() else {"kind": kind}
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("kind") == kind
