"""Tests for groups of options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine, Policy, SchedulingPolicy
from bench_cli.flags import Without, takes_flags
from bench_cli.workload import SourceFlags, WorkloadFlags
from harness.config import resolve_config

Size = Annotated[int, typer.Option("--size", min=1, help="How large.")]
Colour = Annotated[str | None, typer.Option("--colour", help="Which colour.")]
Loud = Annotated[bool, typer.Option("--loud/--quiet", help="How loud.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFlags:
    """What a box is like."""

    size: Size = 3
    colour: Colour = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceFlags:
    """What a voice is like."""

    loud: Loud = False
    pitch: Annotated["int", typer.Option("--pitch")]


def ran(command: Callable[..., None], *args: str) -> Any:
    """Run a command of an app of its own."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, args, catch_exceptions=False)


@takes_flags
def pack(
    context: typer.Context,
    name: Annotated[str, typer.Argument()] = "x",
    *,
    before: Annotated[int, typer.Option("--before")] = 0,
    box: BoxFlags,
    voice: VoiceFlags,
    after: Annotated[int, typer.Option("--after")] = 0,
) -> None:
    """Pack a box."""
    assert context.info_name
    print(name, before, box, voice, after)


def test_given_flags_arrive_in_their_groups() -> None:
    """Each flag is a field of its group; one that was not given has its default."""
    done = ran(pack, "y", "--colour", "red", "--loud", "--pitch", "5", "--after", "2")

    voice = VoiceFlags(loud=True, pitch=5)
    assert done.stdout == f"y 0 {BoxFlags(colour='red')} {voice} 2\n"


def test_fields_stand_where_their_group_stands() -> None:
    """The signature lists the fields in the place of the parameter."""
    assert list(inspect.signature(pack).parameters) == (
        ["context", "name", "before", "size", "colour", "loud", "pitch", "after"]
    )


def test_help_shows_each_field_as_an_option() -> None:
    """Help has the words, bounds and defaults of the fields, and the command's own."""
    out = ran(pack, "--help").stdout

    assert "Pack a box." in out
    assert "--loud / --quiet" in out
    assert "How large. [default: 3; x>=1]" in " ".join(out.split())
    assert not any(word in out for word in ("--box", "--voice"))


def test_a_field_without_a_default_is_required() -> None:
    """The command line asks for a field that has no default."""
    done = ran(pack)

    assert done.exit_code == 2
    assert "--pitch" in done.stderr


def test_bounds_of_a_field_are_checked() -> None:
    """A value beyond an option's bounds never reaches the command."""
    assert ran(pack, "--pitch", "1", "--size", "0").exit_code == 2


def test_a_command_calls_as_python_with_fields() -> None:
    """Called as a function, the command takes fields and builds the groups."""
    seen: list[BoxFlags] = []

    @takes_flags
    def keep(*, box: BoxFlags) -> None:
        seen.append(box)

    keep(size=4)
    keep()

    assert seen == [BoxFlags(size=4), BoxFlags()]


def test_a_group_may_be_named_as_one_of_its_fields() -> None:
    """A parameter that has the name of a field gets the group."""
    seen: list[BoxFlags] = []

    @takes_flags
    def keep(*, size: BoxFlags) -> None:
        seen.append(size)

    keep(size=4)

    assert seen == [BoxFlags(size=4)]


def test_a_field_left_out_is_no_option() -> None:
    """What a command is without keeps its default, and is an unknown option."""
    seen: list[BoxFlags] = []

    @takes_flags
    def keep(*, box: Annotated[BoxFlags, Without("size")]) -> None:
        seen.append(box)

    assert ran(keep, "--colour", "red").exit_code == 0
    assert ran(keep, "--size", "4").exit_code == 2
    assert seen == [BoxFlags(colour="red")]


def test_a_command_cannot_be_without_what_is_not_there() -> None:
    """A misspelt field is found when the command is defined."""

    def keep(*, box: Annotated[BoxFlags, Without("sise")]) -> None: ...

    with pytest.raises(AssertionError, match="BoxFlags lacks.*sise"):
        takes_flags(keep)


def test_a_group_is_passed_by_keyword() -> None:
    """A group that could be passed by position is found when the command is defined."""

    def keep(box: BoxFlags) -> None: ...

    with pytest.raises(AssertionError, match=r"box: put a \* before"):
        takes_flags(keep)


def test_two_groups_cannot_have_one_field() -> None:
    """A field of two groups is found when the command is defined."""

    def keep(*, box: BoxFlags, other: BoxFlags) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'size'"):
        takes_flags(keep)


def test_no_two_of_our_groups_share_a_field() -> None:
    """A command can take an engine, a source and a choice of requests at once."""
    groups = (EngineFlags, SourceFlags, WorkloadFlags)
    names = [field.name for group in groups for field in fields(group)]

    assert len(names) == len(set(names))


def test_knobs_are_plain() -> None:
    """Choices are plain text in the knobs of an engine, and the rest is as given."""
    flags = EngineFlags(
        engine=Engine.SIM,
        policy=Policy.V1,
        scheduling_policy=SchedulingPolicy.PRIORITY,
        block_size=32,
    )
    knobs = flags.knobs()

    assert {type(knobs[n]) for n in ("engine", "policy", "scheduling_policy")} == {str}
    assert (knobs["policy"], knobs["block_size"], knobs["dtype"]) == ("v1", 32, None)
    assert list(knobs) == [field.name for field in fields(EngineFlags)]


def test_knobs_can_be_overridden_one_by_one() -> None:
    """Knobs with one overridden resolve as the flags do that give it so."""
    flags = EngineFlags(block_size=16, num_gpu_blocks_override=1000)
    other = EngineFlags(block_size=16, num_gpu_blocks_override=1000, max_num_seqs=7)

    assert resolve_config(**flags.knobs() | {"max_num_seqs": 7}) == other.resolve()
    assert resolve_config(**flags.knobs()) == flags.resolve() != other.resolve()
