"""What speaks for each knob: the advised setting with that knob at other values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.tuning.advice import is_better
from harness.tuning.engine import TrialEngine
from harness.tuning.search import Search
from harness.tuning.space import Knobs, Space, key_of
from harness.tuning.trial import Trial
from results.comparison.arm import ArmRun
from results.comparison.metric import metric_named

FIGURES = (
    "goodput_fraction",
    "ttft_mean",
    "ttft_p99",
    "tpot_mean",
    "e2e_mean",
    "queue_mean",
    "output_token_per_s",
    "hit_rate",
    "prefill_tokens",
    "preemptions",
    "fragmentation",
)
"""What is shown of a setting, as ``compare`` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The advised setting with one knob at some value.

    Attributes:
        value: The knob's.
        is_advised: It is what is advised.
        is_start: It is what the search began from.
        figures: By name; None where there is none.
        num_gpu_blocks: Of its pool; None where it cannot start.
        standing: ``better``, ``worse`` or ``as good`` beside what is advised; ``ends``
            where vLLM's engine would not last, ``cannot start``, ``not replayed``
            where only this package cannot, or ``not tried``.
        run: What it came to; None where there is none.
    """

    value: Any
    is_advised: bool
    is_start: bool
    figures: Mapping[str, float | None]
    num_gpu_blocks: int | None
    standing: str
    run: ArmRun | None = None


def values_around(space: Space, name: str, advised: Any, start: Any) -> list[Any]:
    """The values next to the advised one, and the start's."""
    values = space.choices[name]
    place = values.index(advised)
    near = values[max(0, place - 1) : place + 2]
    return [value for value in values if value in near or value == start]


def sweep(
    search: Search, engine: TrialEngine, knobs: Knobs, advised: Trial
) -> dict[str, list[Row]]:
    """Rows for each knob of the space, those not replayed before replayed now."""
    places = [
        (name, value)
        for name in search.space.choices
        for value in values_around(search.space, name, knobs[name], search.start[name])
    ]
    space = search.space
    settings = [space.changed(knobs, name, value) for name, value in places]
    search.try_out(settings, in_full=True)
    rows: dict[str, list[Row]] = {name: [] for name in search.space.choices}
    for (name, value), setting in zip(places, settings, strict=True):
        found = search.trials.get(key_of(setting))
        trial = found[1] if found else None
        rows[name].append(
            Row(
                value=value,
                is_advised=value == knobs[name],
                is_start=value == search.start[name],
                figures=figures_of(trial),
                num_gpu_blocks=_num_gpu_blocks(engine, setting),
                standing=_standing(engine, advised, setting, trial),
                run=None if trial is None else trial.run,
            )
        )
    return rows


def figures_of(trial: Trial | None) -> dict[str, float | None]:
    """What is shown of a trial."""
    if trial is None or trial.run is None:
        return dict.fromkeys(FIGURES)
    found = {}
    for name in FIGURES:
        metric = metric_named(name)
        assert metric is not None, f"{name} is a metric"
        found[name] = metric.value(trial.run.summary, trial.run.samples)
    return found


def better_rows(rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, Any]]:
    """Knobs and values that are better than what was advised."""
    return [
        (name, row.value)
        for name, of_knob in rows.items()
        for row in of_knob
        if row.standing == "better"
    ]


def _num_gpu_blocks(engine: TrialEngine, setting: Knobs) -> int | None:
    config = engine.config(setting)
    return None if config is None else config.num_gpu_blocks


def _standing(
    engine: TrialEngine, advised: Trial, setting: Knobs, trial: Trial | None
) -> str:
    if engine.config(setting) is None:
        return "not replayed" if engine.is_only_not_replayed(setting) else "cannot start"
    if trial is None or trial.run is None:
        return "not tried"
    if trial.run.trouble:
        return "ends"
    if is_better(engine.objective, advised, trial):
        return "better"
    return "worse" if is_better(engine.objective, trial, advised) else "as good"
