"""``blockbench doctor``: say what this machine has, and what blockbench misses."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.exit_code import ExitCode
from bench_cli.quantity import format_number_of

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from bench_cli.probes.check import Check

NARROW = 60
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def doctor(
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
) -> None:
    """Say what this machine has, and what blockbench misses."""
    from bench_cli.console import Screen  # rich waits until something is printed

    screen = Screen()
    checks = list(examine(screen))
    num_problems = sum(check.status == "problem" for check in checks)
    document = {
        "schema_version": 1,
        "kind": "doctor",
        "ok": num_problems == 0,
        "checks": [check.to_dict() for check in checks],
    }
    deliver(document, as_json=as_json, output=output)
    if not as_json:
        print_checks(screen, checks, num_problems)
    if num_problems:
        raise typer.Exit(ExitCode.IMPOSSIBLE)


def examine(screen: "Screen") -> Iterator["Check"]:
    """Every check, in the order in which they are shown."""
    from bench_cli.probes import accelerator, installation, machine
    from bench_cli.probes.distribution import find_installation

    found = find_installation()
    requirements = found.requirements if found else ()
    extras = {needed.extra: needed.minimum for needed in requirements}
    torch = accelerator.ask_torch()
    yield installation.check_python(found)
    yield installation.check_blockbench(found)
    yield installation.check_packages(found)
    yield installation.check_libraries([r for r in requirements if r.extra is None])
    yield accelerator.check_torch(torch)
    yield accelerator.check_cuda(torch)
    yield accelerator.check_vllm(extras.get("vllm", ""))
    yield machine.check_disk()
    yield machine.check_machine()
    yield machine.check_terminal(screen)


def print_checks(screen: "Screen", checks: Sequence["Check"], num_problems: int) -> None:
    """Print a line a check with its advice below, and what it comes to."""
    if screen.console.width < NARROW:
        _print_narrow(screen, checks)
    else:
        _print_wide(screen, checks)
    screen.line()
    if num_problems:
        problems = format_number_of(num_problems, "problem")
        screen.line(f"{problems} to solve before blockbench can be relied on", "bold")
    else:
        screen.line("nothing keeps blockbench from its work", "bold")


def _print_wide(screen: "Screen", checks: Sequence["Check"]) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for check in checks:
        grid.add_row(
            screen.text(check.status, STYLES[check.status]),
            screen.text(check.name, "bold"),
            screen.text(check.found),
        )
        if check.advice:
            grid.add_row("", "", screen.text(f"-> {check.advice}", "dim"))
    screen.console.print(grid)


def _print_narrow(screen: "Screen", checks: Sequence["Check"]) -> None:
    for check in checks:
        screen.line(f"{check.status} {check.name}", STYLES[check.status])
        screen.line(check.found)
        if check.advice:
            screen.aside(f"-> {check.advice}")
