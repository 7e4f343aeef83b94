"""``blockbench compare``: the difference that one setting makes."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bench_cli import options
from bench_cli.arm_plan import PRELOAD, Replays
from bench_cli.document import deliver
from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.exit_code import ExitCode
from bench_cli.flags import takes_flags
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.run_report import ReportFlags
from bench_cli.tables import TableStyle
from bench_cli.workload import SourceFlags, WorkloadFlags

if TYPE_CHECKING:
    from bench_cli.sides import Sides
    from results.comparison.comparison import ArmResult, Comparison
    from results.comparison.gate import Condition, Judgement
    from results.comparison.verdict import MetricResult
    from results.goodput import Slo


@takes_flags
def compare(
    compared: options.Compared,
    *,
    vary: options.VaryArms = None,
    baseline: options.Baselines = None,
    fail_if: options.FailIf = None,
    allow: options.Allow = None,
    flags: EngineFlags,
    source: SourceFlags,
    timing: WorkloadFlags,
    measured: MeasuredFlags,
    slo: options.SloText = None,
    jobs: options.Jobs = None,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Replay TRACE with one setting in turn, or take stored runs.

    The setting is prefix caching, off and on, or each value of --vary. What differs is
    said with whether that is more than chance, and how it comes about.
    """
    from bench_cli.condition import parse_conditions
    from bench_cli.document import check_document
    from bench_cli.quantity import parse_slo

    started = time.perf_counter()
    report = ReportFlags(as_json=as_json, table=table)
    conditions = parse_conditions(fail_if or ())
    limits = None if slo is None else parse_slo(slo)
    timing.refuse_contradictions()
    engines = engines_of(flags, vary or ())
    measured.refuse_others(engines)
    if output is not None:
        check_document(output, kind="compare")
    trace = trace_of(compared)
    if trace is None:
        check_is_run(compared)
        refuse_settings(flags, source, timing, vary, jobs)
        sides = stored(compared, baseline or (), limits, allow or ())
    else:
        replays = Replays(trace, flags, source, timing, tuple(vary or ()))
        if Engine.VLLM in engines or Engine.SERVER in engines:
            sides = measured_now(replays, measured, baseline or (), limits, allow or ())
        else:
            sides = replayed(replays, baseline or (), limits, allow or (), jobs)
    judgements = report_on(sides, conditions, started, report, output)
    if code := exit_code(sides, judgements):
        raise typer.Exit(code)


def engines_of(flags: EngineFlags, vary: Sequence[str]) -> list[Engine]:
    """Which engines run the arms.

    Raises:
        UsageError: There is none of that name.
    """
    from bench_cli.variation import ENGINE_KNOBS, LOAD_KNOBS, parse_variation
    from harness.errors import UsageError

    varied = [parse_variation(text, ENGINE_KNOBS | LOAD_KNOBS) for text in vary]
    names = [name for each in varied if each.knob == "engine" for name in each.values]
    known = [engine.value for engine in Engine]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--vary engine: there is no {name}; there are {', '.join(known)}"
            )
    return [Engine(name) for name in names] or [flags.engine]


def stored(
    names: Sequence[str],
    baseline: Sequence[str],
    slo: "Slo | None",
    allow: Sequence[options.Allowed],
) -> "Sides":
    """Runs that were stored."""
    from bench_cli.sides import stored_sides
    from results.comparison.comparable import Hindrance

    return stored_sides(names, baseline, slo, [Hindrance(name.value) for name in allow])


def replayed(
    replays: Replays,
    baseline: Sequence[str],
    slo: "Slo | None",
    allow: Sequence[options.Allowed],
    jobs: int | None,
) -> "Sides":
    """Runs that are made now, in processes that load their modules while we load ours."""
    from harness.parallel import ReplayPool, default_jobs

    with ReplayPool(jobs or default_jobs(), preload=PRELOAD) as pool:
        from bench_cli.sides import replayed_sides
        from results.comparison.comparable import Hindrance

        allowed = [Hindrance(name.value) for name in allow]
        return replayed_sides(replays, baseline, slo, allowed, pool)


def measured_now(
    replays: Replays,
    measured: MeasuredFlags,
    baseline: Sequence[str],
    slo: "Slo | None",
    allow: Sequence[options.Allowed],
) -> "Sides":
    """Runs that a real engine makes now, the arms in turns."""
    from bench_cli.measured_arms import measured_sides
    from results.comparison.comparable import Hindrance

    allowed = [Hindrance(name.value) for name in allow]
    return measured_sides(replays, measured, baseline, slo, allowed)


