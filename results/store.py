"""The folder that a run leaves behind: run.json, requests.parquet, steps.parquet."""

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from results.errors import ResultsError, RunFolderError
from results.output import check_output
from results.record import RequestRecord, StepRecord
from results.summary import SCHEMA_VERSION, Document
from results.table import write_records

RUNS_FOLDER = Path(".blockbench", "runs")


class RunStore:
    """A run folder in the making, beside the place where it will lie.

    Everything is written to a temporary folder that takes its final name in one step,
    so a folder with that name is always whole. Leaving the context without ``save``
    removes the temporary folder and nothing else.

    Args:
        name: What was run, for the folder's name and run.json.
        output: The folder to write; by default a new one in ``.blockbench/runs``,
            numbered where the name is taken.
        force: Replace the run that ``output`` holds.
        created_at: Local time in the folder's name and in run.json; now by default.

    Raises:
        RunFolderError: ``output`` is taken or can be no folder, or its parent cannot be
            written to.
    """

    def __init__(
        self,
        name: str,
        *,
        output: Path | None = None,
        force: bool = False,
        created_at: datetime | None = None,
    ) -> None:
        self.name = name
        self.created_at = created_at or datetime.now().astimezone()
        self._output = output
        # A folder cannot be renamed onto a link, so the run goes where the link leads.
        self._target = None if output is None else Path(os.path.realpath(output))
        self._force = force
        if output is not None:
            check_output(output, force=force)
        self._parent = RUNS_FOLDER if self._target is None else self._target.parent
        self._temporary = _make_temporary(self._parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def save(
        self,
        summary: Document,
        requests: Sequence[RequestRecord],
        steps: Sequence[StepRecord],
        *,
        trace: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the run and give the folder its name, which is returned.

        ``trace`` is what is known of the trace beyond the summary, above all its hash.

        Raises:
            ResultsError: The disk is full, or the folder cannot be written; no part of
                the run is left there.
        """
        try:
            write_records(self._temporary / "requests.parquet", RequestRecord, requests)
            write_records(self._temporary / "steps.parquet", StepRecord, steps)
            document = self._run_document(summary, trace)
            text = json.dumps(document, indent=2, allow_nan=False)
            (self._temporary / "run.json").write_text(text + "\n", encoding="utf-8")
            return self._rename()
        except OSError as error:
            raise ResultsError(
                f"{self._parent}: the run was not saved: {error.strerror or error};"
                " make room or choose another place with -o"
            ) from error

    def _run_document(
        self, summary: Document, trace: Mapping[str, Any] | None
    ) -> Document:
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "environment": environment(),
            "config": summary["config"],
            "trace": dict(trace or summary["trace"]),
            "summary": summary,
        }

    def _rename(self) -> Path:
        self._temporary.chmod(0o755)
        if self._output is not None and self._target is not None:
            if self._force and self._target.exists():
                check_output(self._output, force=True)
                shutil.rmtree(self._target)
            self._temporary.rename(self._target)
            return self._output
        for target in self._free_names():
            if target.exists():
                continue
            try:
                self._temporary.rename(target)
            except OSError:
                if not target.exists():
                    raise
            else:
                return target
        raise AssertionError("there is always another number")

    def _free_names(self) -> Iterator[Path]:
        stem = f"{self.created_at:%m%d-%H%M}-{folder_name(self.name)}"
        yield self._parent / stem
        for number in count(2):
            yield self._parent / f"{stem}-{number}"


def folder_name(name: str) -> str:
    """The name with everything but letters, digits, ``.``, ``_`` and ``-`` replaced."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return plain[:80] or "run"


def environment() -> dict[str, str]:
    """What a run depended on besides its inputs."""
    try:
        blockbench = version("blockbench")
    except PackageNotFoundError:  # run from a source folder that is not installed
        blockbench = "unknown"
    return {
        "blockbench": blockbench,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _make_temporary(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    except OSError as error:
        raise RunFolderError(
            f"{folder}: no run can be saved here: {error.strerror or error};"
            " choose another place with -o"
        ) from error


def read_run(folder: Path) -> dict[str, Any]:
    """The run.json of a folder.

    Raises:
        RunFolderError: There is none, or this version cannot read it.
    """
    path = folder / "run.json"
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(
            f"{folder} holds no run: run.json: {error.strerror or error};"
            f" runs lie in {RUNS_FOLDER}"
        ) from error
    except ValueError as error:
        raise RunFolderError(
            f"{path} is damaged: {error}; repeat the run that wrote it"
        ) from error
    found = run.get("schema_version") if isinstance(run, dict) else None
    if found != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema version {found}, this blockbench reads"
            f" {SCHEMA_VERSION}; update blockbench or repeat the run"
        )
    return run
