"""What a run leaves behind: records, their folder, statistics and findings."""

import os
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.stored_run import StoredRun

__all__ = ["load"]


def load(path: str | PathLike[str]) -> "StoredRun":
    """Read a run: ``.requests`` and ``.steps`` frames, ``.run`` as a dict.

    ``path`` is its folder, or what ``blockbench show`` takes: the name of a run in
    ``.blockbench/runs``, a part of it, or ``last``. ``.run["summary"]`` is the summary.

    ``.state`` tells how the run ended; one that is under way or was killed has the rows
    that it had recorded.

    Raises:
        results.errors.RunFolderError: The folder holds no run, or it cannot be read.
    """
    from results.runs import find_run
    from results.stored_run import load_run  # pandas waits until it is needed

    return load_run(find_run(os.fspath(path)))
