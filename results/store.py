"""The folder that a run leaves behind, from its first second on."""

import json
import os
import platform
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from results.errors import ResultsError, RunFolderError
from results.journal import JOURNALS, Journal
from results.measured import Table
from results.output import (
    RUN_FILES,
    UNFINISHED,
    cannot_save,
    check_disk,
    check_output,
    make_place,
    make_place_beside,
    remove_run_files,
    sync_folder,
)
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, RunInfo
from results.table import write_records

RUN_SCHEMA = 1
# 1  first version: state and history, and journals in place of tables while it is running

TABLES: tuple[Table, ...] = ("requests", "steps")
LIBRARIES = ("numpy", "pyarrow", "pandas")

Document = dict[str, Any]


class RunStore:
    """A run folder, which can be read at any moment, whenever its writer may be killed.

    It lies under its final name from the start (beside an older run that it replaces,
    until it is whole): ``run.json`` says "running" and the journals hold the rows so far.
    ``save`` writes the tables, then a ``run.json`` that says how the run ended, and only
    then removes the journals; each file takes its name when it is whole. Leaving the
    context without ``save`` removes what was made if no row was recorded, else nothing.

    Args:
        name: What was run, for the folder's name and run.json.
        info: What is known of the run before it begins.
        output: The folder to write; by default a new one in ``.blockbench/runs``,
            numbered where the name is taken.
        force: Replace the run that ``output`` holds.
        created_at: Local time in the folder's name and in run.json; now by default.

    Attributes:
        folder: Where the rows are being recorded.
        journal: Takes the rows while the run is under way.

    Raises:
        RunFolderError: ``output`` is taken or can be no folder, or it cannot be written
            to, or the disk is too full. Nothing of the run is left there.
    """

    def __init__(
        self,
        name: str,
        info: RunInfo,
        *,
        output: Path | None = None,
        force: bool = False,
        created_at: datetime | None = None,
    ) -> None:
        self.name = name
        created_at = created_at or datetime.now().astimezone()
        self._created_at = _iso(created_at)
        self._output = output
        self._is_saved = False
        if output is not None:
            check_output(output, force=force)
        check_disk(output, info.trace["num_requests"])
        stem = f"{created_at:%m%d-%H%M}-{folder_name(name)}"
        self._place = make_place(output, stem, force=force)
        self.folder = self._place.folder
        self.journal = self._open_journal()
        outcome = replace(info.outcome, ending=Ending.RUNNING)
        try:
            self._write_document(replace(info, outcome=outcome), summary=None)
        except OSError as error:
            self._remove()
            raise cannot_save(self.folder, error) from error

    def _open_journal(self) -> Journal:
        try:
            journal = Journal(self.folder)
            if names := set(os.listdir(self.folder)).difference(JOURNALS):
                journal.remove()
                raise FileExistsError(f"{min(names)} is there")
        except FileExistsError as error:
            raise RunFolderError(
                f"{self.folder} is not empty any more: another run began there;"
                " choose another folder"
            ) from error
        except OSError as error:
            self._place.remove_folders()
            raise cannot_save(self.folder, error) from error
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.journal.close()
        if not self._is_saved and self.journal.is_empty:
            self._remove()

    def save(
        self,
        info: RunInfo,
        requests: Sequence[RequestRecord],
        steps: Sequence[StepRecord],
        summary: Document | None,
    ) -> Path:
        """Write the whole run and return its folder.

        ``info`` tells how it ended; ``summary`` is None where it could not be made: the
        rows have all that it says. The journal should have the last rows by now: they
        are what is left where the disk is too full for the rest.

        Raises:
            ResultsError: The disk is full, or the folder cannot be written to. What the
                journal holds stays there and can be read.
        """
        try:
            if not self.journal.is_in_place:
                self._move_away()
            hidden = {table: info.unmeasured_in(table) for table in TABLES}
            self._put(
                "requests.parquet",
                lambda p: write_records(p, RequestRecord, requests, hidden["requests"]),
            )
            self._put(
                "steps.parquet",
                lambda p: write_records(p, StepRecord, steps, hidden["steps"]),
            )
            self._write_document(info, summary=summary)
        except OSError as error:
            raise self._not_saved(error) from error
        self._is_saved = True
        self.journal.remove()
        sync_folder(self.folder.parent)
        return self._take_name()

    def _move_away(self) -> None:
        """Take another folder, as somebody has moved or removed this one meanwhile.

        What lies there now is not ours.
        """
        self._place = make_place_beside(self.folder)
        self.folder = self._output = self._place.folder

    def _put(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file under another name and rename it once the disk has it."""
        unfinished = self.folder / (name + UNFINISHED)
        write(unfinished)
        os.replace(unfinished, self.folder / name)
        sync_folder(self.folder)

    def _write_document(self, info: RunInfo, *, summary: Document | None) -> None:
        document = self._run_document(info, summary)
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        self._put("run.json", lambda path: _write_text(path, text))

    def _run_document(self, info: RunInfo, summary: Document | None) -> Document:
        state = info.outcome.ending
        history = [{"state": Ending.RUNNING, "at": self._created_at}]
        if state is not Ending.RUNNING:
            history.append({"state": state, "at": _iso(datetime.now().astimezone())})
        return {
            "schema_version": RUN_SCHEMA,
            "name": self.name,
            "state": state,
            "created_at": self._created_at,
            "history": history,
            "environment": environment(),
            **info.to_dict(),
            "summary": summary,
        }

    def _not_saved(self, error: OSError) -> ResultsError:
        """Go back to the journal alone, and say so."""
        remove_run_files(self.folder, set(RUN_FILES).difference(("run.json", *JOURNALS)))
        self.journal.flush()  # there may be room now for rows that had to wait
        what = f"{self.folder}: the run was not saved: {error.strerror or error}"
        remedy = "make room or choose another place with -o"
        if self.journal.is_empty:
            return ResultsError(f"{what}; {remedy}")
        shown = shlex.quote(str(self.folder))
        return ResultsError(
            f"{what}; what it had recorded is kept (blockbench show {shown});"
            f" for the whole run {remedy}"
        )

    def _remove(self) -> None:
        """Remove what was made, and nothing that was there before."""
        self.journal.close()
        remove_run_files(self.folder)
        self._place.remove_folders()

    def _take_name(self) -> Path:
        try:
            self._place.take_name()
        except (OSError, RunFolderError) as error:
            raise ResultsError(
                f"{self._output}: the run could not be put there: {error};"
                f" it lies whole in {self.folder}"
            ) from error
        return self._output or self.folder


def folder_name(name: str) -> str:
    """The name with everything but letters, digits, ``.``, ``_`` and ``-`` replaced."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    short = plain.encode()[:160].decode(errors="ignore")  # a name may have 255 bytes
    return short[:80] or "run"


def environment() -> dict[str, str]:
    """What a run depended on besides its inputs."""
    return {
        "blockbench": _version_of("blockbench"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version_of(name) for name in LIBRARIES},
    }


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a source folder that is not installed
        return "unknown"


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
