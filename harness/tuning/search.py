"""The search: which settings are tried, in which order, and what each came to.

Settings are tried in batches of a fixed size, chosen from what all batches before came
to, so that the number of processes changes no choice. A batch is made of what the screen
proposes, then of neighbours of the best and of what optuna's sampler suggests, in turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.tuning.space import Knobs, Space
from harness.tuning.trial import Trial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

BATCH = 8
"""Settings that are chosen at once: enough for the CPUs of a laptop, few enough to learn
from."""

Key = tuple[tuple[str, Any], ...]


def key_of(knobs: Knobs) -> Key:
    """A setting as something that can be looked up."""
    return tuple(sorted(knobs.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a search goes on.

    Attributes:
        num_trials: Replays; None for no limit.
        seconds: Wall time; None for no limit.
    """

    num_trials: int | None = None
    seconds: float | None = None


Evaluate = Callable[[Sequence[Knobs], float], Sequence[Trial | None]]
"""Replays of settings, given up above a loss; None for one that nobody began."""


@dataclass(slots=True, kw_only=True)
class Search:
    """What was tried, and the best of it.

    Attributes:
        space: What may be chosen.
        start: The setting that it begins from, of every knob of the space.
        evaluate: Replays settings.
        study: Optuna's, which remembers and suggests.
        budget: How long to go on.
        is_stopped: Whether somebody has had enough.
        on_trial: Called after each batch.
        trials: What each setting came to, in the order of trying.
    """

    space: Space
    start: Knobs
    evaluate: Evaluate
    study: "optuna.Study"
    budget: Budget
    is_stopped: Callable[[], bool] = lambda: False
    on_trial: Callable[["Search"], None] = lambda search: None
    trials: dict[Key, tuple[dict[str, Any], Trial]] = field(default_factory=dict)
    _asked: "dict[Key, optuna.trial.Trial]" = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def best(self) -> tuple[dict[str, Any], Trial] | None:
        """The complete trial with the least loss, the first of equals."""
        done = [each for each in self.trials.values() if each[1].is_complete]
        return min(done, key=lambda each: each[1].loss) if done else None

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or somebody has had enough."""
        limit, seconds = self.budget.num_trials, self.budget.seconds
        return (
            self.is_stopped()
            or len(self.trials) >= self.space.size
            or (limit is not None and len(self.trials) >= limit)
            or (seconds is not None and time.monotonic() - self._began_s >= seconds)
        )

    def run(self, proposed: Sequence[Knobs]) -> None:
        """Try the proposals, then go on until the budget is used up."""
        waiting = [dict(knobs) for knobs in proposed]
        while not self.is_over:
            batch = self._next_batch(waiting)
            if not batch:
                return
            self.try_out(batch)

    def try_out(self, batch: Sequence[Knobs], *, in_full: bool = False) -> None:
        """Replay those settings that were not, and remember what they came to.

        Args:
            batch: Settings.
            in_full: Give none up, and replay again what was given up.
        """
        best = self.best
        above = float("inf") if in_full or best is None else give_up_above(best[1].loss)
        new = [knobs for knobs in batch if self._is_wanted(knobs, in_full)]
        for knobs, trial in zip(new, self.evaluate(new, above), strict=True):
            if trial is not None:
                self.trials[key_of(knobs)] = dict(knobs), trial
                self._tell(knobs, trial)
        self.on_trial(self)

    def _is_wanted(self, knobs: Knobs, in_full: bool) -> bool:
        known = self.trials.get(key_of(knobs))
        return known is None or (in_full and not known[1].is_complete)

    def _next_batch(self, waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Settings not yet tried: those that wait, then neighbours and suggestions."""
        room = BATCH
        if self.budget.num_trials is not None:
            room = min(room, self.budget.num_trials - len(self.trials))
        batch: dict[Key, dict[str, Any]] = {}
        sources = self._neighbours_of_best(), self._suggestions()
        while waiting and len(batch) < room:
            self._add(batch, waiting.pop(0))
        num_fruitless = 0
        while len(batch) < room and num_fruitless < 2 * BATCH:
            source = sources[len(batch) % 2]
            before = len(batch)
            knobs = next(source, None) or next(sources[1])
            self._add(batch, knobs)
            num_fruitless += len(batch) == before
        return list(batch.values())

    def _add(self, batch: dict[Key, dict[str, Any]], knobs: Knobs) -> None:
        key = key_of(knobs)
        if key not in self.trials:
            batch.setdefault(key, dict(knobs))

    def _neighbours_of_best(self) -> Iterator[dict[str, Any]]:
        best = self.best
        if best is not None:
            for knobs in self.space.neighbours(best[0]):
                if key_of(knobs) not in self.trials:
                    yield knobs

    def _suggestions(self) -> Iterator[dict[str, Any]]:
        """What optuna would try next; what was tried already is told again."""
        while True:
            asked = self.study.ask(_places(self.space))
            choices = self.space.choices
            knobs = {name: choices[name][asked.params[name]] for name in choices}
            known = self.trials.get(key_of(knobs))
            if known is not None:
                self.study.tell(asked, known[1].loss)
            else:
                self._asked.setdefault(key_of(knobs), asked)
            yield knobs

    def _tell(self, knobs: Knobs, trial: Trial) -> None:
        """Let the sampler know: what was given up is at least as bad as it was then."""
        asked = self._asked.pop(key_of(knobs), None)
        if asked is not None:
            self.study.tell(asked, trial.loss)
            return
        import optuna

        choices = self.space.choices
        self.study.add_trial(
            optuna.trial.create_trial(
                params={n: values.index(knobs[n]) for n, values in choices.items()},
                distributions=_places(self.space),
                value=trial.loss,
            )
        )


def _places(space: Space) -> "dict[str, BaseDistribution]":
    """Places in each knob's values, which optuna takes for numbers in order."""
    from optuna.distributions import IntDistribution

    return {n: IntDistribution(0, len(v) - 1) for n, v in space.choices.items()}


def give_up_above(loss: float) -> float:
    """Losses above this are no tie with the best."""
    return loss * 1.01 + 1e-9
