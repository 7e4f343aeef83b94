"""The search: which settings are tried, in which order, and what each came to.

Settings are tried in batches of a fixed size, chosen from what all batches before came
to, so that the number of processes changes no choice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.tuning.space import Key, Knobs, Space, key_of
from harness.tuning.suggestion import Suggester, Tried
from harness.tuning.trial import Trial

BATCH = 8
"""Settings that are chosen at once: enough for the CPUs of a laptop, few enough to learn
from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a search goes on.

    Attributes:
        num_trials: Replays; None for no limit.
        seconds: Wall time; None for no limit.
    """

    num_trials: int | None = None
    seconds: float | None = None

    def of_one_of_two(self) -> "Budget":
        """What each of two searches has; a number of replays is for each."""
        return replace(self, seconds=None if self.seconds is None else self.seconds / 2)


Evaluate = Callable[[Sequence[Knobs], float], Sequence[Trial | None]]
"""Replays of settings, given up above a loss; None for one that did not come to that."""


@dataclass(slots=True, kw_only=True)
class Search:
    """What was tried, and the best of it.

    Attributes:
        space: What may be chosen.
        start: The setting that it begins from, of every knob of the space.
        evaluate: Replays settings.
        suggester: Says what else to try.
        no_tie_above: A loss above which nothing does as well as what has this one.
        budget: How long to go on.
        began_s: When, of ``time.monotonic()``.
        is_stopped: Whether somebody has had enough.
        on_trial: Called after each batch.
        trials: What each setting came to, in the order of trying.
    """

    space: Space
    start: Knobs
    evaluate: Evaluate
    suggester: Suggester
    no_tie_above: Callable[[float], float]
    budget: Budget
    began_s: float = field(default_factory=time.monotonic)
    is_stopped: Callable[[], bool] = lambda: False
    on_trial: Callable[["Search"], None] = lambda search: None
    trials: dict[Key, Tried] = field(default_factory=dict)

    @property
    def best(self) -> Tried | None:
        """The complete trial with the least loss, the first of equals."""
        done = [each for each in self.trials.values() if each[1].is_complete]
        return min(done, key=lambda each: each[1].loss) if done else None

    def trial_of(self, knobs: Knobs) -> Trial:
        """What a setting came to that was tried."""
        return self.trials[key_of(knobs)][1]

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or somebody has had enough."""
        return (
            self.is_stopped() or len(self.trials) >= self.space.size or not self._room()
        )

    def run(self) -> None:
        """Try what is suggested until the budget is used up."""
        while not self.is_over:
            batch = self.suggester.suggest(self.trials, self._room())
            if not batch:
                break
            self.try_out(batch)
        self.suggester.forget()

    def try_out(self, batch: Sequence[Knobs], *, in_full: bool = False) -> None:
        """Replay those settings that were not, and remember what they came to.

        Args:
            batch: Settings.
            in_full: Give none up, and replay again what was given up.
        """
        best = self.best
        above = float("inf")
        if best is not None and not in_full:
            above = self.no_tie_above(best[1].loss)
        wanted = {key_of(k): k for k in batch if self._is_wanted(k, in_full=in_full)}
        new = list(wanted.values())
        for knobs, trial in zip(new, self.evaluate(new, above), strict=True):
            if trial is not None:
                self.remember(knobs, trial)
        self.on_trial(self)

    def remember(self, knobs: Knobs, trial: Trial) -> None:
        """Note what a setting came to."""
        self.trials[key_of(knobs)] = dict(knobs), trial
        self.suggester.tell(knobs, trial.likely_loss)

    def _is_wanted(self, knobs: Knobs, *, in_full: bool) -> bool:
        known = self.trials.get(key_of(knobs))
        return known is None or (in_full and known[1].is_given_up)

    def _room(self) -> int:
        """Settings that the next batch may have; 0 when the budget is used up.

        Those that cannot start cost nothing; but they are not to be all that is tried.
        """
        limit, seconds = self.budget.num_trials, self.budget.seconds
        if seconds is not None and time.monotonic() - self.began_s >= seconds:
            return 0
        if limit is None:
            return BATCH
        num_replayed = sum(trial.can_start for _, trial in self.trials.values())
        return max(0, min(BATCH, limit - num_replayed, 2 * limit - len(self.trials)))
