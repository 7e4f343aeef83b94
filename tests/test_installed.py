"""Checks on the installed distribution."""

import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["bench_cli", "allocators", "harness", "profiles", "results"]


@pytest.mark.parametrize("name", PACKAGES)
def test_nobody_else_owns_our_package_names(name: str) -> None:
    """Only blockbench installs a top-level package of this name."""
    assert set(packages_distributions().get(name, [])) <= {"blockbench"}


def test_the_wheel_holds_all_packages() -> None:
    """The wheel lists every package of ours by name, and each is there and typed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert sorted(listed) == sorted(PACKAGES)
    for name in listed:
        assert (ROOT / name / "__init__.py").exists()
        assert (ROOT / name / "py.typed").exists()


def test_installed_version_is_that_of_the_source() -> None:
    """The tests run against this source, not against an older installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert version("blockbench") == project["project"]["version"]
