"""``tune --verify``: the present settings and what is advised, on a real engine."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.quantity import format_number_of
from bench_cli.tune_verify_plan import Verification
from bench_cli.tune_verify_side import Side, engine_flags, variables, with_kept
from bench_cli.workload import WorkloadFlags
from harness.errors import HarnessError

if TYPE_CHECKING:
    from bench_cli.measured_run import Order
    from results.comparison.arm import ArmRun


def run_on_engine(found: Verification) -> None:
    """Measure what was planned; whatever fails is kept as a finding."""
    from bench_cli.interrupt import stopped_by_signals

    if found.not_run:
        return
    began_s = time.monotonic()
    environment = () if found.asked.current is None else found.asked.current.environment
    _announce(found)
    with stopped_by_signals() as is_stopped, variables(environment):
        try:
            if found.flags.engine is Engine.VLLM:
                _measure_sides(found, is_stopped)
            else:
                _measure_server(found, is_stopped)
        except KeyboardInterrupt:
            found.was_stopped = True
    found.wall_s = time.monotonic() - began_s


def _announce(found: Verification) -> None:
    repeats = found.flags.measured.repeats or 1
    is_vllm = found.flags.engine is Engine.VLLM
    num_sides = len(found.sides) if is_vllm else 1
    where = "vLLM started here" if is_vllm else str(found.flags.measured.url)
    total, number = len(found.asked.engine.workload), len(found.workload)
    text = f"verifying on {where}: {format_number_of(num_sides * repeats, 'run')}"
    text += f" of {number:,} of {format_number_of(total, 'request')}"
    if number < total and found.flags.num_requests is None:
        text += ", about 2 min of the trace (--verify-requests takes more or fewer)"
    typer.echo(f"{text}, in real time", err=True)


def _measure_sides(found: Verification, is_stopped: Callable[[], bool]) -> None:
    """The settings in turns, so that what drifts falls on both alike."""
    orders = {side.name: _order(found, side) for side in found.sides}
    for _ in range(found.flags.measured.repeats or 1):
        for side in found.sides:
            if side.failure is None:
                run, side.failure = _measured(found, orders[side.name], side, is_stopped)
                side.runs += [] if run is None else [run]


def _measure_server(found: Verification, is_stopped: Callable[[], bool]) -> None:
    """The server as it is, and the side whose settings it has."""
    from bench_cli.tune_verify_server import side_of_server

    server = EngineFlags(engine=Engine.SERVER, model=found.asked.start.model)
    order = _order_of(found, server, found.flags.measured, "server")
    probe = replace(found.sides[0], folders=[])
    for _ in range(found.flags.measured.repeats or 1):
        run, found.failure = _measured(found, order, probe, is_stopped)
        found.server_runs += [] if run is None else [run]
        if found.failure is not None:
            break
    if found.server_runs:
        side = side_of_server(found).side
        side.runs, side.folders = found.server_runs, probe.folders


def _order(found: Verification, side: Side) -> "Order":
    flags = engine_flags(found.asked, side.options, found.flags.vllm_version)
    measured = with_kept(found.flags.measured, found.asked, side.options)
    return _order_of(found, flags, measured, side.name)


def _order_of(
    found: Verification, flags: EngineFlags, measured: MeasuredFlags, name: str
) -> "Order":
    from bench_cli.measured_run import Order

    return Order(
        workload=found.workload,
        flags=flags,
        measured=measured,
        timing=timing_of(found),
        limits=found.flags.slo,
        report=None,
        arm=f"verify-{name}",
    )


def timing_of(found: Verification) -> WorkloadFlags:
    """The load, with the part of the trace where a slice says which that is."""
    timing, asked = found.flags.timing, found.asked
    timing = replace(timing, max_concurrency=asked.engine.max_concurrency)
    is_whole = len(found.workload) == len(asked.engine.workload)
    is_cut = timing.slice is not None or timing.limit is not None
    if is_whole or is_cut or asked.num_replicas > 1:
        return timing
    return replace(timing, slice=f"{found.part.start}:{found.part.stop}")


def _measured(
    found: Verification, order: "Order", side: Side, is_stopped: Callable[[], bool]
) -> "tuple[ArmRun | None, dict[str, Any] | None]":
    """A run that came to its end, or the finding that says why it did not.

    Raises:
        KeyboardInterrupt: Somebody stopped it.
    """
    from bench_cli.measured_run import measure
    from bench_cli.stored_arm import arms_of, load_stored
    from bench_cli.tune_verify_document import not_started
    from results.errors import ResultsError
    from results.findings.failure import FAILURES

    try:
        done = measure(order, is_stopped)
    except (HarnessError, ResultsError) as error:
        return None, not_started(str(error))
    side.folders.append(str(done.saved.folder))
    if done.code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if done.code is ExitCode.ENGINE_FAILED:
        failed = (f for f in done.saved.document["findings"] if f["code"] in FAILURES)
        return None, next(failed)
    (arm,) = arms_of(load_stored([side.folders[-1]]), found.flags.slo)
    return arm.run, None
