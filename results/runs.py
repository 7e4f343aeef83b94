"""Runs by name: those of ``.blockbench/runs``, and the one that somebody means."""

import os
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from results.errors import RunFolderError
from results.output import RUNS_FOLDER, where_run_lies
from results.run_info import Ending
from results.stored_run import read_run

LAST = "last"
NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A folder among the runs.

    Attributes:
        folder: Where it lies.
        run: Its run.json; None where that cannot be read.
        state: How the run ended, or that it has not; None where that is not known.
        problem: Why it cannot be read; else empty.
    """

    folder: Path
    run: dict[str, Any] | None = None
    state: Ending | None = None
    problem: str = ""

    @property
    def created_at(self) -> datetime | None:
        """When the run began, with its time zone; None where that is not known."""
        if self.run is None:
            return None
        return datetime.fromisoformat(self.run["created_at"]).astimezone()


def list_runs(folder: Path = RUNS_FOLDER) -> list[RunEntry]:
    """The runs in a folder, the newest first; what cannot be read comes last.

    Raises:
        RunFolderError: The folder cannot be looked into.
    """
    entries = [_entry(path) for path in _run_folders(folder)]
    readable = [entry for entry in entries if entry.created_at is not None]
    damaged = [entry for entry in entries if entry.created_at is None]
    return sorted(readable, key=_age, reverse=True) + damaged


def _run_folders(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {error.strerror or error}; it should be a folder"
            " of runs"
        ) from error
    return [path for path in paths if path.is_dir() and not path.name.startswith(".")]


def _entry(folder: Path) -> RunEntry:
    try:
        run, state = read_run(folder)
    except RunFolderError as error:
        return RunEntry(folder=folder, problem=str(error))
    return RunEntry(folder=folder, run=run, state=state)


def _age(entry: RunEntry) -> tuple[datetime, Path]:
    assert entry.created_at is not None
    return entry.created_at, entry.folder


def find_run(text: str) -> Path:
    """The folder of the run that is meant.

    ``text`` is a run folder, the name of a run in ``.blockbench/runs``, a part of just
    one such name, or ``last`` for the newest.

    Raises:
        RunFolderError: There is none, or more than one.
    """
    folder = Path(text)
    if text and os.path.isfile(where_run_lies(folder) / "run.json"):
        return folder
    if text == LAST:
        return _newest()
    names = [path.name for path in _run_folders(RUNS_FOLDER)]
    if text in names:
        return RUNS_FOLDER / text
    matches = [name for name in names if text and text in name]
    if len(matches) == 1:
        return RUNS_FOLDER / matches[0]
    raise RunFolderError(_not_found(text, names, matches))


def _newest() -> Path:
    for entry in list_runs():
        if entry.run is not None:
            return entry.folder
    raise RunFolderError(
        f"there is no run in {RUNS_FOLDER}; make one with blockbench run"
        " or name the folder of one"
    )


def _not_found(text: str, names: list[str], matches: list[str]) -> str:
    remedy = "blockbench list shows the runs"
    if matches:
        return f"{text!r} is part of {_join(matches)}; give more of the name; {remedy}"
    near = _nearest(text, names)
    hint = f"; did you mean {_join(near)}?" if near else ";"
    return f"{text!r} is no run folder and no run in {RUNS_FOLDER}{hint} {remedy}"


def _nearest(text: str, names: list[str]) -> list[str]:
    """Names like the text, whole or without the time that they begin with."""
    by_form = {name.split("-", 2)[-1]: name for name in names}
    by_form.update((name, name) for name in names)
    forms = get_close_matches(text, by_form, n=NAMES_SHOWN)
    return list(dict.fromkeys(by_form[form] for form in forms))


def _join(names: list[str]) -> str:
    shown = names[:NAMES_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
