"""Curves in panels, drawn by matplotlib into a file; the same figures, the same bytes."""

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_cli.output_file import write_whole
from bench_cli.streams import printable
from harness.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

_INCHES = (11.0, 5.2)
_DOTS_PER_INCH = 150
_CAPTION_WIDTH = 150
_MOST_TICKS = 10
_COLOURS = ("#20639b", "#2a9d8f", "#e09f3e", "#c8553d", "#6d597a")
_STYLE: Any = {
    "svg.hashsalt": "blockbench",  # ids in the file are random without
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a model's name may have dollars
    "font.size": 10.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.h_pad": 0.1,  # inches
    "figure.constrained_layout.w_pad": 0.1,
}
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""What must not go into a file if it is to be the same tomorrow."""


class Curve(NamedTuple):
    """Points joined by a line; ``label`` is empty where it needs no name."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


class Panel(NamedTuple):
    """Curves over common axes, both logarithmic; x counts in powers of two."""

    title: str
    x_label: str
    y_label: str
    legend: str
    curves: Sequence[Curve]


def check_plot(path: Path, *, force: bool) -> None:
    """Accept a file that can be drawn into, before any work is done.

    Raises:
        UsageError: Its name, its folder, what is there already, or matplotlib missing.
    """
    try:
        _check_file(path, force=force)
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    _check_matplotlib()


def save_plot(path: Path, title: str, panels: Sequence[Panel], caption: str) -> None:
    """Draw the panels side by side, whole or not at all.

    Raises:
        UsageError: The file cannot be written.
    """
    with _our_style():
        data = _drawn(path.suffix.lower(), title, panels, caption)
    try:
        write_whole(path, data)
    except OSError as error:
        raise _cannot_be_written(path, error) from error


def _check_file(path: Path, *, force: bool) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--plot {path} does not say what to draw: it must end in one of"
            f" {', '.join(FORMATS)}"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"{path.parent}, where --plot is to draw, is no folder; make it, or choose"
            " another"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file with --plot")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; choose another file or add --force")


def _check_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be
    except ImportError as error:
        raise UsageError(
            f"--plot draws with matplotlib, which cannot be imported here ({error});"
            ' pip install "blockbench[plot]"'
        ) from error


def _cannot_be_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written: {error.strerror}; choose another file with --plot"
    )


@contextmanager
def _our_style() -> Iterator[None]:
    """Draw as we do, whatever the user's matplotlibrc says, and warn of no letter."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _drawn(suffix: str, title: str, panels: Sequence[Panel], caption: str) -> bytes:
    from matplotlib.figure import Figure

    title = printable(title)
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, fontweight="bold")
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(row, panels, strict=True):
        _draw(axes, panel)
    _put_below(figure, "\n".join(textwrap.wrap(printable(caption), _CAPTION_WIDTH)))
    metadata = {"Title": title, **_METADATA[suffix]}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix.removeprefix("."), metadata=metadata)
    return buffer.getvalue()


def _put_below(figure: "Figure", caption: str) -> None:
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#555555")


def _draw(axes: "Axes", panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for index, curve in enumerate(panel.curves):
        colour = _COLOURS[index % len(_COLOURS)]
        axes.plot(curve.xs, curve.ys, label=curve.label, color=colour, linewidth=1.8)
    if any(curve.label for curve in panel.curves):
        axes.legend(title=panel.legend, frameon=False)
    _write_numbers(axes.xaxis, base=2, steps=(1.0,))
    _write_numbers(axes.yaxis, base=10, steps=(1.0, 2.0, 5.0))


def _write_numbers(axis: "Axis", *, base: int, steps: Sequence[float]) -> None:
    """Ticks as numbers that people write, not as powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=base, subs=steps, numticks=_MOST_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
