"""Whether a gain holds elsewhere: other requests, loads, step times, fewer blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.tuning.advice import gain, is_better
from harness.tuning.decisive import Decisive, decisive
from harness.tuning.engine import TrialEngine
from harness.tuning.load import LoadKind, kind_of_load, scaled_concurrency, under_way
from harness.tuning.objective import Objective
from harness.tuning.space import Knobs
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.goodput import Condition, Slo

MORE_LOAD = 1.5
FEWER_BLOCKS = 0.95
"""What the estimate of the number of blocks may be off by; docs/fidelity.md."""

UNKNOWN_ERROR = 0.2
"""Of step times that nobody compared with a server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A gain under other circumstances.

    Attributes:
        name: Which.
        values: The objective's metric of the start and of what is advised; None where a
            run has none.
        holds: The advised setting is better there too; None where neither is.
        is_harmful: It is worse there.
        decided_by: What that goes by, where it is not the metric; None where it is.
    """

    name: str
    values: tuple[float | None, float | None]
    holds: bool | None
    is_harmful: bool
    decided_by: Decisive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Circumstance:
    name: str
    workload: Workload
    objective: Objective
    share_of_blocks: float = 1.0
    load: float = 1.0

    @property
    def of_engine(self) -> tuple[float, float]:
        """What cases that are replayed together have in common."""
        return self.share_of_blocks, self.load


def check_gain(
    engine: TrialEngine, start: Knobs, advised: Knobs, step_time_error: float | None
) -> list[Check]:
    """The start and what is advised, under each of the circumstances.

    Args:
        engine: Replays.
        start: Present settings.
        advised: Others.
        step_time_error: Share by which step times are known to be off; None if nobody
            compared them.
    """
    error = UNKNOWN_ERROR if step_time_error is None else step_time_error
    kind = kind_of_load(engine.workload, engine.max_concurrency)
    circumstances = _circumstances(engine.workload, engine.objective, error, kind)
    checks: dict[str, Check] = {}
    for together in sorted({each.of_engine for each in circumstances}, reverse=True):
        chosen = [each for each in circumstances if each.of_engine == together]
        cases = [
            (knobs, each.workload, each.objective)
            for each in chosen
            for knobs in (start, advised)
        ]
        share, load = together
        with under_way(engine, scaled_concurrency(engine, load)):
            trials = engine.evaluate_under(cases, share_of_blocks=share)
        pairs = zip(trials[::2], trials[1::2], strict=True)
        for each, (base, other) in zip(chosen, pairs, strict=True):
            if base is not None and other is not None:
                checks[each.name] = _check(each, base, other)
    return [checks[each.name] for each in circumstances if each.name in checks]


def _circumstances(
    workload: Workload, objective: Objective, error: float, kind: LoadKind
) -> list[_Circumstance]:
    """All that can be looked at: of requests that all come at once, no higher load."""
    found = []
    if half := len(workload) // 2:
        second = workload.select(slice(half, None))
        found.append(
            _Circumstance(name="second half", workload=second, objective=objective)
        )
    if kind is not LoadKind.NONE:
        found.append(
            _Circumstance(
                name=f"{MORE_LOAD:g}x load",
                workload=workload.retimed(speedup=MORE_LOAD),
                objective=objective,
                load=MORE_LOAD if kind is LoadKind.CONCURRENCY else 1.0,
            )
        )
    percent = f"{100 * error:.0f} %"
    if workload.duration_s > 0 or objective.slo is not None:
        found += [
            _of_step_times(workload, objective, 1 + error, f"steps {percent} slower"),
            _of_step_times(
                workload, objective, 1 / (1 + error), f"steps {percent} faster"
            ),
        ]
    fewer = _Circumstance(
        name=f"{100 * (1 - FEWER_BLOCKS):.0f} % fewer blocks",
        workload=workload,
        objective=objective,
        share_of_blocks=FEWER_BLOCKS,
    )
    return [*found, fewer]


def _of_step_times(
    workload: Workload, objective: Objective, factor: float, name: str
) -> _Circumstance:
    """Steps that take longer are an engine as it is, under more load and tighter limits.

    Durations only ever meet arrival times and limits, so stretching them is shrinking
    these. Where there are neither, nothing changes. Latencies come out shorter than they
    would be, in both runs alike.
    """
    slo = None if objective.slo is None else _scaled(objective.slo, 1 / factor)
    return _Circumstance(
        name=name,
        workload=workload.retimed(speedup=factor),
        objective=replace(objective, slo=slo),
    )


def _scaled(slo: Slo, factor: float) -> Slo:
    limits = {name: limit * factor for name, limit in slo.limits()}
    conditions = tuple(
        Condition(
            metric=each.metric, statistic=each.statistic, limit_s=each.limit_s * factor
        )
        for each in slo.conditions
    )
    return Slo(**limits, conditions=conditions)


def _check(circumstance: _Circumstance, base: Trial, other: Trial) -> Check:
    objective = circumstance.objective
    is_gain = is_better(objective, base, other)
    is_harmful = is_better(objective, other, base)
    values: Sequence[float | None] = (None, None)
    if base.run is not None and other.run is not None:
        values = gain(objective, base, other).values
    return Check(
        name=circumstance.name,
        values=(values[0], values[1]),
        holds=is_gain if is_gain or is_harmful else None,
        is_harmful=is_harmful,
        decided_by=decisive(objective, base, other),
    )
