"""A run that has ended: saved, printed, and turned into an exit code."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from bench_cli.exit_code import ExitCode
from bench_cli.run_report import ReportFlags, print_report

if TYPE_CHECKING:
    from results.record import RequestRecord, StepRecord
    from results.rows import Rows
    from results.run_info import Outcome, RunInfo
    from results.store import RunStore


class EndedRun(Protocol):
    """What a run leaves behind, whatever ran it."""

    @property
    def requests(self) -> "Rows[RequestRecord]":
        """One record a request."""

    @property
    def steps(self) -> "Rows[StepRecord]":
        """Records of steps, in time order."""

    @property
    def outcome(self) -> "Outcome":
        """How it ended."""

    @property
    def wall_s(self) -> float:
        """Seconds it took."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that lies in its folder, and the summary of it."""

    folder: Path
    document: dict[str, Any]


def save_and_print(
    store: "RunStore", info: "RunInfo", result: EndedRun, report: ReportFlags | None
) -> SavedRun:
    """Save the run and print it; one that could not be saved is printed all the same.

    Without a ``report`` only its folder is named, on stderr.
    """
    from results.columns import Columns
    from results.errors import ResultsError
    from results.record import RequestRecord, StepRecord
    from results.summary import summarize

    info = replace(info, outcome=result.outcome, wall_s=result.wall_s)
    unseen = info.unmeasured_in("requests"), info.unmeasured_in("steps")
    requests = Columns.of(RequestRecord, result.requests, unseen[0])
    steps = Columns.of(StepRecord, result.steps, unseen[1])
    try:
        document = summarize(info, requests, steps)
    except Exception:  # our own bug must not cost the rows
        store.save(info, result.requests, result.steps, None)
        raise
    try:
        folder = store.save(info, result.requests, result.steps, document)
    except ResultsError:
        print_report(document, info, steps, report or ReportFlags())
        raise
    if report is None:
        typer.echo(f"saved {folder}", err=True)
    else:
        print_report(document, info, steps, report, said=f"saved {folder}")
    return SavedRun(folder, document)


def exit_code_of_run(result: EndedRun) -> ExitCode:
    """Fine as long as some request finished; findings change nothing.

    A real engine that failed is a failure, whatever it had got done.
    """
    from results.record import RequestStatus
    from results.run_info import MEASURED_KINDS, Ending

    if result.outcome.ending is Ending.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if result.outcome.kind in MEASURED_KINDS:
        return ExitCode.ENGINE_FAILED
    if not any(r.status is RequestStatus.FINISHED for r in result.requests):
        typer.echo(
            "error: no request could finish; the findings say why"
            " (a larger KV cache or shorter requests)",
            err=True,
        )
        return ExitCode.IMPOSSIBLE
    return ExitCode.FINE
