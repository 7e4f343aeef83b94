"""What to try next: far values of each knob, then what is likely to be better.

Three sources take turns, so that none can lead the search astray by itself: a model of
all that was tried, neighbours of the best, and optuna's sampler.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.tuning.space import Key, Knobs, Space, key_of
from harness.tuning.surrogate import most_promising
from harness.tuning.trial import Trial
from results.columns import FloatArray

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Tried = tuple[dict[str, Any], Trial]
"""A setting, and what it came to."""

MOST_FRUITLESS = 24
"""Suggestions in a row that bring nothing new: there is little left."""

NUM_DRAWN, NUM_VARIED, NUM_CENTRES = 1000, 200, 5
"""Settings that the model looks at: drawn from the whole space, and for each of so many
of the best with one to three knobs changed."""


def new_study(study: "optuna.Study") -> "optuna.Study":
    """An empty one in memory, which chooses as another one does."""
    import optuna

    return optuna.create_study(sampler=study.sampler)


@dataclass(slots=True, kw_only=True)
class Suggester:
    """Chooses settings that were not tried yet.

    Attributes:
        space: What may be chosen.
        study: Optuna's, which remembers and suggests.
        waiting: What is proposed before anything else, in order.
    """

    space: Space
    study: "optuna.Study"
    waiting: list[dict[str, Any]]
    _asked: "dict[Key, list[optuna.trial.Trial]]" = field(default_factory=dict)

    def suggest(self, trials: Mapping[Key, Tried], room: int) -> list[dict[str, Any]]:
        """At most so many settings; none where there is little left to try."""
        batch: dict[Key, dict[str, Any]] = {}
        while self.waiting and len(batch) < room:
            self._add(batch, self.waiting.pop(0), trials)
        if len(batch) == room:
            return list(batch.values())
        likely = self._likely(trials, (room - len(batch) + 1) // 2)
        near, sampled = self._near(trials), self._sampled(trials)
        num_turns = num_fruitless = 0
        while len(batch) < room and num_fruitless < MOST_FRUITLESS:
            source = (likely, near, likely, sampled)[num_turns % 4]
            knobs = next(source, None) or next(near, None) or next(sampled)
            is_new = self._add(batch, knobs, trials)
            num_turns, num_fruitless = num_turns + 1, 0 if is_new else num_fruitless + 1
        return list(batch.values())

    def _add(
        self, batch: dict[Key, dict[str, Any]], knobs: Knobs, trials: Mapping[Key, Tried]
    ) -> bool:
        key = key_of(knobs)
        if key in trials or key in batch:
            return False
        batch[key] = dict(knobs)
        return True

    # -- sources ---------------------------------------------------------------------

    def _likely(self, trials: Mapping[Key, Tried], num: int) -> Iterator[dict[str, Any]]:
        """What a model of all that was tried expects most of."""
        tried = sorted(trials.values(), key=_loss)
        candidates = list(self._candidates(tried, trials))
        if len(tried) > 1 and candidates:
            points = self._points([knobs for knobs, _ in tried])
            losses = np.array([trial.likely_loss for _, trial in tried])
            others = self._points(candidates)
            for place in most_promising(points, losses, others, num):
                yield candidates[place]

    def _candidates(
        self, best_first: Sequence[Tried], trials: Mapping[Key, Tried]
    ) -> Iterator[dict[str, Any]]:
        """Settings that were not tried: any, and variations of the best."""
        rng = np.random.default_rng(len(trials))
        names = list(self.space.choices)
        seen = set(trials)

        def drawn(knobs: Knobs, chosen: Sequence[str]) -> dict[str, Any]:
            other = dict(knobs)
            for name in chosen:
                values = self.space.choices[name]
                other[name] = values[rng.integers(len(values))]
            return self.space.settled(other)

        found = [drawn({}, names) for _ in range(NUM_DRAWN)]
        for knobs, _ in best_first[:NUM_CENTRES]:
            for _ in range(NUM_VARIED):
                num_changed = min(len(names), int(rng.integers(1, 4)))
                chosen = rng.choice(len(names), num_changed, replace=False)
                found.append(drawn(knobs, [names[n] for n in chosen]))
        for other in found:
            if key_of(other) not in seen:
                seen.add(key_of(other))
                yield other

    def _points(self, settings: Sequence[Knobs]) -> FloatArray:
        """Settings as numbers between 0 and 1, ``(num_settings, num_knobs)``."""
        choices = self.space.choices.items()
        return np.array(
            [
                [v.index(knobs[n]) / max(1, len(v) - 1) for n, v in choices]
                for knobs in settings
            ]
        )

    def _near(self, trials: Mapping[Key, Tried]) -> Iterator[dict[str, Any]]:
        """Steps from the best, then the next best, in what matters most first."""
        done = sorted((t for t in trials.values() if t[1].is_complete), key=_loss)
        effects = self._effects(trials)
        names = sorted(effects, key=lambda name: -effects[name])
        space = Space({name: self.space.choices[name] for name in names})
        for knobs, _ in done:
            yield from space.neighbours(knobs)

    def _effects(self, trials: Mapping[Key, Tried]) -> dict[str, float]:
        """By how much each knob changed the loss, at most, where it alone differed."""
        effects = dict.fromkeys(self.space.choices, 0.0)
        started = [each for each in trials.values() if each[1].can_start]
        for (first, one), (second, other) in combinations(started, 2):
            names = [name for name in first if first[name] != second[name]]
            if len(names) == 1 and min(one.likely_loss, other.likely_loss) > 0:
                effect = abs(math.log(one.likely_loss / other.likely_loss))
                effects[names[0]] = max(effects[names[0]], effect)
        return effects

    def _sampled(self, trials: Mapping[Key, Tried]) -> Iterator[dict[str, Any]]:
        """What optuna would try next; what was tried already is told again."""
        while True:
            asked = self.study.ask(_places(self.space))
            choices = self.space.choices
            knobs = {name: choices[name][asked.params[name]] for name in choices}
            knobs = self.space.settled(knobs)
            known = trials.get(key_of(knobs))
            if known is not None:
                self.study.tell(asked, known[1].likely_loss)
            else:
                self._asked.setdefault(key_of(knobs), []).append(asked)
            yield knobs

    # -- what came of it -------------------------------------------------------------

    def tell(self, knobs: Knobs, loss: float) -> None:
        """Let the sampler know what a setting came to, or was on its way to.

        One that it could not have suggested tells it nothing.
        """
        asked = self._asked.pop(key_of(knobs), None)
        if asked is not None:
            for each in asked:
                self.study.tell(each, loss)
            return
        choices = self.space.choices
        if any(knobs[name] not in values for name, values in choices.items()):
            return
        import optuna

        self.study.add_trial(
            optuna.trial.create_trial(
                params={n: values.index(knobs[n]) for n, values in choices.items()},
                distributions=_places(self.space),
                value=loss,
            )
        )

    def forget(self) -> None:
        """Let the sampler know that what it suggested is not coming any more."""
        import optuna

        for asked in self._asked.values():
            for each in asked:
                self.study.tell(each, state=optuna.trial.TrialState.FAIL)
        self._asked.clear()


def openings(space: Space, start: Knobs) -> list[dict[str, Any]]:
    """What to try first: values of each knob far from the start's, on either side."""
    found = [dict(start)]
    for name, values in space.choices.items():
        place, last = values.index(start[name]), len(values) - 1
        places = {place - (place + 1) // 2, place + (last - place + 1) // 2}
        if place in (0, last):
            places.add(last - place)
        found += [space.changed(start, name, values[n]) for n in sorted(places - {place})]
    return found


def _loss(tried: Tried) -> float:
    return tried[1].likely_loss


def _places(space: Space) -> "dict[str, BaseDistribution]":
    """Places in each knob's values, which optuna takes for numbers in order."""
    from optuna.distributions import IntDistribution

    return {n: IntDistribution(0, len(v) - 1) for n, v in space.choices.items()}
