"""Tests for the headings of a command's help."""

import re
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from bench_cli.engine_flags import EngineFlags
from bench_cli.main import app
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.workload import WorkloadFlags

MOST_UNDER_A_HEADING = 12


def sections(command: str) -> dict[str, list[str]]:
    """The long flags under each heading of a command's help, in order."""
    found: dict[str, list[str]] = {}
    for line in CliRunner().invoke(app, [command, "--help"]).stdout.splitlines():
        if re.fullmatch(r"\w[\w ]*:", line):
            found[line[:-1]] = []
        elif flag := re.match(r"  (?:-\w+, )?--([\w-]+)", line):
            list(found.values())[-1].append(flag[1])
    return found


def test_options_stand_under_headings() -> None:
    """Those of the command itself come first, then those of what it runs."""
    assert list(sections("run")) == [
        "Arguments",
        "Options",
        "Model and GPU",
        "Engine",
        "KV cache",
        "Scheduler",
        "Trace",
        "Load",
        "Real engines",
    ]


@pytest.mark.parametrize("command", ["run", "compare", "capacity", "verify", "calibrate"])
def test_no_heading_has_too_many_to_read(command: str) -> None:
    """Every option stands once, and few enough of them under one heading."""
    found = sections(command)
    flags = [flag for under in found.values() for flag in under]

    assert len(flags) == len(set(flags))
    assert max(map(len, found.values())) <= MOST_UNDER_A_HEADING


@pytest.mark.parametrize("group", [EngineFlags, WorkloadFlags, MeasuredFlags])
def test_every_shared_option_has_a_heading(group: type) -> None:
    """None of an engine or a load stands among those of the command itself."""
    own = sections("run")["Options"]
    names = {field.name.replace("_", "-") for field in fields(group)}

    assert "help" in own
    assert names.isdisjoint(own)


@pytest.mark.parametrize(
    ("command", "argument"),
    [("show", "[RUN]"), ("list", "[FOLDER]"), ("verify", "[TRACE]"), ("run", "{TRACE}")],
)
def test_usage_brackets_an_argument_once(command: str, argument: str) -> None:
    """Usage shows in one pair of brackets what may be left out."""
    usage = CliRunner().invoke(app, [command, "--help"]).stdout.splitlines()[0]

    assert usage.endswith(f" [OPTIONS] {argument}")


@pytest.mark.parametrize(
    ("group", "command"),
    [
        *(([], name) for name in ("run", "compare", "tune", "capacity", "calibrate")),
        *(([], name) for name in ("show", "list", "verify", "doctor", "profiles")),
        *((["trace"], name) for name in ("inspect", "generate")),
        *((["profiles"], name) for name in ("list", "show")),
    ],
)
def test_a_command_is_summed_up_in_one_line(group: list[str], command: str) -> None:
    """The list of commands cuts no sentence off."""
    shown = CliRunner().invoke(app, [*group, "--help"]).stdout
    line = next(line for line in shown.splitlines() if line.startswith(f"  {command} "))

    assert line.endswith(".")
    assert not line.endswith("...")
