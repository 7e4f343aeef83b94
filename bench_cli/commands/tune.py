"""``blockbench tune``: from a trace to the line that starts vLLM."""

import hashlib
import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli import options
from bench_cli.document import check_document, deliver
from bench_cli.engine_flags import EngineFlags
from bench_cli.exit_code import ExitCode
from bench_cli.flags import Without, takes_flags
from bench_cli.interrupt import stopped_by_signals
from bench_cli.workload import SourceFlags, WorkloadFlags
from harness.tuning.choice import Routing

if TYPE_CHECKING:
    import optuna

    from bench_cli.tune_question import Asked
    from harness.tuning.search import Search
    from harness.tuning.tuner import Answer

PRELOAD = ("bench_cli.main", "harness.tuning.trial", "numpy.ma")
"""Modules that every trial needs."""


class ObjectiveChoice(StrEnum):
    """What is wanted most."""

    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    TPOT = "tpot"


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
    slo: options.SloText = None,
    objective: Annotated[
        ObjectiveChoice | None,
        typer.Option("--objective", help="goodput with --slo, else ttft or throughput."),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="KNOB=VALUES,…",
            help="Values to choose from: block_size=16|32, max_num_seqs=64..1024.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Of the search: 60s, 5min or 40trials.")
    ] = "40trials",
    current: Annotated[
        str | None,
        typer.Option(
            "--current", metavar="COMMAND", help='Present command: "vllm serve …".'
        ),
    ] = None,
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, help="Share the load among so many.")
    ] = 1,
    routing: Annotated[
        Routing, typer.Option("--routing", help="How replicas share it.")
    ] = Routing.ROUND_ROBIN,
    shared_gpu: Annotated[
        bool, typer.Option("--shared-gpu", help="Take as little GPU memory as does.")
    ] = False,
    host_memory_gib: options.HostMemoryGib = None,
    search_seed: Annotated[
        int, typer.Option("--search-seed", min=0, help="Of what the search suggests.")
    ] = 0,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="Optuna storage to go on from."),
    ] = None,
    verify: Annotated[
        VerifyChoice | None,
        typer.Option("--verify", help="Run the winner on a real engine."),
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
    from bench_cli.quantity import parse_slo
    from harness.errors import UsageError
    from harness.parallel import ReplayPool, default_jobs

    started = time.perf_counter()
    if verify is not None:
        raise UsageError(
            f"--verify {verify.value} is not there yet; this version has no real engine"
        )
    timing.refuse_contradictions()
    limits = None if slo is None else parse_slo(slo)
    if output is not None:
        check_document(output, kind="tune")
    num_jobs = jobs or default_jobs()
    with (
        ReplayPool(num_jobs, preload=PRELOAD) as pool,
        stopped_by_signals("stopping; the best so far follows, if any") as is_stopped,
    ):
        from bench_cli.tune_document import check_yaml, tune_document
        from bench_cli.tune_question import TuneFlags, ask
        from bench_cli.tune_space import WantedSpace
        from harness.tuning.fact import facts_of
        from harness.tuning.objective import ObjectiveName

        asked = ask(
            trace,
            flags,
            source,
            timing,
            TuneFlags(
                slo=limits,
                objective=None if objective is None else ObjectiveName(objective.value),
                wanted_space=WantedSpace(
                    text=space, is_shared=shared_gpu, host_memory_gib=host_memory_gib
                ),
                budget=budget,
                current=current,
                num_replicas=replicas,
                routing=routing,
            ),
            pool,
        )
        if yaml is not None:
            check_yaml(asked, yaml)
        asked.engine.is_stopped = is_stopped
        answer = search(asked, search_seed, storage)
        facts = facts_of(answer, asked.engine)
        was_stopped = is_stopped()
    document = tune_document(
        asked, answer, facts, num_jobs, time.perf_counter() - started, yaml
    )
    report(document, asked, answer, as_json=as_json, output=output, yaml=yaml)
    if code := exit_code(answer, was_stopped=was_stopped):
        raise typer.Exit(code)


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


def search(asked: "Asked", seed: int, storage: str | None) -> "Answer":
    """Search with a bar for who watches: trials done, and the best so far."""
    from bench_cli.progress import search_bar
    from harness.tuning.tuner import tune as answer

    study = make_study(asked, seed, storage)
    limit = asked.question.budget.num_trials
    with search_bar(limit) as bar:
        return answer(
            asked.question, asked.engine, study, on_trial=lambda s: bar(*best_of(s))
        )


def best_of(found: "Search") -> tuple[int, str]:
    """Settings tried, and the best of them in a few words."""
    from bench_cli.tune_words import shown

    best = found.best
    if best is None:
        return len(found.trials), ""
    changes = [f"{n} {shown(v)}" for n, v in best[0].items() if v != found.start[n]]
    return len(
        found.trials
    ), f"{best[1].loss:.4g} with {', '.join(changes) or 'no change'}"


def make_study(asked: "Asked", seed: int, storage: str | None) -> "optuna.Study":
    """What remembers trials and suggests others; a storage is gone on from."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, constant_liar=True, n_startup_trials=8
    )
    name = study_name(asked)
    if storage is None:
        return optuna.create_study(sampler=sampler, study_name=name)
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return optuna.create_study(
            sampler=sampler, storage=storage, study_name=name, load_if_exists=True
        )
    except (
        SQLAlchemyError,
        optuna.exceptions.OptunaError,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        from harness.errors import UsageError

        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--storage cannot be used: {reason}; give one as sqlite:///tune.db"
        ) from error


def study_name(asked: "Asked") -> str:
    """A name that only the same question has, so that no other one's losses mix in."""
    engine, space = asked.engine, asked.question.space
    info = engine.make_info(engine.workload, asked.start, engine.objective)
    question = [
        info.to_dict(),
        dict(engine.fixed),
        dict(space.choices),
        engine.objective.name.value,
    ]
    text = json.dumps(question, sort_keys=True, default=str)
    return f"blockbench-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def report(
    document: dict[str, Any],
    asked: "Asked",
    answer: "Answer",
    *,
    as_json: bool,
    output: Path | None,
    yaml: Path | None,
) -> None:
    """Print the answer, then write what was asked for: a full disk loses no answer.

    Raises:
        UsageError: A file cannot be written.
    """
    from bench_cli.tune_document import write_yaml
    from bench_cli.tune_screen import print_tuning

    if as_json:
        deliver(document, as_json=True, output=None)
    else:
        print_tuning(document, asked, answer)
    deliver(document, as_json=False, output=output)
    if yaml is not None:
        write_yaml(yaml, document["yaml"])
