"""Tests for :mod:`results.findings.option`."""

from collections.abc import Callable

import pytest

from profiles import vllm_v1
from profiles.vllm_version import parse_version
from results.findings.option import OPTION_SINCE, has_option
from results.findings.run_view import RunView

MakeView = Callable[..., RunView]


@pytest.mark.parametrize("name", OPTION_SINCE)
def test_options_are_those_of_the_profile(name: str) -> None:
    """What findings know of an option is what the profile of v1 knows."""
    since = ".".join(map(str, OPTION_SINCE[name]))

    assert parse_version(since) == vllm_v1.OPTION_SINCE[name]


@pytest.mark.parametrize(
    ("version", "policy", "expected"),
    [
        ("0.24.0", "v1", True),
        ("0.23.9", "v1", False),
        ("v0.24", "v1", True),
        ("0.32.1rc2+cu129", "v1", True),
        ("1.0", "v1", True),
        ("dev", "v1", False),
        (None, "v1", False),
        ("0.32.0", "v0", False),
    ],
)
def test_advice_names_what_the_version_in_force_has(
    make_view: MakeView, version: str | None, policy: str, expected: bool
) -> None:
    """A watermark came with 0.24, to v1 alone; an unknown version is not promised it."""
    run = make_view([], [], config={"vllm_version": version}, policy=policy)

    assert has_option(run, "watermark") is expected
