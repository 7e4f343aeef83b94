"""The folder of a task, which goes with the process that made it, however that ends."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "blockbench-vllm-"
YOUNG_S = 60.0
"""A folder that changed so lately may not have its lock yet."""


class TaskFolder:
    """A temporary folder that its process has locked; nobody else can write it.

    The system takes the lock away even from a process that is killed. A folder of this
    kind without one is therefore nobody's, and the next one that is made removes it.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        remove_left_behind()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._fd = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: then nobody removes it
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with all that is in it; a second call has no effect."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def remove_left_behind() -> None:
    """Remove the folders of processes that are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, in use, or gone meanwhile
            _remove_if_nobodys(path)


def _remove_if_nobodys(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(fd).st_mtime > YOUNG_S:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)
