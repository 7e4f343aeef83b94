"""CSV files of measurements: cells by the names that people give their columns."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TraceError

Names = Mapping[str, Sequence[str]]
"""By what a column means, the names that it may have."""

ON_OFF = {
    "on": True, "true": True, "1": True, "yes": True,
    "off": False, "false": False, "0": False, "no": False,
}  # fmt: skip

ONE_ENGINE = ("model", "gpu", "tp", "tensor_parallel_size", "vllm_version")
"""Columns that no flag is read from, but whose rows have to be of one engine."""

LEAST_MS = 0.001
MOST_MS = 86_400_000.0
"""Times beyond these nobody measured of a step or of a request."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of a file, read by meaning.

    Attributes:
        path: Of the file, as it was given.
        line: Where the row ends in it, from 1.
        cells: By meaning; those that are empty are left out.
        columns: What the file's columns mean.
        unread: Names of columns that mean nothing here, as those with a slip.
    """

    path: Path
    line: int
    cells: Mapping[str, str]
    columns: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Where it stands, for people."""
        return f"{self.path}:{self.line}"

    def error(self, problem: str, remedy: str) -> TraceError:
        """The error of a row that cannot be used."""
        return TraceError(self.path, problem, remedy, line=self.line)

    def missing(self, problem: str, remedy: str, *names: str) -> TraceError:
        """The error of a row without figures; no column may mean any of them."""
        if self.unread and self.columns.isdisjoint(names):
            remedy += f" (columns that are not read: {', '.join(self.unread)})"
        return self.error(problem, remedy)

    def seconds(self, name: str) -> float | None:
        """A time that is given in milliseconds; None where the cell is empty.

        Raises:
            TraceError: It is none that a server takes.
        """
        value = self.number(name)
        if value is not None and not LEAST_MS <= value <= MOST_MS:
            raise self.error(
                f"{name} is {self.cells[name]!r}",
                f"give milliseconds, from {LEAST_MS:g} to {MOST_MS:,.0f} (a day)",
            )
        return None if value is None else value / 1e3

    def number(self, name: str, *, least: float = 0.0) -> float | None:
        """A number above ``least``; None where the cell is empty.

        Raises:
            TraceError: It is none.
        """
        text = self.cells.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least < value < math.inf:
            raise self.error(
                f"{name} is {text!r}", f"give a number above {least:g}, or leave it empty"
            )
        return value

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number from ``least``; ``8.0`` is one. None where the cell is empty.

        Raises:
            TraceError: It is none.
        """
        value = self.number(name, least=least - 1)
        if value is not None and value != int(value):
            raise self.error(f"{name} is {value:g}", "give a whole number")
        return None if value is None else int(value)

    def needed(self, name: str, *, least: int = 1) -> int:
        """A whole number that every row must have.

        Raises:
            TraceError: The cell is empty, or holds none.
        """
        value = self.whole(name, least=least)
        if value is None:
            raise self.missing(f"{name} is missing", "fill it in", name)
        return value

    def is_on(self, name: str) -> bool | None:
        """A switch; None where the cell is empty.

        Raises:
            TraceError: It is neither on nor off.
        """
        text = self.cells.get(name)
        if text is None:
            return None
        if text.lower() not in ON_OFF:
            raise self.error(f"{name} is {text!r}", "give on or off")
        return ON_OFF[text.lower()]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file.

    Attributes:
        header: Names of its columns.
        rows: Each with the line on which it ends.
    """

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def has(self, names: Sequence[str]) -> bool:
        """Whether a column has one of these names."""
        return not set(names).isdisjoint(self.header)

    def ignored(self, names: Names) -> list[str]:
        """Columns that mean nothing here."""
        known = {alias for aliases in names.values() for alias in aliases}
        return [name for name in self.header if name not in known]

    def by_meaning(self, names: Names) -> list[MeasuredRow]:
        """The rows, by what their columns mean.

        Raises:
            TraceError: Two columns that mean the same say different things, or rows are
                of several engines.
        """
        self._refuse_several_engines()
        return [self._by_meaning(line, cells, names) for line, cells in self.rows]

    def _by_meaning(self, line: int, cells: tuple[str, ...], names: Names) -> MeasuredRow:
        given = {n: c for n, c in zip(self.header, cells, strict=True) if c}
        found: dict[str, str] = {}
        for name, aliases in names.items():
            values = {alias: given[alias] for alias in aliases if alias in given}
            if len(set(values.values())) > 1:
                said = " and ".join(f"{alias} {value}" for alias, value in values.items())
                raise TraceError(
                    self.path,
                    f"{said} are the same figure",
                    "keep one of these columns",
                    line=line,
                )
            if values:
                found[name] = next(iter(values.values()))
        meanings = {name for name, aliases in names.items() if self.has(aliases)}
        unread = tuple(n for n in self.ignored(names) if n not in ONE_ENGINE)
        return MeasuredRow(self.path, line, found, frozenset(meanings), unread)

    def _refuse_several_engines(self) -> None:
        for name in set(ONE_ENGINE) & set(self.header):
            place = self.header.index(name)
            found = list(dict.fromkeys(cells[place] for _, cells in self.rows))
            if len(found) > 1:
                raise TraceError(
                    self.path,
                    f"rows are of {name} {found[0]!r} and {found[1]!r}",
                    "a calibration is of one model, GPU and engine: keep the rows of one",
                )


def read_table(path: Path, text: str) -> Table:
    """The rows of a CSV with a header.

    Raises:
        TraceError: It has no rows, a column twice, or a row of another width.
    """
    lines = csv.reader(text.splitlines(keepends=True), skipinitialspace=True)
    try:
        header = tuple(cell.strip() for cell in next(lines, []))
        _check_header(path, header)
        rows = []
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise TraceError(
                    path,
                    f"{len(cells)} cells, and the header names {len(header)} columns",
                    "correct the row",
                    line=lines.line_num,
                )
            rows.append((lines.line_num, tuple(cell.strip() for cell in cells)))
    except csv.Error as error:
        raise TraceError(
            path, f"no CSV: {error}", "correct the row", line=lines.line_num
        ) from error
    if not rows:
        raise TraceError(path, "no rows below the header", "add what was measured")
    return Table(path, header, tuple(rows))


def _check_header(path: Path, header: tuple[str, ...]) -> None:
    if not any(header):
        raise TraceError(path, "the file is empty", "give one with a header and rows")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise TraceError(
            path, f"{twice[0]} is the name of two columns", "keep one of them", line=1
        )
