"""Files that are whole, or not there."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write the whole file or leave what was there; a device or a pipe is written to.

    Raises:
        OSError: It cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
