"""Writing a trace file: all of it or nothing, and never over what is no file."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from harness.errors import UsageError


def check_target(path: Path, *, force: bool) -> None:
    """Refuse what is no file, or one that is there and is not to be replaced.

    Raises:
        UsageError: Nothing may be written there.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(mode):  # a device would be replaced by a file
        raise UsageError(f"{path} is no ordinary file; choose another name with -o")
    if not force:
        raise UsageError(f"{path} exists; choose another name, or replace it: --force")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, then give it its own.

    Raises:
        UsageError: It cannot be written; what was there is still there.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # where nothing could be written there is none
            unfinished.unlink()


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = (error.strerror or str(error)).lower()
    return UsageError(f"cannot write {path}: {reason}; choose another place with -o")
