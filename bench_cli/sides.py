"""The two sides of a comparison: a baseline and arms, replayed now or stored before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from bench_cli.arm_plan import ArmPlan, Replays
from bench_cli.arm_run import ArmTask, run_arms
from bench_cli.run_start import run_info, run_name
from bench_cli.stored_arm import arms_of, load_stored, refuse_incomparable
from harness.errors import UsageError
from harness.parallel import ReplayPool
from harness.replay import Findable, findable_of
from results.comparison.arm import Arm, ArmRun
from results.comparison.comparable import Hindrance, drift_note, version_note
from results.goodput import Slo
from results.run_info import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What is compared with what.

    Attributes:
        base: The baseline; it has run.
        arms: The others; some may not have been able to start.
        notes: What a reader should know of them.
        was_stopped: Somebody stopped the replays; what is here is complete.
    """

    base: Arm
    arms: Sequence[Arm]
    notes: Sequence[str] = field(default_factory=list)
    was_stopped: bool = False


def stored_sides(
    names: Sequence[str],
    baseline: Sequence[str],
    slo: Slo | None,
    allowed: Sequence[Hindrance],
    names_of_arms: Mapping[Path, str] | None = None,
) -> Sides:
    """Stored runs beside the baseline that was named, or the first of them.

    Runs that were just made are called by ``names_of_arms``; others, by their folders.

    Raises:
        RunFolderError: One is not there or cannot be read.
        UsageError: They cannot be compared, or there is only one.
    """
    stored = load_stored([*baseline, *names])
    limits, notes = _limits(slo, [run.info.slo for run in stored])
    if baseline:
        base = _one_arm(arms_of(stored[: len(baseline)], limits, names_of_arms))
        arms = arms_of(stored[len(baseline) :], limits, names_of_arms)
    else:
        base, *arms = arms_of(stored, limits, names_of_arms)
    if not arms:
        what = "all have the same settings" if len(names) > 1 else "it is one run"
        raise UsageError(
            f"there is nothing to compare: {what}; name another, or a --baseline"
        )
    return Sides(base=base, arms=arms, notes=[*notes, *_doubts(base, arms, allowed)])


def replayed_sides(
    replays: Replays,
    baseline: Sequence[str],
    slo: Slo | None,
    allowed: Sequence[Hindrance],
    pool: ReplayPool,
) -> Sides:
    """Arms that are replayed now, beside a stored baseline or the first of them.

    With a baseline and nothing to vary there is one arm, with the flags as they are.

    Raises:
        UsageError: Flags contradict each other, or the baseline is of another trace.
        RunFolderError: The baseline is not there or cannot be read.
        KeyboardInterrupt: They were stopped before the baseline and another were
            complete.
    """
    variations = replays.variations(has_baseline=bool(baseline))
    stored = load_stored(baseline)
    limits, notes = _limits(slo, [run.info.slo for run in stored])
    known = [_one_arm(arms_of(stored, limits))] if stored else []
    plans = replays.plan(variations, has_baseline=bool(stored))
    arms, was_stopped = _replayed(plans, limits, pool)
    notes += [*_equals(plans), *_other_pools(plans)]
    base, *others = [*known, *arms]
    if was_stopped:
        notes += _stopped(arms)
        others = [arm for arm in others if arm.error or _is_whole(arm)]
        if not ((known or _is_whole(base)) and any(map(_is_whole, others))):
            for note in notes:
                typer.echo(note, err=True)
            raise KeyboardInterrupt
    doubts = _doubts(base, others, allowed) if stored else []
    return Sides(base=base, arms=others, notes=[*notes, *doubts], was_stopped=was_stopped)


def _is_whole(arm: Arm) -> bool:
    """Whether it has run, and nobody stopped it."""
    return any(run.info.outcome.ending is not Ending.INTERRUPTED for run in arm.runs)


def _one_arm(arms: Sequence[Arm]) -> Arm:
    if len(arms) > 1:
        raise UsageError(
            f"--baseline names {' and '.join(arm.name for arm in arms)}, which are no"
            " repeats of one measured run; name one"
        )
    return arms[0]


