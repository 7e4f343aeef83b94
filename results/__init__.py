"""What a run leaves behind: records, their folder, statistics and findings."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.stored_run import StoredRun

__all__ = ["load"]


def load(path: str | PathLike[str]) -> "StoredRun":
    """Read a run folder: ``.requests`` and ``.steps`` frames, ``.run`` as a dict.

    ``.state`` tells how the run ended; one that is under way or was killed has the rows
    that it had recorded.

    Raises:
        results.errors.RunFolderError: The folder holds no run, or it cannot be read.
    """
    from results.stored_run import load_run  # pandas waits until it is needed

    return load_run(Path(path))
