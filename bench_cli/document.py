"""Where a command's JSON document goes."""

import json
from pathlib import Path
from typing import Any

import typer


def deliver(document: dict[str, Any], *, as_json: bool, output: Path | None) -> None:
    """Write the document to ``output`` if there is one, and to stdout with ``--json``.

    Raises:
        UsageError: The file cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False)
    if output is not None:
        _write(output, text + "\n")
    if as_json:
        typer.echo(text)


def _write(path: Path, text: str) -> None:
    from harness.errors import UsageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; choose another file with -o"
        ) from error
