"""A stored run, read back for analysis."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.errors import RunFolderError
from results.store import read_run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRun:
    """What a run folder holds.

    Attributes:
        folder: Where it lies.
        run: The run.json: configuration, environment, trace, summary.
        requests: One row a request; columns are those of ``RequestRecord``.
        steps: One row a stretch of equal steps; columns are those of ``StepRecord``.
    """

    folder: Path
    run: dict[str, Any]
    requests: "pd.DataFrame"
    steps: "pd.DataFrame"


def load_run(folder: Path) -> StoredRun:
    """Read a run folder; times that never came are NaN in the frames.

    Raises:
        RunFolderError: The folder holds no run, or part of it cannot be read.
    """
    run = read_run(folder)
    return StoredRun(
        folder=folder,
        run=run,
        requests=_read_frame(folder / "requests.parquet"),
        steps=_read_frame(folder / "steps.parquet"),
    )


def _read_frame(path: Path) -> "pd.DataFrame":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            # Read ahead by threads of Arrow, a Python file can abort the process at exit.
            table = pq.read_table(file, use_threads=False, pre_buffer=False)
            frame: pd.DataFrame = table.to_pandas(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}; repeat the run that wrote it"
        ) from error
    return frame
