"""Our own JSON lines, which say everything that a workload can hold.

The first line is a header, ``{"blockbench": 1, "generated": {...} or null, "note"}``;
with ``"has_sharing": false`` nothing is known of which prompts begin alike.
Every other line is a request::

    {"arrival_s": 0.5, "prompt": [[segment, tokens], ...],
     "output": [[segment, tokens], ...],        one a sample
     "after": 3, "delay_s": 2.0,                released 2 s after row 3 has finished
     "priority": 0, "adapter": "...", "salt": "..."}

``arrival_s``, ``prompt`` and ``output`` are required. Rows count from 0, the header and
blank lines not included. docs/traces.md describes the format for users.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.errors import TraceError
from harness.request import Run
from harness.run_columns import RunColumns
from harness.traces.bad_row import (
    BadRowError,
    BadRows,
    checked_length,
    checked_time_ns,
    parse_object,
    required,
    shown,
)
from harness.traces.reader import TraceColumns
from harness.traces.source import TraceSource
from harness.workload import ExtraKeys

FORMAT_VERSION = 1
# 1  first version
_KEYS = {
    "arrival_s",
    "prompt",
    "output",
    "after",
    "delay_s",
    "priority",
    "adapter",
    "salt",
}
_HEADER_REMEDY = (
    f'begin the file with {{"blockbench": {FORMAT_VERSION}}}; leave --format out to have'
    " the format recognised"
)
_HEADER_KEYS = {"blockbench", "generated", "note", "has_sharing"}
_HEADER_FIELDS = (
    ("note", str, "a string"),
    ("generated", dict, "an object or null"),
    ("has_sharing", bool, "true or false"),
)
_NS_PER_S = 1_000_000_000
_MAX_SEGMENT = 2**62


class BlockbenchReader:
    """Reads traces that ``blockbench trace generate`` writes."""

    name = "blockbench"
    first_line = '{"blockbench": 1, "generated": null}'

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Whether the first line is our header."""
        try:
            return "blockbench" in parse_object(head[0])
        except BadRowError:
            return False

    def read(self, source: TraceSource, bad_rows: BadRows) -> TraceColumns:
        """The rows of the file."""
        lines = source.lines()
        header = _header(source, next(lines))
        rows = _Rows()
        for line, text in lines:
            try:
                rows.add(parse_object(text))
            except BadRowError as bad:
                rows.skip()
                bad_rows.reject(line, bad)
        return rows.columns(header)


@dataclass(slots=True)
class _Rows:
    """The good rows read so far, as lists; ``position`` has all rows, -1 a bad one."""

    arrival_ns: list[int] = field(default_factory=list)
    prompts: list[Sequence[Run]] = field(default_factory=list)
    outputs: list[Sequence[Run]] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    delay_ns: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    extra_keys: dict[int, ExtraKeys] = field(default_factory=dict)
    position: list[int] = field(default_factory=list)
    num_orphans: int = 0

    def skip(self) -> None:
        """Keep the number of a bad row."""
        self.position.append(-1)

    def add(self, row: dict[str, Any]) -> None:
        """Take a row whole, or raise and take nothing."""
        unknown = row.keys() - _KEYS
        if unknown:
            raise BadRowError("unknown key", f"unknown key {', '.join(sorted(unknown))}")
        arrival = required(row, "arrival_s")
        arrival_ns = checked_time_ns("arrival_s", arrival, unit_ns=_NS_PER_S)
        prompt = _checked_runs("prompt", required(row, "prompt"))
        output = _checked_runs("output", required(row, "output"))
        priority = _checked_priority(row.get("priority", 0))
        extra_keys = _checked_extra_keys(row)
        parent, delay_ns = self._checked_parent(row, arrival_ns)
        if extra_keys:
            self.extra_keys[len(self.arrival_ns)] = extra_keys
        self.position.append(len(self.arrival_ns))
        self.arrival_ns.append(arrival_ns)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.parent.append(parent)
        self.delay_ns.append(delay_ns)
        self.priority.append(priority)

    def columns(self, header: dict[str, Any]) -> TraceColumns:
        """The rows as columns."""
        notes = [header["note"]] if header.get("note") else []
        if self.num_orphans:
            notes.append(_orphans_note(self.num_orphans))
        return TraceColumns(
            arrival_ns=np.array(self.arrival_ns, dtype=np.int64),
            prompts=RunColumns.from_runs(self.prompts),
            outputs=RunColumns.from_runs(self.outputs),
            has_sharing=header.get("has_sharing") is not False,
            is_generated=header.get("generated") is not None,
            parent=np.array(self.parent, dtype=np.int64),
            delay_ns=np.array(self.delay_ns, dtype=np.int64),
            priority=np.array(self.priority, dtype=np.int64),
            extra_keys=self.extra_keys,
            notes=notes,
        )

    def _checked_parent(self, row: dict[str, Any], arrival_ns: int) -> tuple[int, int]:
        """Position and delay of the row that this one follows, or (-1, 0)."""
        delay_ns = checked_time_ns("delay_s", row.get("delay_s", 0), unit_ns=_NS_PER_S)
        after = row.get("after")
        if after is None:
            if "delay_s" in row:
                raise BadRowError(
                    "delay_s without after", "delay_s needs 'after' beside it"
                )
            return -1, 0
        if type(after) is not int or not 0 <= after < len(self.position):
            raise BadRowError("bad after", _bad_after(after, len(self.position)))
        parent = self.position[after]
        if parent < 0:
            self.num_orphans += 1
            return -1, 0
        if arrival_ns < self.arrival_ns[parent]:
            raise BadRowError(
                "arrival_s before that of the row it follows",
                f"arrival_s is earlier than that of row {after}, which it follows",
            )
        return parent, delay_ns


