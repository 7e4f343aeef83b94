"""Where a run is written, and how it takes the place of an older one."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from results.errors import RunFolderError
from results.journal import JOURNALS, is_under_way

RUNS_FOLDER = Path(".blockbench", "runs")
# Ends the name of a file or folder that takes its own name when it is whole.
UNFINISHED = ".unfinished"
# Ends the name of a run for the instant in which another one takes its place.
REPLACED = ".replaced"

FINAL_FILES = ("run.json", "requests.parquet", "steps.parquet")
# In the order in which they are removed: nothing is read without run.json.
ENGINE_LOG = "vllm.log"
"""What a real engine printed, beside the rows of its run."""

RUN_FILES = (
    *FINAL_FILES,
    *JOURNALS,
    *(name + UNFINISHED for name in FINAL_FILES),
    ENGINE_LOG,
)

MIB = 2**20
BYTES_PER_RUN = 16 * MIB
BYTES_PER_REQUEST = 4096  # measured: 3 KiB, of which 2 are steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """The folder in which a run is written.

    Attributes:
        folder: That folder, which exists.
        replaces: The folder of an older run, whose name it takes when it is whole.
        made: Folders that were made for it, the innermost first.
    """

    folder: Path
    replaces: Path | None = None
    made: tuple[Path, ...] = ()

    def remove_folders(self) -> None:
        """Remove those folders that were made for the run, as far as they are empty."""
        with suppress(OSError):
            for folder in self.made:
                folder.rmdir()

    def take_name(self) -> None:
        """Put the folder in the place of the older run, which is then removed.

        Killed between the two steps, it leaves both runs whole, and ``where_run_lies``
        finds the older one.

        Raises:
            OSError, RunFolderError: The older run is where it was.
        """
        if self.replaces is None:
            return
        if not self.replaces.exists():
            self.folder.rename(self.replaces)
            return
        check_output(self.replaces, force=True)
        aside = next(p for p in _set_aside(self.replaces) if not p.exists())
        self.replaces.rename(aside)
        try:
            self.folder.rename(self.replaces)
        except OSError:
            aside.rename(self.replaces)
            raise
        sync_folder(aside.parent)
        remove_run_files(aside)
        with suppress(OSError):
            aside.rmdir()


def make_place(output: Path | None, stem: str, *, force: bool) -> RunPlace:
    """A place for a new run: in ``output``, or in a new folder of ``RUNS_FOLDER``.

    ``stem`` is the name of that new folder, numbered where it is taken; ``output`` has
    been accepted by ``check_output``.

    Raises:
        RunFolderError: It cannot be made.
    """
    try:
        if output is None:
            RUNS_FOLDER.mkdir(parents=True, exist_ok=True)
            folder = _make_first(_numbered(RUNS_FOLDER / stem))
            return RunPlace(folder=folder, made=(folder,))
        # A folder cannot take the name of a link, so the run goes where the link leads.
        return _make_there(Path(os.path.realpath(output)), force=force)
    except OSError as error:
        raise cannot_save(output or RUNS_FOLDER, error) from error


def make_place_beside(folder: Path) -> RunPlace:
    """A new folder of this name, or the name with a number.

    Raises:
        OSError: It cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = _make_first(_numbered(folder))
    return RunPlace(folder=made, made=(made,))


def _make_there(target: Path, *, force: bool) -> RunPlace:
    if force and target.exists() and any(target.iterdir()):
        siblings = _numbered(target.with_name(target.name + UNFINISHED))
        folder = _make_first(siblings)
        return RunPlace(folder=folder, replaces=target, made=(folder,))
    made = tuple(path for path in (target, *target.parents) if not path.exists())
    target.mkdir(parents=True, exist_ok=True)
    return RunPlace(folder=target, made=made)


def _make_first(names: Iterator[Path]) -> Path:
    """The first of these folders that did not exist; it does now."""
    for folder in names:
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always another number")


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")


def _set_aside(folder: Path) -> Iterator[Path]:
    target = Path(os.path.realpath(folder))
    return _numbered(target.with_name(target.name + REPLACED))


