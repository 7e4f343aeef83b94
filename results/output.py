"""Which folder a run may be written to: one that is new, empty, or an older run."""

import json
import os
from pathlib import Path

from results.errors import RunFolderError

RUN_FILES = frozenset({"run.json", "requests.parquet", "steps.parquet"})


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
        raise RunFolderError(
            f"{output}: no run can be saved here: {error.strerror or error};"
            " choose another place with -o"
        ) from error


def _check(output: Path, *, force: bool) -> None:
    target = Path(os.path.realpath(output))
    if target.is_symlink():
        raise RunFolderError(f"{output} is a link that leads back to itself; remove it")
    if not target.exists():
        return
    if not target.is_dir():
        raise RunFolderError(f"{output} is a file; name a folder with -o")
    if target.is_mount():  # its name cannot be given to the finished run
        raise RunFolderError(
            f"{output} is where a disk is mounted; name a folder inside it with -o"
        )
    found = sorted(target.iterdir())
    if found and not force:
        raise RunFolderError(
            f"{output} is not empty; choose another folder or add --force"
        )
    if found:
        _check_is_run(output, found)


def _check_is_run(output: Path, found: list[Path]) -> None:
    """Refuse to replace anything but a whole run folder of ours."""
    foreign = [path.name for path in found if not _can_be_ours(path)]
    if foreign:
        raise RunFolderError(
            f"{output} holds {foreign[0]!r}, which is no part of a run;"
            " --force replaces runs only: choose another folder"
        )
    if not _is_run_document(found[0].with_name("run.json")):
        raise RunFolderError(
            f"{output} has no run.json that blockbench wrote;"
            " --force replaces runs only: choose another folder"
        )


def _can_be_ours(path: Path) -> bool:
    return path.name in RUN_FILES and path.is_file() and not path.is_symlink()


def _is_run_document(path: Path) -> bool:
    """Whether a file is a run.json, of this schema version or another."""
    try:
        run = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    if not isinstance(run, dict) or "schema_version" not in run:
        return False
    summary = run.get("summary")
    return isinstance(summary, dict) and "kind" in summary
