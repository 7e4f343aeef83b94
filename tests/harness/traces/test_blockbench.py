"""Tests for :mod:`harness.traces.blockbench`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import TraceError
from harness.traces import open_trace

WriteLines = Callable[..., Path]

HEADER = {"blockbench": 1, "generated": None, "note": "ours"}


def _row(**changes: Any) -> dict[str, Any]:
    row = {"arrival_s": 1.0, "prompt": [[0, 10], [1, 5]], "output": [[2, 3]]}
    return {**row, **changes}


def test_row_becomes_a_request(write_lines: WriteLines) -> None:
    """Everything that a row can say arrives in the request."""
    row = _row(output=[[2, 3], [3, 4]], priority=-2, adapter="sql", salt="alice")

    request = open_trace(write_lines(HEADER, row)).request(0)

    assert request.prompt == ((0, 10), (1, 5))
    assert request.num_prompt_tokens == 15
    assert request.outputs == ((2, 3), (3, 4))
    assert request.n == 2
    assert request.priority == -2
    assert request.extra_keys == ("adapter", "sql", "salt", "alice")


def test_adapter_and_salt_never_mix(write_lines: WriteLines) -> None:
    """An adapter and a salt of the same name are different keys."""
    workload = open_trace(write_lines(HEADER, _row(adapter="x"), _row(salt="x")))

    assert workload.request(0).extra_keys != workload.request(1).extra_keys


def test_turns_follow_rows(write_lines: WriteLines) -> None:
    """``after`` counts rows of the file, and survives sorting."""
    path = write_lines(
        HEADER,
        _row(arrival_s=9),
        _row(arrival_s=1),
        _row(arrival_s=4, after=1, delay_s=0.25),
    )

    workload = open_trace(path)

    assert workload.parent.tolist() == [-1, 0, -1]
    assert workload.delay_ns.tolist() == [0, 250_000_000, 0]


def test_turn_after_a_skipped_row_starts_on_its_own(write_lines: WriteLines) -> None:
    """A turn whose earlier turn is a bad row is kept, and a note says so."""
    path = write_lines(HEADER, _row(prompt=[]), _row(after=0, delay_s=1))

    workload = open_trace(path, skip_bad_rows=True)

    assert workload.parent.tolist() == [-1]
    assert any("1 turn starts on its own" in note for note in workload.notes)


def test_the_first_request_follows_nobody(write_lines: WriteLines) -> None:
    """Where no row is earlier, the message offers no range of rows."""
    with pytest.raises(TraceError, match=r":2: after is 0, but the first request cannot"):
        open_trace(write_lines(HEADER, _row(after=0)))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("note", 5, "note is 5, must be a string; correct"),
        ("note", {"a": 1}, "note is "),
        ("generated", [1], r"generated is \[1\], must be an object or null"),
        ("generated", False, "generated is false"),
        ("blockbench", True, "format version true, must be 1"),
        ("blockbench", "1", 'format version "1", must be 1'),
        ("blockbench", 0, "format version 0, must be 1"),
        ("generator", None, "the header has the unknown key generator; take it out"),
    ],
)
def test_bad_header_is_named(
    write_lines: WriteLines, field: str, value: object, problem: str
) -> None:
    """A header field of another kind is refused on line 1, bad rows skipped or not."""
    path = write_lines({**HEADER, field: value}, _row())

    with pytest.raises(TraceError, match=f"trace.jsonl:1: {problem}"):
        open_trace(path, skip_bad_rows=True)


def test_header_tells_generated_from_recorded(write_lines: WriteLines) -> None:
    """A trace with generator options in its header is generated, with its note."""
    made = open_trace(write_lines({**HEADER, "generated": {"seed": 0}}, _row()))
    recorded = open_trace(write_lines(HEADER, _row()))

    assert (made.is_generated, recorded.is_generated) == (True, False)
    assert made.notes == ("ours",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt": []}, "prompt is "),
        ({"prompt": [[0]]}, r"prompt has \[0\]"),
        ({"prompt": [[0, 0]]}, "prompt tokens is 0"),
        ({"prompt": [[-1, 4]]}, "prompt has segment -1"),
        ({"prompt": [[0, 4.0]]}, "prompt tokens is 4.0"),
        ({"output": [[0, True]]}, "output tokens is true"),
        ({"output": [[-1, 4]]}, "output has segment -1"),
        ({"output": [[2**62, 4]]}, "output has segment 4611686018427387904"),
        (
            {"arrival_s": 1e10},
            "arrival_s is 10000000000.0, must be a time from 0 to 9,000,000,000 s",
        ),
        ({"output": [3, 4]}, "output has 3"),
        ({"arrival_s": "now"}, 'arrival_s is "now"'),
        ({"arrival_s": -0.1}, "arrival_s is -0.1"),
        ({"after": 1}, "after is 1"),
        ({"after": -1}, "after is -1"),
        ({"after": 0, "arrival_s": 0.5}, "arrival_s is earlier than that of row 0"),
        ({"delay_s": 1}, "delay_s needs 'after'"),
        ({"after": 0, "delay_s": -1}, "delay_s is -1"),
        ({"priority": 0.5}, "priority is 0.5"),
        ({"priority": 2**31}, "priority is 2147483648, must be a whole number of 32"),
        ({"salt": ["a"]}, "salt is "),
        ({"adapter": ""}, 'adapter is "", must be a string that is not empty'),
        ({"promt": 1}, "unknown key promt"),
    ],
)
def test_bad_row_is_named(
    write_lines: WriteLines, changes: dict[str, Any], problem: str
) -> None:
    """A bad row is refused with its line, what is wrong and the way out."""
    path = write_lines(HEADER, _row(), _row(**changes))

    with pytest.raises(TraceError, match=f"trace.jsonl:3: {problem}.*--skip-bad-rows"):
        open_trace(path)


def test_newer_format_is_refused(write_lines: WriteLines) -> None:
    """A file of a later version is refused with the way out named."""
    with pytest.raises(TraceError, match=r"version 2.*update blockbench"):
        open_trace(write_lines({"blockbench": 2}, _row()))


@pytest.mark.parametrize(
    ("said", "has_sharing"), [({}, True), ({"has_sharing": False}, False)]
)
def test_header_may_know_nothing_of_sharing(
    write_lines: WriteLines, said: dict[str, bool], has_sharing: bool
) -> None:
    """A trace says which prompts begin alike, unless its header says that it does not."""
    path = write_lines({**HEADER, **said}, _row(), _row())

    assert open_trace(path).has_sharing is has_sharing
