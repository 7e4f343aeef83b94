"""``blockbench tune``: from a trace to the line that starts vLLM."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli import options
from bench_cli.document import check_document, deliver
from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.flags import Without, takes_flags
from bench_cli.interrupt import stopped_by_signals
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.tune_flags import TuneFlags
from bench_cli.workload import SourceFlags, WorkloadFlags

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from bench_cli.tune_verify_plan import Verification, VerifyFlags
    from harness.tuning.question import Answer
    from results.goodput import Slo

PRELOAD = ("bench_cli.main", "harness.tuning.trial", "numpy.ma")
"""Modules that every trial needs."""


class VerifyChoice(StrEnum):
    """A real engine that the winner is run on."""

    VLLM = "vllm"
    SERVER = "server"


@takes_flags
def tune(
    trace: options.Trace,
    *,
    flags: Annotated[EngineFlags, Without("engine")],
    source: SourceFlags,
    timing: WorkloadFlags,
    measured: Annotated[MeasuredFlags, Without("beside_sim")],
    wishes: TuneFlags,
    search_seed: Annotated[
        int, typer.Option("--search-seed", min=0, help="Of what the search suggests.")
    ] = 0,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="Optuna storage to go on from."),
    ] = None,
    verify: Annotated[
        VerifyChoice | None,
        typer.Option("--verify", help="Measure the advice: on vLLM, or on a server."),
    ] = None,
    verify_requests: Annotated[
        int | None,
        typer.Option(
            "--verify-requests", min=1, help="So many a run; about 2 min of the trace."
        ),
    ] = None,
    jobs: options.Jobs = None,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    yaml: Annotated[
        Path | None,
        typer.Option(
            "--yaml", parser=options.path_given, metavar="FILE", help="For --config."
        ),
    ] = None,
) -> None:
    """Find the settings of vLLM that serve TRACE best, and say why."""
    from harness.parallel import ReplayPool, default_jobs

    started = time.perf_counter()
    timing.refuse_contradictions()
    limits = wishes.limits()
    if output is not None:
        check_document(output, kind="tune")
    wanted = wanted_verification(
        verify, verify_requests, measured, flags.vllm_version, timing, limits
    )
    num_jobs = jobs or default_jobs()
    with (
        ReplayPool(num_jobs, preload=PRELOAD) as pool,
        stopped_by_signals("stopping; the best so far follows, if any") as is_stopped,
    ):
        from bench_cli.tune_document import tune_document
        from bench_cli.tune_line import check_yaml
        from bench_cli.tune_question import ask
        from bench_cli.tune_search import search
        from harness.tuning.fact import facts_of

        asked = ask(trace, flags, source, timing, wishes, pool)
        if yaml is not None:
            check_yaml(asked, yaml)
        asked.engine.is_stopped = is_stopped
        answer = search(asked, search_seed, storage)
        facts = facts_of(answer, asked.engine.under(answer.load))
        was_stopped = is_stopped()
        verification = None if wanted is None else planned(asked, answer, wanted)
    document = tune_document(
        asked, answer, facts, num_jobs, time.perf_counter() - started, yaml
    )
    report(
        document, asked, answer, verification, as_json=as_json, output=output, yaml=yaml
    )
    code = exit_code(answer, was_stopped=was_stopped)
    if not was_stopped and asked.engine.tally.failure is not None:
        raise asked.engine.tally.failure
    if not code and verification is not None:
        code = verification.code
    if code:
        raise typer.Exit(code)


def wanted_verification(
    choice: VerifyChoice | None,
    num_requests: int | None,
    measured: MeasuredFlags,
    vllm_version: str | None,
    timing: WorkloadFlags,
    slo: "Slo | None",
) -> "VerifyFlags | None":
    """What is to be verified, on an engine that seems to be there; None for nothing.

    Raises:
        UsageError: Flags that do not go together, or a Python without vLLM.
        EngineError: The server does not answer.
    """
    from harness.errors import UsageError

    engine = Engine.SIM if choice is None else Engine(choice.value)
    measured.refuse_others([engine], "--verify")
    if choice is None:
        if num_requests is not None:
            raise UsageError(
                "--verify-requests says how many requests a real engine gets; add"
                " --verify vllm, or leave it out"
            )
        return None
    from bench_cli.tune_verify_plan import VerifyFlags, check_engine

    wanted = VerifyFlags(
        engine=engine,
        measured=measured,
        num_requests=num_requests,
        vllm_version=vllm_version,
        timing=timing,
        slo=slo,
    )
    check_engine(wanted)
    return wanted


def planned(asked: "Asked", answer: "Answer", wanted: "VerifyFlags") -> "Verification":
    """What is to be measured, its simulated side done."""
    from bench_cli.tune_verify_plan import plan

    return plan(asked, answer, wanted)


def exit_code(answer: "Answer", *, was_stopped: bool) -> ExitCode:
    """Fine as long as some request finished with what is advised."""
    if was_stopped:
        return ExitCode.INTERRUPTED
    run = answer.advice.trial.run
    assert run is not None, "what is advised was replayed to its end"
    if not run.summary["counts"]["finished"]:
        typer.echo(
            "error: no request could finish with any setting that was tried; take a"
            " larger KV cache or shorter requests",
            err=True,
        )
        return ExitCode.IMPOSSIBLE
    return ExitCode.FINE


def report(
    document: dict[str, Any],
    asked: "Asked",
    answer: "Answer",
    verification: "Verification | None",
    *,
    as_json: bool,
    output: Path | None,
    yaml: Path | None,
) -> None:
    """Print the answer, then write what was asked for: a full disk loses no answer.

    What is to be verified is measured once the advice is there to be read.

    Raises:
        UsageError: A file cannot be written.
    """
    from bench_cli.tune_line import write_yaml
    from bench_cli.tune_screen import print_tuning

    if not as_json:
        print_tuning(document, asked, answer)
    if verification is not None:
        verify_and_print(document, verification, as_json=as_json)
    deliver(document, as_json=as_json, output=None)
    deliver(document, as_json=False, output=output)
    if yaml is not None:
        write_yaml(yaml, document["yaml"])


def verify_and_print(
    document: dict[str, Any], verification: "Verification", *, as_json: bool
) -> None:
    """Measure what was planned, and add it to the document."""
    from bench_cli.tune_verify import run_on_engine
    from bench_cli.tune_verify_document import verification_document
    from bench_cli.tune_verify_screen import print_verification

    run_on_engine(verification)
    document["verification"] = found = verification_document(verification)
    if not as_json:
        print_verification(found)
