"""Arms of a comparison that a real engine runs: one after the other, in turns."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.arm_plan import Replays, name_of
from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.interrupt import stopped_by_signals
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.measured_run import Order, measure
from bench_cli.sides import Sides, stored_sides
from bench_cli.variation import LOAD_KNOBS
from bench_cli.workload import timed_as
from harness.errors import EngineError, UsageError
from results.comparison.comparable import Hindrance

if TYPE_CHECKING:
    from results.goodput import Slo


def measured_sides(
    replays: Replays,
    measured: MeasuredFlags,
    baseline: Sequence[str],
    slo: "Slo | None",
    allowed: Sequence[Hindrance],
) -> Sides:
    """Runs that are measured now, the repeats of one arm between those of the others.

    What drifts meanwhile, as a machine that warms up, then falls on all arms alike. An
    arm that is simulated runs once. Where engines are compared, what they ran on may
    differ: that is noted.

    Raises:
        UsageError: A knob that cannot be varied on a real engine.
        EngineError: An engine failed; the runs so far are kept.
        KeyboardInterrupt: They were stopped.
    """
    orders = _orders(replays, measured, slo, has_baseline=bool(baseline))
    folders: dict[str, list[str]] = {order.arm: [] for order in orders}
    if len({order.flags.engine for order in orders}) > 1:
        allowed = [*allowed, Hindrance.HARDWARE, Hindrance.MODEL]
    with stopped_by_signals() as is_stopped:
        for number in range(measured.repeats or 1):
            for order in orders:
                if number and order.flags.engine is Engine.SIM:
                    continue
                done = measure(order, is_stopped)
                if done.code is ExitCode.INTERRUPTED:
                    raise KeyboardInterrupt
                if done.code:
                    raise EngineError(
                        f"{order.arm} did not last; the runs so far are kept, and"
                        " blockbench compare takes their folders"
                    )
                folders[order.arm].append(str(done.saved.folder))
    arms = list(folders.values())
    base = list(baseline) or arms.pop(0)
    runs = [run for arm in arms for run in arm]
    called = {Path(run): name for name, them in folders.items() for run in them}
    return stored_sides(runs, base, slo, allowed, called)


def _orders(
    replays: Replays, measured: MeasuredFlags, slo: "Slo | None", *, has_baseline: bool
) -> list[Order]:
    """What is to be measured, an arm after the other."""
    variations = replays.variations(has_baseline=has_baseline)
    workload = replays.source.open(replays.trace)
    known = {field.name for field in fields(EngineFlags)} - {"gpu"}
    orders = []
    for values in product(*(variation.values for variation in variations)):
        names = [variation.knob for variation in variations]
        varied: dict[str, Any] = dict(zip(names, values, strict=True))
        engine = {n: v for n, v in varied.items() if n not in LOAD_KNOBS}
        if others := sorted(set(engine) - known):
            raise UsageError(
                f"--vary {others[0]} is not for a real engine; leave it out, or compare"
                " stored runs"
            )
        timing = replace(
            replays.timing, **{n: v for n, v in varied.items() if n in LOAD_KNOBS}
        )
        timing.refuse_contradictions()
        if "engine" in engine:
            engine["engine"] = Engine(engine["engine"])
        order = Order(
            workload=timed_as(workload, timing),
            flags=replace(replays.flags, **engine),
            measured=measured,
            timing=timing,
            limits=slo,
            report=None,
            arm=name_of(varied),
        )
        orders.append(order)
    return orders
