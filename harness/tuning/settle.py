"""The last steps to what is advised: no more memory than it takes, and a look around."""

from collections.abc import Callable
from dataclasses import replace

from harness.tuning.advice import Advice, IsEnough, is_worse
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row, better_rows, sweep
from harness.tuning.question import Question
from harness.tuning.search import Search
from harness.tuning.space import Knobs, key_of

HOST_MEMORY = ("kv_offloading_size", "swap_space")
"""Knobs that take memory of the host."""

MOST_MOVES = 3
"""How often a value around what is advised may still take its place."""


def settle(
    search: Search,
    engine: TrialEngine,
    advice: Advice,
    question: Question,
    is_enough: IsEnough,
    on_advice: Callable[[Knobs], None] = lambda knobs: None,
) -> tuple[Advice, dict[str, list[Row]]]:
    """Look around what is advised, and move where it is better there.

    ``on_advice`` is called with what is advised before each look.
    """
    start = search.trial_of(search.start)
    advice = _with_least_memory(search, engine, advice, question)
    on_advice(advice.knobs)
    evidence = sweep(search, engine, advice.knobs, advice.trial)
    for _ in range(MOST_MOVES):
        better = better_rows(evidence)
        if not better or search.is_stopped():
            break
        space, knobs = search.space, advice.knobs
        moved = [space.changed(knobs, name, value) for name, value in better]
        tried = [search.trials[key_of(setting)] for setting in moved]
        gains = [each for each in tried if is_enough(engine.objective, start, each[1])]
        if not gains:
            break
        knobs, trial = min(gains, key=lambda each: each[1].loss)
        advice = replace(advice, knobs=knobs, trial=trial)
        advice = _with_least_memory(search, engine, advice, question)
        on_advice(advice.knobs)
        evidence = sweep(search, engine, advice.knobs, advice.trial)
    return advice, evidence


def _with_least_memory(
    search: Search, engine: TrialEngine, advice: Advice, question: Question
) -> Advice:
    """No more memory of the host than does as well; nor of the GPU, if that is shared."""
    changed = [n for n, value in advice.knobs.items() if value != search.start[n]]
    names = [name for name in HOST_MEMORY if name in changed]
    if question.is_shared:
        names.append("gpu_memory_utilization")
    for name in names:
        advice = _with_least(name, search, engine, advice)
    return advice


def _with_least(name: str, search: Search, engine: TrialEngine, advice: Advice) -> Advice:
    """The smallest value of a knob that does as well: what it takes others may need.

    Of the host's memory no less than at the start: that would be a change for nothing.
    """
    values, now = search.space.choices.get(name, ()), advice.knobs.get(name)
    least = search.start.get(name) if name in HOST_MEMORY else None
    lower = [v for v in values if v < now and (least is None or v >= least)]
    settings = [{**advice.knobs, name: value} for value in lower]
    search.try_out(settings)
    best = search.best
    for knobs in settings:
        found = search.trials.get(key_of(knobs))
        if found is None or is_worse(engine.objective, advice.trial, found[1]):
            continue
        is_kept = advice.knobs == search.start
        if is_kept or not best or not is_worse(engine.objective, best[1], found[1]):
            return replace(advice, knobs=knobs, trial=found[1])
    return advice
