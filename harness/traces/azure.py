"""Azure's LLM inference traces: a CSV of arrival time and token counts.

Columns ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, read by name.

Source: github.com/Azure/AzurePublicDataset.
"""

import csv
import re
from array import array
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from harness.errors import TraceError
from harness.run_columns import RunColumns
from harness.traces.bad_row import (
    MAX_TIME_S,
    BadRowError,
    BadRows,
    checked_length,
    decoded,
    shown,
)
from harness.traces.reader import TraceColumns
from harness.traces.source import TraceSource

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_HEADER_REMEDY = (
    f"the first line must name {', '.join(_COLUMNS)}; leave --format out to have the"
    " format recognised"
)
# Seven digits of a second in 2023, six and an offset in 2024. Python keeps only six, so
# the fraction is read apart.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?"
)


class AzureReader:
    """Reads Azure traces; no two prompts share anything, because nothing says so."""

    name = "azure"
    first_line = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Whether the first line names two or more of the columns."""
        try:
            names = _cells(head[0])
        except BadRowError:
            return False
        return len(set(names) & set(_COLUMNS)) >= 2

    def read(self, source: TraceSource, bad_rows: BadRows) -> TraceColumns:
        """The rows of the file."""
        arrival, prompt, output = array("q"), array("i"), array("i")
        lines = source.lines()
        header = _header(source, next(lines))
        for line, text in lines:
            try:
                time_ns, context, generated = _row(text, header)
            except BadRowError as bad:
                bad_rows.reject(line, bad)
                continue
            arrival.append(time_ns)
            prompt.append(context)
            output.append(generated)
        return _columns(arrival, prompt, output)


def _columns(
    arrival: "array[int]", prompt: "array[int]", output: "array[int]"
) -> TraceColumns:
    """Each prompt and each output is a segment of its own."""
    rows = np.arange(len(arrival) + 1)
    return TraceColumns(
        arrival_ns=np.array(arrival, dtype=np.int64),
        prompts=RunColumns(rows, rows[:-1] * 2, np.array(prompt, dtype=np.int32)),
        outputs=RunColumns(rows, rows[:-1] * 2 + 1, np.array(output, dtype=np.int32)),
        has_sharing=False,
    )


def _header(source: TraceSource, first: tuple[int, bytes]) -> list[str]:
    line, text = first
    try:
        header = _cells(text)
    except BadRowError as bad:
        raise TraceError(source.path, bad.problem, _HEADER_REMEDY, line=line) from bad
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise TraceError(
            source.path,
            f"column {', '.join(missing)} is missing from {shown(', '.join(header))}",
            _HEADER_REMEDY,
            line=line,
        )
    return header


def _row(text: bytes, header: list[str]) -> tuple[int, int, int]:
    cells = _cells(text)
    if len(cells) != len(header):
        raise BadRowError(
            "wrong number of columns",
            f"{len(cells)} columns, the header has {len(header)}",
        )
    time, *lengths = (cells[header.index(name)] for name in _COLUMNS)
    context, generated = map(_length, _COLUMNS[1:], lengths)
    return _time_ns(time), context, generated


def _cells(text: bytes) -> list[str]:
    try:
        rows = list(csv.reader([decoded(text)], strict=True))
    except csv.Error as error:
        raise BadRowError("not valid CSV", f"not valid CSV: {error}") from error
    return [cell.strip() for cell in rows[0]]


def _length(name: str, cell: str) -> int:
    is_whole = re.fullmatch(r"\d{1,18}", cell, re.ASCII)
    return checked_length(name, int(cell) if is_whole else cell)


def _time_ns(cell: str) -> int:
    """Nanoseconds since 1970; a time without an offset is taken as UTC."""
    match = _TIME.fullmatch(cell)
    try:
        if match is None:
            raise ValueError
        seconds = datetime.fromisoformat(match[1] + (match[3] or "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise BadRowError(
            "bad TIMESTAMP",
            f"TIMESTAMP is {shown(cell)}, must be as 2023-05-02 09:30:00.1250000",
        ) from None
    if not 0 <= seconds <= MAX_TIME_S:
        raise BadRowError(
            "bad TIMESTAMP", f"TIMESTAMP is {shown(cell)}, must be from 1970 to 2255"
        )
    return int(seconds) * 1_000_000_000 + int((match[2] or "").ljust(9, "0"))
