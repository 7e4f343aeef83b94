"""Where runs go, what the machine has, and what the terminal can show."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench_cli.probes.check import Check, Status

if TYPE_CHECKING:
    from bench_cli.console import Screen

# That of results.output, which cannot be imported where a stranger is named results.
RUNS_FOLDER = Path(".blockbench", "runs")
LITTLE_DISK_BYTES = 2**30
_ELSEWHERE = "run with -o FOLDER elsewhere"


def check_disk() -> Check:
    """A problem where no run could be saved; a note where there is little room."""
    folder = _nearest(RUNS_FOLDER)
    failure, free_bytes = _why_not_writable(folder), _free_bytes(folder)
    data = {
        "folder": str(RUNS_FOLDER),
        "is_writable": not failure,
        "free_bytes": free_bytes,
    }
    if failure:
        found = f"{RUNS_FOLDER} cannot be written: {failure}"
        advice = f"make it writable, or {_ELSEWHERE}"
        return Check("disk", found, advice, data, Status.PROBLEM)
    found = f"{RUNS_FOLDER} can be written, {_gib(free_bytes)} free"
    is_little = free_bytes is not None and free_bytes < LITTLE_DISK_BYTES
    return Check("disk", found, f"make room, or {_ELSEWHERE}" if is_little else "", data)


def _nearest(folder: Path) -> Path:
    """The folder, or else the nearest of its parents that is there."""
    there = [path for path in (folder, *folder.parents) if os.path.lexists(path)]
    return there[0] if there else Path()


def _why_not_writable(folder: Path) -> str:
    """Why nothing can be made in a folder; it is tried, and leaves nothing behind."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _gib(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 2**30:,.1f} GiB"


def check_machine() -> Check:
    """What there is of CPUs and memory; never a problem."""
    num_cpus, num_usable = os.cpu_count(), _num_usable_cpus()
    total, available = memory_bytes()
    cpus = f"{num_usable or 'unknown'} of {num_cpus or 'unknown'} CPUs usable"
    data = {
        "num_cpus": num_cpus,
        "num_usable_cpus": num_usable,
        "memory_bytes": total,
        "available_bytes": available,
    }
    found = f"{cpus} · memory {_gib(total)}, available {_gib(available)}"
    return Check("machine", found, data=data)


def _num_usable_cpus() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return os.cpu_count() if affinity is None else len(affinity(0))


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Memory in all, and what could be had now; None where the system does not say."""
    try:
        text = meminfo.read_text(encoding="ascii")
    except OSError:
        return _physical_memory_bytes(), None
    kib = dict(re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE))
    total, available = (kib.get(name) for name in ("MemTotal", "MemAvailable"))
    return total and int(total) * 1024, available and int(available) * 1024


def _physical_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system has these names
        return None


def check_terminal(screen: "Screen") -> Check:
    """A note where signs are shown in ASCII; never a problem."""
    console = screen.console
    has_colour, why = _colour(screen)
    is_terminal = sys.stdout.isatty()
    is_utf8 = console.encoding.lower().startswith("utf")
    advice = "set LC_ALL=C.UTF-8 or PYTHONUTF8=1, and no PYTHONIOENCODING"
    return Check(
        "terminal",
        f"stdout is {'a' if is_terminal else 'no'} terminal, {console.width} columns"
        f" · {console.encoding}{'' if is_utf8 else ', so signs are shown in ASCII'}"
        f" · colour {'on' if has_colour else 'off'}: {why}",
        "" if is_utf8 else advice,
        {
            "is_terminal": is_terminal,
            "width": console.width,
            "encoding": console.encoding,
            "has_colour": has_colour,
            "why_colour": why,
        },
    )


def _colour(screen: "Screen") -> tuple[bool, str]:
    console = screen.console
    can_colour = console.color_system is not None
    if not console.is_terminal:
        return False, "not a terminal"
    if can_colour and console.no_color:
        return False, "NO_COLOR is set"
    if can_colour and not sys.stdout.isatty():
        return True, "FORCE_COLOR or TTY_COMPATIBLE is set"
    return can_colour, f"TERM={os.environ.get('TERM', '')}"
