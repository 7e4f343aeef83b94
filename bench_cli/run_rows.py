"""Rows of requests and steps, for people and for programs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from bench_cli.console import Screen
from bench_cli.quantity import format_duration
from bench_cli.tables import TableStyle, render_table
from results.statistics import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

ROWS_ON_SCREEN = 30
LISTS = ("gap_ns", "gap_count")
"""Columns of lists, which a table has no room for; JSON has them."""

Row = dict[str, Any]


def json_rows(frame: "pd.DataFrame") -> list[Row]:
    """Rows as strict JSON has them: None for what never came, whole numbers whole."""
    columns = {name: _plain(frame[name].tolist()) for name in frame.columns}
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def _plain(values: list[Any]) -> list[Any]:
    if any(isinstance(value, float) for value in values):  # pandas made room for NaN
        return [None if value != value else int(value) for value in values]
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def print_rows(
    kind: str,
    part: "pd.DataFrame",
    *,
    num_rows: int,
    table: TableStyle,
    limit: int | None,
) -> None:
    """Print rows as a table; the screen shows a few, and says how many there are.

    Args:
        kind: ``requests`` or ``steps``.
        part: The rows to print.
        num_rows: Rows of the run.
        table: Tables for programs have every column but ``LISTS``, and every row.
        limit: Rows that were asked for; None for as many as a screen holds.
    """
    if table is not TableStyle.RICH:
        rows = json_rows(part.drop(columns=list(LISTS), errors="ignore"))
        names = [name for name in part.columns if name not in LISTS]
        typer.echo(render_table(names, [[row[n] for n in names] for row in rows], table))
        return
    shown = part.head(ROWS_ON_SCREEN) if limit is None else part
    screen, fields = Screen(), FIELDS[kind]
    cells = [[field(row) for field in fields.values()] for row in json_rows(shown)]
    screen.table(list(fields), cells)
    if len(shown) < num_rows:
        screen.aside(
            f"{len(shown):,} of {num_rows:,} rows; --limit N shows more, --table csv all"
        )


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: _shown(row[name])


def _shown(value: int | None) -> str:
    """The number; ``n/a`` for what nobody measured."""
    return "n/a" if value is None else f"{value:,}"


def _time(end: str, start: str | None = None) -> Callable[[Row], str]:
    """From one time of the row, or from the beginning of the run, to another."""

    def span(row: Row) -> str:
        if row[end] is None or (start is not None and row[start] is None):
            return "n/a"
        begin = 0 if start is None else row[start]
        return format_duration((row[end] - begin) / NS_PER_S)

    return span


def _tpot(row: Row) -> str:
    num_later = (row["max_sample_tokens"] or 0) - 1
    if row["status"] != "finished" or num_later < 1 or row["first_token_ns"] is None:
        return "n/a"
    later_ns = row["finished_ns"] - row["first_token_ns"]
    return format_duration(later_ns / num_later / NS_PER_S)


def _status(row: Row) -> str:
    return f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])


def _pair(*names: str) -> Callable[[Row], str]:
    return lambda row: "/".join(_shown(row[name]) for name in names)


FIELDS: dict[str, dict[str, Callable[[Row], str]]] = {
    "requests": {
        "request": lambda row: f"#{row['request_id']}",
        "arrival": _time("arrival_ns"),
        "queue": _time("first_scheduled_ns", "queued_ns"),
        "TTFT": _time("first_token_ns", "arrival_ns"),
        "TPOT": _tpot,
        "E2E": _time("finished_ns", "arrival_ns"),
        "prompt": _number("num_prompt_tokens"),
        "cached": _number("num_cached_tokens"),
        "output": _number("num_output_tokens"),
        "n": _number("n"),
        "preempt": _number("num_preemptions"),
        "status": _status,
    },
    "steps": {
        "start": _time("start_ns"),
        "steps": _number("num_steps"),
        "first step": _time("first_step_ns"),
        "prefill": _number("num_prefill_tokens"),
        "decodes": _number("num_decode_seqs"),
        "run/wait/swap": _pair("num_running", "num_waiting", "num_swapped"),
        "blocks": _number("num_used_blocks_end"),
        "idle": _number("num_cached_blocks_end"),
        "preempt": _pair("num_preempted_recompute", "num_preempted_swap"),
        "in/out": _pair("num_swap_in_blocks", "num_swap_out_blocks"),
        "copy": _number("num_copy_on_write"),
        "evict": _number("num_evictions"),
    },
}
"""Columns on the screen, by the kind of row."""
