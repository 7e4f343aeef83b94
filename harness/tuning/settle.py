"""The last steps to what is advised: no more memory than it takes, and a look around."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.tuning.advice import (
    BEYOND_CHANCE,
    Advice,
    Enough,
    IsEnough,
    is_better,
    is_worse,
)
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row, better_rows, sweep
from harness.tuning.headroom import gives_up_slo
from harness.tuning.objective import Objective
from harness.tuning.question import Question
from harness.tuning.search import Search
from harness.tuning.space import COSTLY, Knobs, is_dearer, key_of
from harness.tuning.suggestion import Tried
from harness.tuning.trial import Trial

UTILIZATION = "gpu_memory_utilization"

MOST_MOVES = 3
"""How often a value around what is advised may still take its place."""


def settle(
    search: Search,
    engine: TrialEngine,
    advice: Advice,
    question: Question,
    enough: Enough,
    on_advice: Callable[[Knobs], None] = lambda knobs: None,
) -> tuple[Advice, dict[str, list[Row]]]:
    """Look around what is advised, and move where it is better there.

    ``on_advice`` is called with what is advised before each look.
    """
    objective = engine.objective
    advice = _with_least(search, engine, advice, enough, question)
    on_advice(advice.knobs)
    evidence = sweep(search, engine, advice.knobs, advice.trial)
    for _ in range(MOST_MOVES):
        gains = list(_gains_around(search, objective, advice, evidence, enough))
        if not gains or search.is_stopped():
            break
        knobs, trial = min(gains, key=lambda each: each[1].loss)
        advice = replace(advice, knobs=knobs, trial=trial)
        advice = _with_least(search, engine, advice, enough, question)
        on_advice(advice.knobs)
        evidence = sweep(search, engine, advice.knobs, advice.trial)
    return advice, evidence


def _gains_around(
    search: Search,
    objective: Objective,
    advice: Advice,
    evidence: Mapping[str, Sequence[Row]],
    enough: Enough,
) -> Iterator[Tried]:
    """Settings around that are better, and by enough."""
    start = search.trial_of(search.start)
    is_worth = _than(search, enough, advice.knobs)
    for name, value in better_rows(evidence):
        for knobs, trial in _from_there_up(search, objective, advice, name, value):
            is_dear = is_dearer(knobs, advice.knobs)
            if is_dear and not is_worth(objective, advice.trial, trial):
                continue
            if enough.for_change(objective, start, trial):
                yield knobs, trial


def _from_there_up(
    search: Search, objective: Objective, advice: Advice, name: str, value: Any
) -> Iterator[Tried]:
    """A better value around; of what costs also larger ones, while each is better.

    A tier that holds half of what comes back may find nothing of it.
    """
    values: Sequence[Any] = (value,)
    if name in COSTLY and value > advice.knobs[name]:
        values = [each for each in search.space.choices[name] if each >= value]
    last = advice.trial
    for each in values:
        setting = search.space.changed(advice.knobs, name, each)
        search.try_out([setting], in_full=True)
        found = search.trials.get(key_of(setting))
        if found is None or not is_better(objective, last, found[1]):
            return
        yield found
        last = found[1]


# -- no more than it takes ---------------------------------------------------------------


def _with_least(
    search: Search,
    engine: TrialEngine,
    advice: Advice,
    enough: Enough,
    question: Question,
) -> Advice:
    """No more of what costs than is worth it; nor of the GPU, if that is shared.

    Beside that, what vLLM has by itself, and what is safer, where that is as good.
    """
    objective = engine.objective
    advice = _with_defaults(search, objective, advice, question.default)
    for name in COSTLY:
        if name in advice.knobs and advice.knobs[name] > search.start[name]:
            advice = _worth_its_cost(name, search, objective, advice, enough)
    if question.is_shared and UTILIZATION in search.space.choices:
        advice = _with_least_utilization(search, objective, advice)
        step = question.utilization_step
        if step is not None and enough is BEYOND_CHANCE:  # a stretch tells no hundredths
            advice = _with_least_between(search, objective, advice, step)
    return _safest(search, engine, advice)


def _with_defaults(
    search: Search, objective: Objective, advice: Advice, default: Knobs
) -> Advice:
    """Each change to the version's own value, where that is as good: no option then."""
    for name, value in search.start.items():
        plain, advised = default[name], advice.knobs[name]
        if advised == value or plain in (value, advised):
            continue
        setting = search.space.changed(advice.knobs, name, plain)
        is_dear = is_dearer(setting, advice.knobs)
        if plain in search.space.choices[name] and not is_dear:
            others = _advised_and_best(search, advice)
            advice = _if_as_good(search, objective, advice, setting, others)
    return advice


