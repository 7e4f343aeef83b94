"""What pip knows of blockbench, of the libraries it needs, and of our package names."""

import json
import re
from dataclasses import dataclass
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    distributions,
)
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

OUR_PACKAGES = ("bench_cli", "allocators", "harness", "profiles", "results")

_REQUIREMENT = re.compile(
    r"""([\w.-]+) \s* \(? >= \s* (\d[\d.]*) \)? \s*
    (?: ; \s* extra \s* == \s* ['"] ([\w-]+) ['"] )?""",
    re.VERBOSE,
)
_OUR_FILE = re.compile(
    rf'^"?({"|".join(OUR_PACKAGES)})(?:/|\.(?:[\w-]+\.)?(?:py|so|pyd)"?,)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library, the oldest release that will do, and the extra that asks for it.

    ``extra`` is None where blockbench itself needs the library.
    """

    name: str
    minimum: str
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Installation:
    """The distribution ``blockbench``, and the folder where its packages lie."""

    version: str
    min_python: str
    folder: Path
    is_editable: bool
    requirements: tuple[Requirement, ...]


def find_installation() -> Installation | None:
    """What pip knows of blockbench; None where it runs without being installed."""
    try:
        found = distribution("blockbench")
    except PackageNotFoundError:
        return None
    version = _header(found, "Version")
    if version is None:
        return None
    source = _editable_source(found)
    return Installation(
        version=version,
        min_python=(_header(found, "Requires-Python") or "").removeprefix(">="),
        folder=source or Path(str(found.locate_file(""))),
        is_editable=source is not None,
        requirements=tuple(parse_requirement(line) for line in found.requires or ()),
    )


def _editable_source(found: Distribution) -> Path | None:
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


def parse_requirement(line: str) -> Requirement:
    """The requirement in ``numpy>=1.26``, the only form that ours have."""
    match = _REQUIREMENT.fullmatch(line.strip())
    assert match is not None, f"doctor cannot read the requirement {line!r}"
    return Requirement(*match.groups())


def installed_version(name: str) -> str | None:
    """The installed version of a distribution; None where there is none, or half."""
    try:
        return _header(distribution(name), "Version")
    except PackageNotFoundError:
        return None


def _header(found: Distribution, name: str) -> str | None:
    # Not from its metadata object, which a half-removed distribution cannot make.
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    match = re.search(rf"^{name}:[ \t]*(\S+)", text, re.MULTILINE)
    return match[1] if match else None


def is_at_least(version: str, minimum: str) -> bool:
    """Whether a release is new enough; 2.0rc1 and 2.0+cpu both count as 2.0."""
    return _release(version) >= _release(minimum)


def _release(version: str) -> list[int]:
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:  # 2 and 2.0 are one release
        numbers.pop()
    return numbers


def owners_of_our_packages(installation: Installation | None) -> dict[str, list[str]]:
    """Names of the distributions that install each of our packages.

    Listings are read as text: to look for each file of a large environment takes long.
    An editable installation lists no package and owns those in its source folder.
    """
    owners: dict[str, set[str]] = {name: set() for name in OUR_PACKAGES}
    for found in distributions():
        for name in _packages_of(found):
            owners[name].add(_header(found, "Name") or "a distribution without a name")
    if installation is not None and installation.is_editable:
        for name in OUR_PACKAGES:
            if (installation.folder / name / "__init__.py").exists():
                owners[name].add("blockbench")
    return {name: sorted(them) for name, them in owners.items()}


def _packages_of(found: Distribution) -> set[str]:
    listed = set(_OUR_FILE.findall(found.read_text("RECORD") or ""))
    declared = (found.read_text("top_level.txt") or "").split()
    return listed | set(OUR_PACKAGES).intersection(declared)
