"""``blockbench observe``: look at a running server's metrics, and send it nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli import options
from bench_cli.document import deliver
from bench_cli.exit_code import ExitCode
from bench_cli.interrupt import stopped_by_signals
from bench_cli.options import path_given
from bench_cli.server_key import api_key

if TYPE_CHECKING:
    from harness.vllm_engine.server.observation import Observation
    from harness.vllm_engine.server.options import ServerOptions


def observe(
    url: Annotated[
        str | None,
        typer.Option("--url", help="Where the server is, as http://localhost:8000."),
    ] = None,
    *,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to watch.")
    ] = "15m",
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Time between two looks.")
    ] = "1s",
    hang_after: Annotated[
        str,
        typer.Option(
            "--hang-after", metavar="TIME", help="Watching ends after so long unanswered."
        ),
    ] = "60s",
    seed: Annotated[
        int, typer.Option(min=0, help="For the lengths of the workload.")
    ] = 0,
    as_json: options.AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=path_given,
            metavar="FILE",
            help="Write a workload made from what was seen, for tune.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file that -o names.")
    ] = False,
) -> None:
    """Watch a server's metrics without sending it a request, and say what they teach."""
    from bench_cli.observe_screen import observation_document, print_observation
    from bench_cli.quantity import parse_duration
    from harness.traces.trace_file import check_target

    server = _options(url, every, hang_after)
    duration_s = parse_duration(duration)
    _check(duration_s, server.sample_period_s, output, force=force)
    if output is not None:
        check_target(output, force=force)
    seen = _watch(server, duration_s)
    document = observation_document(seen, server.url)
    deliver(document, as_json=as_json, output=None)
    if not as_json:
        print_observation(document)
    if output is not None:
        _write(output, seen, seed=seed, force=force)
    code = _exit_code(seen)
    if code:
        raise typer.Exit(code)


def _options(url: str | None, every: str, hang_after: str) -> "ServerOptions":
    from bench_cli.quantity import parse_duration
    from harness.errors import UsageError
    from harness.vllm_engine.server.options import ServerOptions

    if not url:
        raise UsageError("which server? add --url http://HOST:PORT")
    return ServerOptions(
        url=url,
        api_key=api_key(),
        sample_period_s=parse_duration(every),
        hang_after_s=parse_duration(hang_after),
    )


def _check(
    duration_s: float, period_s: float, output: Path | None, *, force: bool
) -> None:
    from harness.errors import UsageError

    if not 0.05 <= period_s <= 60:
        raise UsageError(f"--every is {period_s:g} s, must be from 0.05 s to 60 s")
    if duration_s < period_s:
        raise UsageError(
            f"--for is {duration_s:g} s, shorter than --every {period_s:g} s, so that"
            " there is nothing to compare; watch longer"
        )
    if force and output is None:
        raise UsageError("--force replaces the file that -o names; add -o FILE")


def _watch(server: "ServerOptions", duration_s: float) -> "Observation":
    from bench_cli.progress import progress_bar
    from harness.vllm_engine.server import observe as watching

    with (
        stopped_by_signals() as is_stopped,
        progress_bar(f"watching {server.url}") as show,
    ):

        def on_look(passed_s: float, whole_s: float) -> None:
            if show is not None:
                show(round(passed_s), round(whole_s))

        return watching.observe(
            server, duration_s=duration_s, on_look=on_look, is_stopped=is_stopped
        )


def _write(path: Path, seen: "Observation", **how: Any) -> None:
    from bench_cli.quantity import format_number_of
    from harness.vllm_engine.server.observed_workload import NO_SHARING, write_workload

    number = write_workload(path, seen, **how)
    typer.echo(
        f"wrote {path}: {format_number_of(number, 'request')}, {NO_SHARING}"
        f"; next: blockbench tune {path}",
        err=True,
    )


def _exit_code(seen: "Observation") -> ExitCode:
    if seen.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.ENGINE_FAILED if seen.fault_kind else ExitCode.FINE
