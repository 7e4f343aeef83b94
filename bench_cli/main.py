"""Entry point: the app, and how errors reach the user."""

import os
import re
import sys
from typing import Annotated

import typer

from bench_cli.commands.calibrate import calibrate
from bench_cli.commands.capacity import capacity
from bench_cli.commands.compare import compare
from bench_cli.commands.doctor import doctor
from bench_cli.commands.import_ import import_
from bench_cli.commands.list import list_
from bench_cli.commands.observe import observe
from bench_cli.commands.profiles import profiles_app
from bench_cli.commands.run import run
from bench_cli.commands.show import show
from bench_cli.commands.trace import trace_app
from bench_cli.commands.tune import tune
from bench_cli.commands.verify import verify
from bench_cli.exit_code import ExitCode, exit_code_of
from bench_cli.grouped_help import GroupedCommand
from bench_cli.streams import OutputError, flush_stdout, prepare_streams, printable

FLAGS_TO_COME = ("--pipeline-parallel-size", "--record-events", "--timeline")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # the rich help cuts long flags short
)
app.command(cls=GroupedCommand)(run)
app.command(cls=GroupedCommand)(compare)
app.command(cls=GroupedCommand)(tune)
app.command(cls=GroupedCommand)(capacity)
app.command(cls=GroupedCommand)(calibrate)
app.command(cls=GroupedCommand)(observe)
app.command()(show)
app.command("list")(list_)
app.command("import")(import_)
app.command(cls=GroupedCommand)(verify)
app.command()(doctor)
app.add_typer(trace_app, name="trace")
app.add_typer(profiles_app, name="profiles")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"blockbench {version('blockbench')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """See how vLLM's block manager will treat a trace of your traffic."""


def main() -> None:
    """Run the app; an error that nobody expected keeps its traceback."""
    code: int = ExitCode.FINE
    try:
        prepare_streams()
        check_folder()
        code = app(standalone_mode=False) or ExitCode.FINE
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except SystemExit as exit_:
        code = _code_of_exit(exit_)
    except Exception as error:
        code = _report(error)
    raise SystemExit(_flush(code))


def check_folder() -> None:
    """Refuse to work in a folder that is gone: no path means anything there.

    Raises:
        UsageError: It was removed.
    """
    from harness.errors import UsageError

    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the folder that you are in was removed; cd into one that is there"
        ) from error


def _report(error: Exception) -> int:
    """Print one line for an expected error; raise any other again."""
    if isinstance(error, BrokenPipeError):
        return ExitCode.CLOSED_PIPE
    # Python turns a Ctrl-C that comes while it makes a class into a RuntimeError.
    if isinstance(error, typer.Abort) or isinstance(error.__cause__, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if hasattr(error, "format_message") and hasattr(error, "show"):
        return _report_usage(error)
    code = exit_code_of(error)
    if code is None:
        raise error
    _print_error(str(error))
    return code


def _report_usage(error: Exception) -> int:
    # The command line's own errors; their class is not public in every Typer.
    if type(error).__name__.startswith("NoArgsIsHelp"):  # the message is the help
        error.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    message = error.format_message()  # type: ignore[attr-defined]
    _print_error(_not_there_yet(message) or message)
    context = getattr(error, "ctx", None)
    if context is not None:
        print(f"  {context.command_path} --help lists the options", file=sys.stderr)
    return ExitCode.USAGE


def _not_there_yet(message: str) -> str | None:
    """Words for a flag of vLLM's, or of ours, that this version does not have yet."""
    named = re.search(r"[Nn]o such option: (--[\w-]+)", message)
    if named is None or named[1] not in FLAGS_TO_COME:
        return None
    return f"{named[1]} is not there yet in this version; leave it out"


def _print_error(message: str) -> None:
    line = " ".join(message.replace("Value error, ", "").split())
    print(f"error: {printable(line)}", file=sys.stderr)


def _code_of_exit(exit_: SystemExit) -> int:
    # Typer turns a closed pipe into exit code 1, which is ours for the unexpected.
    if isinstance(exit_.__context__, BrokenPipeError):
        return ExitCode.CLOSED_PIPE
    return exit_.code if isinstance(exit_.code, int) else ExitCode.UNEXPECTED


def _flush(code: int) -> int:
    """The exit code once everything is printed, or is known not to be."""
    try:
        flush_stdout()
    except BrokenPipeError:
        return code or ExitCode.CLOSED_PIPE
    except OutputError as error:
        return code or _report(error)
    return code