def _orphans_note(num_orphans: int) -> str:
    if num_orphans == 1:
        return "1 turn starts on its own: the row that it follows was skipped"
    return (
        f"{num_orphans:,} turns start on their own: the row that they follow was skipped"
    )


def _bad_after(after: object, num_rows: int) -> str:
    """What is wrong with the reference of row ``num_rows``."""
    if not num_rows:
        return f"after is {shown(after)}, but the first request cannot follow another"
    return (
        f"after is {shown(after)}, must be the number of an earlier row, from 0 to"
        f" {num_rows - 1}"
    )


def _header(source: TraceSource, first: tuple[int, bytes]) -> dict[str, Any]:
    line, text = first
    try:
        header = parse_object(text)
    except BadRowError as bad:
        raise TraceError(source.path, bad.problem, _HEADER_REMEDY, line=line) from bad
    for problem, remedy in _header_problems(header):
        raise TraceError(source.path, problem, remedy, line=line)
    return header


def _header_problems(header: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a header, and what to do about it."""
    if "blockbench" not in header:
        yield "the header is missing", _HEADER_REMEDY
    version = header.get("blockbench")
    if type(version) is not int or version < 1:
        yield f"format version {shown(version)}, must be {FORMAT_VERSION}", _HEADER_REMEDY
    elif version > FORMAT_VERSION:
        told = f"format version {version}, this blockbench reads {FORMAT_VERSION}"
        yield told, "update blockbench"
    unknown = ", ".join(sorted(header.keys() - _HEADER_KEYS))
    if unknown:
        yield f"the header has the unknown key {unknown}", "take it out, or into the note"
    for name, kind, what in _HEADER_FIELDS:
        value = header.get(name)
        if value is not None and not isinstance(value, kind):
            told = f"{name} is {shown(value)}, must be {what}"
            yield told, f"correct the header, or leave {name} out"


def _checked_runs(name: str, value: object) -> list[Run]:
    if not isinstance(value, list) or not value:
        raise BadRowError(
            f"bad {name}",
            f"{name} is {shown(value)}, must be a list of [segment, tokens]",
        )
    return [_checked_run(name, run) for run in value]


def _checked_run(name: str, value: object) -> Run:
    if not isinstance(value, list) or len(value) != 2:
        raise BadRowError(
            f"bad {name}", f"{name} has {shown(value)}, must be [segment, tokens]"
        )
    segment, length = value
    if type(segment) is not int or not 0 <= segment < _MAX_SEGMENT:
        raise BadRowError(
            f"bad {name}",
            f"{name} has segment {shown(segment)}, must be a whole number from 0 to"
            f" {_MAX_SEGMENT - 1:,}",
        )
    return segment, checked_length(f"{name} tokens", length)


def _checked_priority(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise BadRowError(
            "bad priority",
            f"priority is {shown(value)}, must be a whole number of 32 bits",
        )
    return value


def _checked_extra_keys(row: dict[str, Any]) -> ExtraKeys:
    """What blocks must agree on besides content, named so that kinds never mix."""
    keys: list[int | str] = []
    for name in ("adapter", "salt"):
        value = row.get(name)
        if value is None:
            continue
        if type(value) not in (int, str) or value == "":
            raise BadRowError(
                f"bad {name}",
                f"{name} is {shown(value)}, must be a string that is not empty",
            )
        keys += [name, value]
    return tuple(keys)