def where_run_lies(folder: Path) -> Path:
    """The folder, or where its run was set aside if a kill fell into that instant."""
    if os.path.exists(folder):
        return folder
    for aside in _set_aside(folder):
        if os.path.exists(aside / "run.json"):
            return aside
        if not os.path.exists(aside):
            break
    return folder


def remove_run_files(folder: Path, names: Iterable[str] = RUN_FILES) -> None:
    """Remove what belongs to a run, as far as that can be done, and nothing else."""
    for name in names:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where that can be asked for."""
    with suppress(OSError):  # Windows opens no folder, some network disks sync none
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def cannot_save(place: Path, error: OSError) -> RunFolderError:
    """The error of a place that takes no run."""
    return RunFolderError(
        f"{place}: no run can be saved here: {error.strerror or error};"
        " choose another place with -o"
    )


def check_disk(output: Path | None, num_requests: int) -> None:
    """Accept a disk that has room for a run of so many requests.

    Raises:
        RunFolderError: It has not.
    """
    place = Path(os.path.realpath(output or RUNS_FOLDER))
    try:
        existing = next(path for path in (place, *place.parents) if path.exists())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise cannot_save(output or RUNS_FOLDER, error) from error
    needed = BYTES_PER_RUN + num_requests * BYTES_PER_REQUEST
    if free < needed:
        raise RunFolderError(
            f"{output or RUNS_FOLDER}: {free / MIB:,.0f} MiB are free, and a run of"
            f" {num_requests:,} requests may need {needed / MIB:,.0f} MiB;"
            " make room or choose another place with -o"
        )


def check_output(output: Path, *, force: bool) -> None:
    """Accept a folder that does not exist, is empty, or holds a run to be replaced.

    A link is judged by where it leads.

    Raises:
        RunFolderError: The folder holds something that must not be lost, or cannot take
            a run at all.
    """
    try:
        _check(output, force=force)
    except OSError as error:
        raise cannot_save(output, error) from error


def _check(output: Path, *, force: bool) -> None:
    target = Path(os.path.realpath(output))
    if target.is_symlink():
        raise RunFolderError(f"{output} is a link that leads back to itself; remove it")
    if not target.exists():
        return
    if not target.is_dir():
        raise RunFolderError(f"{output} is a file; name a folder with -o")
    if target.is_mount():  # no other folder can take its name
        raise RunFolderError(
            f"{output} is where a disk is mounted; name a folder inside it with -o"
        )
    is_empty = not any(target.iterdir())
    if not is_empty and not force:
        raise RunFolderError(
            f"{output} is not empty; choose another folder or add --force"
        )
    if not is_empty:
        _check_is_run(output, target)


def _check_is_run(output: Path, target: Path) -> None:
    """Refuse to replace anything but a run folder of ours that nobody is writing."""
    foreign = [path.name for path in sorted(target.iterdir()) if not _can_be_ours(path)]
    if foreign:
        raise RunFolderError(
            f"{output} holds {foreign[0]!r}, which is no part of a run;"
            " --force replaces runs only: choose another folder"
        )
    run = _run_document(target / "run.json")
    if run is None and _is_stillborn(target):
        return
    if run is None:
        raise RunFolderError(
            f"{output} has no run.json that blockbench wrote;"
            " --force replaces runs only: choose another folder"
        )
    if run.get("state") == "running" and is_under_way(target):
        raise RunFolderError(
            f"{output} holds a run that is under way;"
            " wait for its end or choose another folder"
        )


def _is_stillborn(target: Path) -> bool:
    """Whether a run was killed here before it had a run.json, and recorded nothing."""
    names = {path.name for path in target.iterdir()}
    begun = {*JOURNALS, f"run.json{UNFINISHED}"}
    is_empty = all((target / name).stat().st_size == 0 for name in names & {*JOURNALS})
    return names <= begun and bool(names) and is_empty and not is_under_way(target)


def _can_be_ours(path: Path) -> bool:
    return path.name in RUN_FILES and path.is_file() and not path.is_symlink()


def _run_document(path: Path) -> dict[str, Any] | None:
    """What a run.json of ours holds, of this schema version or another; else None."""
    try:
        run = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(run, dict) or "schema_version" not in run:
        return None
    summary = run.get("summary")
    is_summary = isinstance(summary, dict) and "kind" in summary
    return run if is_summary or (summary is None and "history" in run) else None
