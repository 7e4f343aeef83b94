"""A trace through a real engine: vLLM started here, or a server that runs."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.run_report import ReportFlags
from bench_cli.run_start import measured_run_info, run_name
from bench_cli.workload import WorkloadFlags

if TYPE_CHECKING:
    from bench_cli.run_end import SavedRun
    from harness.vllm_engine.measured_run import MeasuredRun
    from harness.vllm_engine.started import StartedVllm
    from harness.workload import Workload
    from results.goodput import Slo
    from results.measured import Measurement
    from results.run_info import RunInfo
    from results.store import RunStore

IsStopped = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be measured, and where it goes.

    Attributes:
        workload: What is sent.
        flags: The engine.
        measured: How it is reached and loaded.
        timing: When requests are sent.
        limits: What goodput is counted under.
        report: How a run is printed; None for not at all.
        output: Where it is saved; a new folder by default.
        force: Replace the run that is there.
        arm: What tells it from others of the same trace, for the folder's name.
    """

    workload: "Workload"
    flags: EngineFlags
    measured: MeasuredFlags
    timing: WorkloadFlags
    limits: "Slo | None"
    report: ReportFlags | None
    output: Path | None = None
    force: bool = False
    arm: str = ""

    def store(self, info: "RunInfo") -> "RunStore":
        """A folder for a run."""
        from results.store import RunStore

        name = run_name(self.workload.name) + (f"-{self.arm}" if self.arm else "")
        return RunStore(name, info, output=self.output, force=self.force)

    def check_output(self) -> None:
        """Refuse a folder that takes no run, before somebody waits for a start.

        Raises:
            RunFolderError: It takes none.
        """
        from results.output import check_output

        if self.output is not None:
            check_output(self.output, force=self.force)

    def info(self, facts: dict[str, Any], measurement: "Measurement") -> "RunInfo":
        """What is known of a run before its first request."""
        return measured_run_info(
            self.workload,
            self.flags,
            self.measured,
            self.timing,
            self.limits,
            facts,
            measurement,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that was measured and saved, and how the command would end with it."""

    saved: "SavedRun"
    code: ExitCode


def run_measured(order: Order) -> ExitCode:
    """Measure as often as was asked for, save and print; how the command ends."""
    from bench_cli.interrupt import stopped_by_signals

    with stopped_by_signals() as is_stopped:
        if (order.measured.repeats or 1) > 1:
            from bench_cli.repeats import measure_repeatedly

            return measure_repeatedly(order, is_stopped)
        return measure(order, is_stopped).code


def measure(order: Order, is_stopped: IsStopped) -> Measured:
    """Measure once, or simulate, save and print."""
    order.check_output()
    if order.flags.engine is Engine.SIM:
        from bench_cli.simulated_run import simulate

        return simulate(order, is_stopped)
    if order.flags.engine is Engine.SERVER:
        return measure_server(order, is_stopped)
    return measure_vllm(order, is_stopped)


def measure_vllm(order: Order, is_stopped: IsStopped) -> Measured:
    """Start vLLM, replay on it, save and print."""
    from harness.vllm_engine.started import EngineDidNotStartError, StartedVllm

    measured = order.measured
    spec = measured.spec(order.flags, order.timing.max_concurrency)
    patience, python = measured.patience(), measured.vllm_python
    with StartedVllm(spec, order.workload, python=python, patience=patience) as engine:
        run: MeasuredRun | None = None
        try:
            start(engine, order, is_stopped)
        except EngineDidNotStartError as error:
            run = engine.never_ran(error.outcome)
        info = order.info(engine.facts, engine.measurement())
        with order.store(info) as store:
            if run is None:
                run = replay_on(engine, order, store, is_stopped)
            with suppress(OSError):  # a run without its log is still a run
                shutil.copyfile(engine.log, store.folder / engine.log.name)
            return finish(order, store, info, run)


def start(engine: "StartedVllm", order: Order, is_stopped: IsStopped) -> None:
    """Start vLLM, with words for who waits."""
    from bench_cli.progress import progress_bar

    with progress_bar(f"starting vLLM with {order.flags.model}"):
        engine.start(is_stopped)


def replay_on(
    engine: "StartedVllm", order: Order, store: "RunStore", is_stopped: IsStopped
) -> "MeasuredRun":
    """Replay with a bar for who watches, and a journal for who pulls the plug."""
    from bench_cli.progress import progress_bar

    with progress_bar(f"replaying {order.workload.name}") as on_progress:
        return engine.replay(
            on_progress=on_progress, journal=store.journal, is_stopped=is_stopped
        )


def measure_server(order: Order, is_stopped: IsStopped) -> Measured:
    """Replay on a server, save and print."""
    from bench_cli.progress import progress_bar
    from harness.vllm_engine.server.replay import measurement_at_start, replay_on_server

    options = order.measured.server(order.timing.max_concurrency)
    info = order.info({}, measurement_at_start(options))
    with order.store(info) as store:
        with progress_bar(f"replaying {order.workload.name}") as on_progress:
            run = replay_on_server(
                order.workload,
                options,
                on_progress=on_progress,
                is_stopped=is_stopped,
                journal=store.journal,
            )
        info = order.info(dict(run.measurement.facts), run.measurement)
        return finish(order, store, info, run)


def finish(
    order: Order, store: "RunStore", info: "RunInfo", run: "MeasuredRun"
) -> Measured:
    """Save and print a run, and say on stderr what became of an engine that failed."""
    from bench_cli.run_end import exit_code_of_run, save_and_print
    from results.findings.failure import FAILURES

    notes = [*run.measurement.notes, *said_of_gpu(order.flags, info)]
    if order.measured.beside_sim:
        notes.append(said_beside(order.workload, info, run))
    info = replace(info, measurement=replace(run.measurement, notes=tuple(notes)))
    saved = save_and_print(store, info, run, order.report)
    code = exit_code_of_run(run)
    if code is ExitCode.ENGINE_FAILED:
        what, _ = FAILURES[run.outcome.kind]
        typer.echo(f"error: {what}: {run.outcome.message}", err=True)
    return Measured(saved, code)


def said_of_gpu(flags: EngineFlags, info: "RunInfo") -> list[str]:
    """A note where ``--gpu`` names another device than the one that vLLM ran on."""
    from profiles.errors import ProfileError
    from profiles.gpu import load_gpu

    ran_on = info.config["gpu"]
    is_said = flags.gpu != EngineFlags().gpu
    if flags.engine is not Engine.VLLM or not is_said or ran_on is None:
        return []
    with suppress(ProfileError):
        if load_gpu(flags.gpu).name == load_gpu(ran_on).name:
            return []
    machine = "a CPU" if ran_on == "cpu" else ran_on
    return [
        f"--gpu {flags.gpu} is for simulations: vLLM ran on {machine};"
        " CUDA_VISIBLE_DEVICES chooses among several GPUs"
    ]


def said_beside(workload: "Workload", info: "RunInfo", run: "MeasuredRun") -> str:
    """Whether our policy decides what vLLM decided."""
    from harness.vllm_engine.beside_sim import beside_sim, can_run_beside

    if run.outcome.kind == "vllm_did_not_start":
        return "sim was not run beside it: vLLM did not start"
    if not can_run_beside(info.config):
        return "sim was not run beside it: it needs policy v1 without an offload tier"
    return beside_sim(workload, info.config, run).in_words()
