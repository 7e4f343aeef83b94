"""Where people read: lines, facts and tables as wide as the terminal."""

import os
from collections.abc import Sequence
from itertools import accumulate

from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench_cli.streams import printable

WIDTH_WITHOUT_TERMINAL = 110
MIN_WIDTH = 20
"""Below, a terminal does not know its width."""

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.:-=+*#"
_BARS_IN_ASCII = dict(zip(_BARS, _ASCII_BARS, strict=True))
_ASCII = str.maketrans({"·": "|", "µ": "u", "×": "x", **_BARS_IN_ASCII})
_SPACE_BETWEEN_COLUMNS = 3
_FEWEST_COLUMNS = 1


class Screen:
    """Prints text that the stream's encoding can show, as wide as the terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False, markup=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = WIDTH_WITHOUT_TERMINAL
        self.console.width = max(self.console.width, MIN_WIDTH)

    def text(self, content: str, style: str = "") -> Text:
        """The content, with ASCII in place of our signs where UTF-8 is not spoken.

        What a terminal would obey, as in a trace's note, is shown as an escape.
        """
        content = printable(content)
        if not self.console.encoding.lower().startswith("utf"):
            content = content.translate(_ASCII)
        return Text(content, style=style)

    def line(self, content: str = "", style: str = "") -> None:
        """Print one line, wrapped where the terminal is narrow."""
        self._print(self.text(content, style))

    def command(self, content: str) -> None:
        """Print a command unbroken: a shell would run what stands behind a break."""
        self._print(self.text(content, "bold"), is_whole=True)

    def aside(self, content: str, style: str = "dim") -> None:
        """Print a paragraph that explains, indented."""
        self._print(Padding(self.text(content, style), (0, 0, 0, 2), expand=False))

    def spread(self, left: str, right: str) -> None:
        """Print one line with something at its right end."""
        grid = Table.grid(expand=True, padding=(0, 2))
        grid.add_column(overflow="fold")
        grid.add_column(overflow="fold", justify="right")
        grid.add_row(self.text(left), self.text(right, "bold"))
        self._print(grid)

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print labels and what belongs to them."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", min_width=10, overflow="fold")
        grid.add_column(overflow="fold")
        for label, content in rows:
            grid.add_row(self.text(label), self.text(content))
        self._print(grid)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table.

        Where the terminal is narrow, the last columns are left out and named below, and
        cells wrap when that is not enough.
        """
        shown = self._num_fitting(headers, rows)
        table = Table(box=SIMPLE, pad_edge=False)
        for header in headers[:shown]:
            table.add_column(self.text(header), overflow="fold")
        for row in rows:
            table.add_row(*(self.text(cell) for cell in row[:shown]))
        self._print(table)
        if shown < len(headers):
            self.aside(f"too narrow for {', '.join(headers[shown:])}; --json has them")

    def _num_fitting(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        ends = accumulate(width + _SPACE_BETWEEN_COLUMNS for width in widths)
        num_fitting = sum(end <= self.console.width for end in ends)
        return max(num_fitting, min(_FEWEST_COLUMNS, len(headers)))

    def _print(self, content: RenderableType, *, is_whole: bool = False) -> None:
        """Print to a terminal as it is, and elsewhere without spaces at line ends."""
        if self.console.is_terminal:
            self.console.print(content, soft_wrap=is_whole)
            return
        with self.console.capture() as capture:
            self.console.print(content, soft_wrap=is_whole)
        lines = capture.get().splitlines()
        self.console.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def sparkline(shares: Sequence[float]) -> str:
    """One bar a value, from empty at 0 to full at 1."""
    top = len(_BARS) - 1
    return "".join(_BARS[round(min(max(s, 0.0), 1.0) * top)] for s in shares)


def join(*parts: str) -> str:
    """The parts that are not empty, with a dot between."""
    return " · ".join(part for part in parts if part)
