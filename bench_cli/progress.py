"""A progress bar on stderr, while somebody watches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.parallel import Progress

OnProgress = Callable[[int, int], None]
OnEachProgress = Callable[["Sequence[Progress]"], None]


@contextmanager
def progress_bar(label: str) -> Iterator[OnProgress | None]:
    """A function to call with (done, total); None when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


@contextmanager
def progress_bars(labels: Sequence[str]) -> Iterator[OnEachProgress | None]:
    """A function to call with how far each task is; None when nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks = [bars.add_task(label, total=None) for label in labels]

        def show(progress: "Sequence[Progress]") -> None:
            for task, each in zip(tasks, progress, strict=True):
                if each.total:
                    bars.update(task, completed=each.done, total=each.total)

        yield show


@contextmanager
def search_bar(limit: int | None) -> Iterator[Callable[[int, str], None]]:
    """A function to call with trials done and the best so far, for who watches."""
    if not sys.stderr.isatty():
        yield lambda done, best: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("searching", total=limit)

        def show(done: int, best: str) -> None:
            bars.update(task, completed=done, description=f"searching; best {best}")

        yield show
