"""Whether blockbench, its packages and its libraries are those that were installed."""

import importlib
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from bench_cli.probes.check import Check, Status
from bench_cli.probes.distribution import (
    OUR_PACKAGES,
    Installation,
    Requirement,
    installed_version,
    is_at_least,
    owners_of_our_packages,
)
from bench_cli.probes.program import ask

ROOT = Path(__file__).resolve().parents[2]
IMPORT_TIMEOUT_S = 60.0  # a cold disk, or one across a network

Complaint = tuple[str, str]  # what is wrong, and what to do about it


def check_python(installation: Installation | None) -> Check:
    """A problem where Python is older than the installed blockbench asks for."""
    version, system = platform.python_version(), platform.platform()
    minimum = installation.min_python if installation else ""
    is_too_old = not is_at_least(version, minimum)
    data = {
        "version": version,
        "required": minimum or None,
        "platform": system,
        "executable": sys.executable,
    }
    found = f"Python {version} on {system}"
    advice = f"install blockbench with Python {minimum} or later" if is_too_old else ""
    return Check("python", found, advice, data, Status.PROBLEM)


def check_blockbench(installation: Installation | None) -> Check:
    """A problem where it is not installed; a note where another copy is running."""
    data: dict[str, Any] = {"version": None, "is_editable": None, "folder": str(ROOT)}
    install = f"pip install {shlex.quote(str(ROOT))}"
    if installation is None:
        found = f"runs from {ROOT} and is not installed"
        return Check("blockbench", found, install, data, Status.PROBLEM)
    version, is_editable = installation.version, installation.is_editable
    data |= {"version": version, "is_editable": is_editable}
    how = "editable, in" if is_editable else "in"
    found, advice = f"{version}, {how} {installation.folder}", ""
    if not _is_same(installation.folder, ROOT):
        found += f"; what runs lies in {ROOT}"
        advice = f"take {ROOT} off PYTHONPATH, or {install}"
    return Check("blockbench", found, advice, data)


def _is_same(one: Path | str, other: Path | str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def check_packages(installation: Installation | None) -> Check:
    """A problem where a name of ours belongs, or leads, to somebody else."""
    owners = owners_of_our_packages(installation)
    loaded = strangers_on(sys.path)
    # A Python that is started here looks into this folder first.
    here = {} if sys.flags.safe_path else strangers_on(["", *sys.path])
    sound = f"{', '.join(OUR_PACKAGES)} are blockbench's own"
    rivals = here
    if source := _source_of_ours(here):
        rivals, sound = {}, f"{sound}; a Python started in this folder takes {source}'s"
    is_installed = installation is not None
    complaints = list(_complaints(owners, loaded, rivals, is_installed=is_installed))
    return Check(
        "packages",
        "; ".join(found for found, _ in complaints) or sound,
        "; ".join(dict.fromkeys(advice for _, advice in complaints)),
        {"owners": owners, "shadowed_by": here | loaded},
        Status.PROBLEM,
    )


def strangers_on(path: Sequence[str]) -> dict[str, str]:
    """Where a search path leads for those of our packages that are not found in ours.

    A folder without ``__init__.py`` hides nothing, as Python prefers a real package.
    """
    importlib.invalidate_caches()
    places = {name: _place(name, path) for name in OUR_PACKAGES}
    return {
        name: place for name, place in places.items() if not _is_same(place, ROOT / name)
    }


def _source_of_ours(strangers: dict[str, str]) -> Path | None:
    """The checkout of blockbench that all five packages were found in; else None."""
    folders = {Path(place).parent for place in strangers.values()}
    if set(strangers) != set(OUR_PACKAGES) or len(folders) > 1:
        return None
    project = folders.pop() / "pyproject.toml"
    is_ours = project.is_file() and b'\nname = "blockbench"\n' in project.read_bytes()
    return project.parent if is_ours else None


def _place(name: str, path: Sequence[str]) -> str:
    """The folder of a package, or the file of a module."""
    spec = PathFinder.find_spec(name, path)
    if spec is None:
        return "nowhere"
    return next(iter(spec.submodule_search_locations or ()), spec.origin or "nowhere")


def _complaints(
    owners: dict[str, list[str]],
    loaded: dict[str, str],
    here: dict[str, str],
    *,
    is_installed: bool,
) -> Iterator[Complaint]:
    """What is wrong with who owns our packages, and with what imports of them find."""
    for name, them in owners.items():
        rivals = [owner for owner in them if owner != "blockbench"]
        if rivals:  # their files are no reason to move files by hand
            remedy = f"pip uninstall {' '.join(rivals)}, then install blockbench again"
            yield f"{name} belongs to {', '.join(rivals)} too", remedy
            continue
        if is_installed and not them:
            yield f"the installed blockbench lacks {name}", "install blockbench again"
        if place := loaded.get(name):
            found = f"blockbench's import {name} finds {place}"
            yield found, f"rename {place}, or take its folder off PYTHONPATH"
        elif place := here.get(name):
            found = f"import {name} of a Python started in this folder finds {place}"
            yield found, f"rename {place}, or start Python elsewhere"


def check_libraries(requirements: Sequence[Requirement]) -> Check:
    """A problem where one is missing, too old, or cannot be imported."""
    libraries = [_library(needed) for needed in requirements]
    broken = [library for library in libraries if library["failure"]]
    needs = " ".join(f"'{x['name']}>={x['required']}'" for x in broken)
    return Check(
        "libraries",
        "; ".join(f"{x['name']} {x['failure']}" for x in broken)
        or " · ".join(f"{x['name']} {x['version']}" for x in libraries)
        or "not known, as blockbench is not installed",
        f"pip install --force-reinstall {needs}" if broken else "",
        {"libraries": libraries},
        Status.PROBLEM,
    )


def _library(needed: Requirement) -> dict[str, str | None]:
    version = installed_version(needed.name)
    return {
        "name": needed.name,
        "version": version,
        "required": needed.minimum,
        "failure": _failure(needed, version) or None,
    }


def _failure(needed: Requirement, version: str | None) -> str:
    """Why a library will not do; empty where it will."""
    if version is None:
        return f"is missing; {needed.minimum} or later is needed"
    if not is_at_least(version, needed.minimum):
        return f"{version} is too old; {needed.minimum} or later is needed"
    code = f"import {needed.name.replace('-', '_')}"  # as its wheel names its package
    answer = ask([sys.executable, "-P", "-c", code], timeout_s=IMPORT_TIMEOUT_S)
    return answer.failure and f"{version} cannot be used: its import {answer.failure}"