def report_on(
    sides: "Sides",
    conditions: "Sequence[Condition]",
    started: float,
    report: ReportFlags,
    output: Path | None,
) -> "list[Judgement] | None":
    """Compare the sides, print that, and say what became of the conditions."""
    from bench_cli.compare_document import compare_document
    from bench_cli.compare_screen import print_comparison
    from results.comparison.comparison import compare_arms

    comparison = compare_arms(sides.base, sides.arms, [c.metric for c in conditions])
    judgements = judge(conditions, comparison)
    notes = [*sides.notes, *slips(conditions)]
    wall_s = time.perf_counter() - started
    document = compare_document(comparison, judgements, notes, wall_s)
    deliver(document, as_json=report.as_json, output=output)
    if not report.as_json:
        print_comparison(comparison, judgements, notes, report.table)
    return judgements


def trace_of(compared: Sequence[str]) -> Path | None:
    """The trace, where one is to be replayed; None for stored runs.

    Raises:
        UsageError: A trace stands among other things.
    """
    from harness.errors import UsageError

    files = [name for name in compared if _is_trace(Path(name))]
    if not files:
        return None
    if len(compared) > 1:
        raise UsageError(
            f"{files[0]} is a file: give one TRACE alone, and stored runs with --baseline"
        )
    return Path(files[0])


def _is_trace(path: Path) -> bool:
    """Whether it can be read as a file, as a pipe can; a run is a folder."""
    return path.exists() and not path.is_dir()


def check_is_run(compared: Sequence[str]) -> None:
    """Accept one name that is no file if it is a run's; it may be a mistyped trace.

    Raises:
        RunFolderError: It is neither.
    """
    from results.errors import RunFolderError
    from results.runs import find_run

    if len(compared) > 1:
        return
    try:
        find_run(compared[0])
    except RunFolderError as error:
        raise RunFolderError(f"there is no file {compared[0]!r}, and {error}") from error


def refuse_settings(
    flags: EngineFlags,
    source: SourceFlags,
    timing: WorkloadFlags,
    vary: Sequence[str] | None,
    jobs: int | None,
) -> None:
    """Refuse to set up what has run already.

    Raises:
        UsageError: A flag of a replay was given.
    """
    from harness.errors import UsageError

    is_set_up = (flags, source, timing) != (EngineFlags(), SourceFlags(), WorkloadFlags())
    if is_set_up or vary or jobs:
        raise UsageError(
            "stored runs are compared as they ran; leave --vary and the flags of engine"
            " and load out, or name a trace file to replay"
        )


def judge(
    conditions: "Sequence[Condition]", comparison: "Comparison"
) -> "list[Judgement] | None":
    """What became of each condition in each arm; None where there is none."""
    from results.comparison.gate import judge_condition

    if not conditions:
        return None
    return [
        judge_condition(condition, result.arm.name, judged_by(condition, result))
        for result in comparison.arms
        for condition in conditions
    ]


def judged_by(condition: "Condition", result: "ArmResult") -> "MetricResult | None":
    """What the condition looks at in an arm; None where that could not start.

    An arm that does not last has no figures but how many requests it finished: those
    that it did are the lucky ones.
    """
    from results.comparison.verdict import MetricResult, Verdict

    if not result.arm.runs:
        return None
    metric = condition.metric
    found = {each.metric.name: each for each in result.metrics}.get(metric.name)
    reason = "neither has it"
    if metric.name == "goodput_fraction":
        reason += "; --slo sets the limits that it is counted under"
    is_partial = result.arm.trouble or result.arm.is_cut_short
    if is_partial and metric.outcome != "finished":
        found, reason = None, f"{result.arm.name} does not last"
    return found or MetricResult(
        metric=metric,
        values=(None, None),
        difference=None,
        interval=None,
        evidence=None,
        verdict=Verdict.NOT_TESTED,
        reason=reason,
    )


def slips(conditions: "Sequence[Condition]") -> list[str]:
    """That a condition can only fail where the arm is the better one."""
    return [
        f"{condition.text} fails on a change to the better only; is that meant?"
        for condition in conditions
        if condition.forbids_improvement
    ]


def exit_code(sides: "Sides", judgements: "Sequence[Judgement] | None") -> ExitCode:
    """Of a comparison that was printed: interrupted, a regression, or fine."""
    if sides.was_stopped:
        return ExitCode.INTERRUPTED
    if any(judgement.failed for judgement in judgements or ()):
        return ExitCode.DIVERGED
    arms = [sides.base, *sides.arms]
    counts = [run.summary["counts"]["finished"] for arm in arms for run in arm.runs]
    if not any(counts):
        typer.echo(
            "error: no request could finish in any arm; take a larger KV cache or shorter"
            " requests",
            err=True,
        )
        return ExitCode.IMPOSSIBLE
    return ExitCode.FINE