def _limits(slo: Slo | None, stored: Sequence[object]) -> tuple[Slo | None, list[str]]:
    """The limits that all are judged by: those given, else those of the first run."""
    known = [limits for limits in stored if isinstance(limits, dict)]
    if slo is not None or not stored:
        return slo, []
    first = stored[0]
    if all(limits == first for limits in stored):
        return (Slo.from_dict(known[0]) if known else None), []
    if not isinstance(first, dict):
        return None, ["the baseline had no SLO, so none is judged; --slo sets one"]
    note = "all are judged by the baseline's SLO; --slo sets another"
    return Slo.from_dict(first), [note]


def _doubts(base: Arm, arms: Sequence[Arm], allowed: Sequence[Hindrance]) -> list[str]:
    """What should be known of runs that were not made for each other."""
    found = refuse_incomparable(base, arms, allowed)
    found += [drift_note(base, arm) for arm in arms if arm.runs]
    found.append(version_note([base, *(arm for arm in arms if arm.runs)]))
    return [note for note in found if note]


def _replayed(
    plans: Sequence[ArmPlan], slo: Slo | None, pool: ReplayPool
) -> tuple[list[Arm], bool]:
    """An arm for each plan; without a run where it could not start, or never began."""
    findable: dict[str, Findable] = {}  # the same for all loads, and found out while
    tasks = {}  # the processes load their modules
    for plan in plans:
        if plan.config is not None and plan.workload is not None:
            policy = plan.config.policy
            if policy not in findable:
                findable[policy] = findable_of(plan.workload, policy)
            tasks[plan.name] = _task(plan, slo, findable[policy])
    runs, was_stopped = run_arms(list(tasks.values()), pool)
    by_name = dict(zip(tasks, runs, strict=True))
    return [_arm(plan, by_name.get(plan.name)) for plan in plans], was_stopped


def _task(plan: ArmPlan, slo: Slo | None, findable: Findable) -> ArmTask:
    assert plan.config is not None, "an arm that cannot start has no task"
    assert plan.workload is not None, "an arm that cannot start has no task"
    return ArmTask(
        label=plan.name,
        run_name=f"{run_name(plan.workload.name)}-{plan.name}",
        info=run_info(plan.workload, plan.config, plan.timing, slo),
        workload=plan.workload,
        findable=findable,
        config=plan.config,
        timing=plan.timing,
    )


def _arm(plan: ArmPlan, run: ArmRun | None) -> Arm:
    if run is None:
        return Arm(name=plan.name, config={}, error=plan.error)
    return Arm(name=plan.name, config=run.info.config, runs=[run])


def _equals(plans: Sequence[ArmPlan]) -> list[str]:
    """That two arms are the same, however differently they were asked for."""
    found, seen = [], dict[object, str]()
    for plan in plans:
        if plan.config is None:
            continue
        key = plan.config, plan.timing
        if key in seen:
            found.append(f"{seen[key]} and {plan.name} come to the same settings")
        seen.setdefault(key, plan.name)
    return found


def _other_pools(plans: Sequence[ArmPlan]) -> list[str]:
    """That a number of blocks is another amount of memory in some of the arms."""
    configs = [plan.config for plan in plans if plan.config is not None]
    tokens = {config.num_gpu_blocks * config.block_size for config in configs}
    if len({config.block_size for config in configs}) < 2 or len(tokens) < 2:
        return []
    if any(config.source_of_num_gpu_blocks != "override" for config in configs):
        return []
    return [
        "--num-gpu-blocks-override counts blocks, so the pools hold from"
        f" {min(tokens):,} to {max(tokens):,} tokens; --kv-cache-gib keeps memory equal"
    ]


def _stopped(arms: Sequence[Arm]) -> list[str]:
    """What became of arms that somebody stopped."""
    found = []
    for arm in arms:
        if not arm.runs and not arm.error:
            found.append(f"{arm.name} had not begun")
        elif arm.runs and arm.run.info.outcome.ending is Ending.INTERRUPTED:
            found.append(f"{arm.name} was interrupted; saved {arm.run.folder}")
        elif arm.runs:
            found.append(f"{arm.name} was complete; saved {arm.run.folder}")
    return found