def _safest(search: Search, engine: TrialEngine, advice: Advice) -> Advice:
    """With requests of several samples in V0: what ends its engine least.

    Preempted, they can only be swapped out, which needs a swap space; and prompts in
    parts may leave them too little of a step (``screen.SAMPLES_IN_PARTS``), sooner or
    later, however well that does.
    """
    config = engine.config(advice.knobs)
    if config is None or config.policy != "v0" or engine.workload.max_samples < 2:
        return advice
    if advice.knobs == search.start:
        return advice
    choices = search.space.choices
    if advice.knobs.get("enable_chunked_prefill"):
        whole = {**advice.knobs, "enable_chunked_prefill": False}
        name = "max_num_batched_tokens"  # has to hold the longest prompt then
        larger = [v for v in choices.get(name, ()) if v >= config.max_model_len]
        for setting in [whole, *({**whole, name: value} for value in larger[:1])]:
            search.try_out([setting], in_full=True)
            found = search.trials.get(key_of(setting))
            if found is not None and found[1].run and not found[1].run.trouble:
                advice = replace(advice, knobs=found[0], trial=found[1])
                break
    if advice.knobs.get("swap_space") == 0:
        swap = next(size for size in choices["swap_space"] if size > 0)
        setting = {**advice.knobs, "swap_space": swap}
        others = [advice.trial]
        advice = _if_as_good(search, engine.objective, advice, setting, others)
    return advice


def _if_as_good(
    search: Search,
    objective: Objective,
    advice: Advice,
    setting: Knobs,
    others: Sequence[Trial],
) -> Advice:
    """Another setting, if that does as well as these."""
    search.try_out([setting])
    found = search.trials.get(key_of(setting))
    if found is None or any(is_worse(objective, each, found[1]) for each in others):
        return advice
    return replace(advice, knobs=found[0], trial=found[1])


def _worth_its_cost(
    name: str, search: Search, objective: Objective, advice: Advice, enough: Enough
) -> Advice:
    """The smallest value of a knob over which a larger one is not worth what it takes.

    The first that takes more than the start has to be worth its cost; those after it are
    to be a gain. No smaller value than at the start: that would be a change for nothing.
    Where what is left is no gain by itself, and all together is not worth it either, the
    start is kept.
    """
    start = search.trial_of(search.start)
    settings = [
        setting
        for setting in _lower(search, advice.knobs, name)
        if setting[name] >= search.start[name]
    ]
    search.try_out(settings, in_full=enough is BEYOND_CHANCE)
    others = _advised_and_best(search, advice)
    for knobs, trial in _tried(search, settings):
        is_worth = _than(search, enough, knobs)
        if any(is_worth(objective, trial, other) for other in others):
            continue
        is_dear = is_dearer(knobs, search.start)
        is_enough = enough.for_cost if is_dear else enough.for_change
        if knobs == search.start or is_enough(objective, start, trial):
            return replace(advice, knobs=knobs, trial=trial)
    if enough.for_cost(objective, start, advice.trial):
        return advice
    return replace(advice, knobs=dict(search.start), trial=start)


def _than(search: Search, enough: Enough, cheaper: Knobs) -> IsEnough:
    """By how much a setting is to be better than one that takes less of what costs."""
    is_dear = is_dearer(cheaper, search.start)
    return enough.for_change if is_dear else enough.for_cost


def _with_least_utilization(
    search: Search, objective: Objective, advice: Advice
) -> Advice:
    """The smallest utilization that does as well, and gives up no SLO.

    Where the SLO is missed anyway, not one request more is to be outside.
    """
    settings = list(_lower(search, advice.knobs, UTILIZATION))
    search.try_out(settings)
    others = _advised_and_best(search, advice)
    for knobs, trial in _tried(search, settings):
        if _does_as_well(objective, trial, others):
            return replace(advice, knobs=knobs, trial=trial)
    return advice


def _with_least_between(
    search: Search, objective: Objective, advice: Advice, step: float
) -> Advice:
    """The same between that and the largest of the space that does not: halved."""
    grid = search.suggester.space.choices[UTILIZATION]
    lower = [value for value in grid if value < advice.knobs[UTILIZATION]]
    if not lower:
        return advice
    low, high = (round(u / step) for u in (lower[-1], advice.knobs[UTILIZATION]))
    others = _advised_and_best(search, advice)
    while high - low > 1 and not search.is_stopped():
        middle = (low + high) // 2
        knobs = {**advice.knobs, UTILIZATION: round(middle * step, 6)}
        search.try_out([knobs])
        found = search.trials.get(key_of(knobs))
        if found is not None and _does_as_well(objective, found[1], others):
            advice, high = replace(advice, knobs=knobs, trial=found[1]), middle
        else:
            low = middle
    value = advice.knobs[UTILIZATION]
    search.space = search.space.with_choice(UTILIZATION, value)
    return advice


def _does_as_well(objective: Objective, trial: Trial, others: Sequence[Trial]) -> bool:
    """Whether a trial is no worse than any other, nor gives up the first one's SLO."""
    is_as_good = not any(is_worse(objective, other, trial) for other in others)
    return is_as_good and not gives_up_slo(others[0], trial)


def _advised_and_best(search: Search, advice: Advice) -> list[Trial]:
    """What a setting is compared with, so that small losses do not add up.

    Where the start is kept the best was not enough better.
    """
    best = search.best
    if best is None or advice.knobs == search.start:
        return [advice.trial]
    return [advice.trial, best[1]]


def _lower(search: Search, knobs: Knobs, name: str) -> Iterator[dict[str, Any]]:
    """The setting with each smaller value of a knob's, the smallest first."""
    for value in search.suggester.space.choices[name]:
        if value < knobs[name]:
            yield {**knobs, name: value}


def _tried(search: Search, settings: Sequence[Knobs]) -> Iterator[Tried]:
    """Those of the settings that were replayed, whole or in part, in their order."""
    for setting in settings:
        if (found := search.trials.get(key_of(setting))) is not None:
            yield found
