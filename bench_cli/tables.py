"""Tables for people and for other programs."""

import csv
import io
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class TableStyle(StrEnum):
    """How a table is printed."""

    RICH = "rich"
    GITHUB = "github"
    CSV = "csv"
    LATEX = "latex"
    PLAIN = "plain"


Row = Sequence[str | int | float | None]


def render_table(headers: Sequence[str], rows: Sequence[Row], style: TableStyle) -> str:
    """The table as text, in any style but rich."""
    assert style is not TableStyle.RICH, "rich tables are printed, not rendered"
    if style is TableStyle.CSV:
        return _render_csv(headers, rows)
    from tabulate import tabulate

    text = [[_cell(value) for value in row] for row in rows]
    return tabulate(text, headers=headers, tablefmt=style.value, disable_numparse=True)


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _render_csv(headers: Sequence[str], rows: Sequence[Row]) -> str:
    # An empty cell is how CSV readers know that there is no value.
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([headers, *rows])
    return buffer.getvalue().rstrip("\n")


def flatten(document: dict[str, Any], prefix: str = "") -> list[Row]:
    """Rows ``(key, value)`` of nested dictionaries, dots joining keys; no lists."""
    rows: list[Row] = []
    for key, value in document.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            rows.append((f"{prefix}{key}", value))
    return rows
