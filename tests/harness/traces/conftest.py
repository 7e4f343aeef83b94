"""Small trace files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

WriteLines = Callable[..., Path]


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    """Return a writer of one trace: each line an object, or text as it is."""

    def write(*lines: dict[str, Any] | str, name: str = "trace.jsonl") -> Path:
        texts = [
            line if isinstance(line, str) else orjson.dumps(line).decode()
            for line in lines
        ]
        path = tmp_path / name
        path.write_text("\n".join(texts) + "\n")
        return path

    return write
