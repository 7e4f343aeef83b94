"""What settings that did well on a stretch come to on the whole trace."""

from dataclasses import dataclass, field, replace
from functools import partial

from harness.tuning.advice import Advice, is_better, is_gain, is_worse
from harness.tuning.engine import TrialEngine
from harness.tuning.search import Search
from harness.tuning.space import Key, Knobs, key_of
from harness.tuning.trial import Trial


@dataclass(slots=True, kw_only=True)
class Whole:
    """What settings that did well on a stretch come to on the whole trace.

    Attributes:
        engine: Of the whole trace.
        search: Of the stretch.
        start: The present settings, replayed with the whole trace.
        trials: By setting.
    """

    engine: TrialEngine
    search: Search
    start: Trial
    trials: dict[Key, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trials[key_of(self.search.start)] = self.start

    def replay_ahead(self, knobs: Knobs) -> None:
        """Have a setting replayed beside those of the stretch that come next."""
        if key_of(knobs) not in self.trials:
            self.engine.replay_ahead(knobs, partial(self._keep, key_of(knobs)))

    def chosen(self, advice: Advice, *, is_shared: bool) -> Advice:
        """What is advised, if it is a gain; another one, where that is a better one.

        The start, where none is; beside it, what saves memory need not be a gain. The
        trial is of the stretch.
        """
        advised = key_of(advice.knobs)
        if advised not in self.trials:
            (trial,) = self.engine.evaluate([advice.knobs])
            self._keep(advised, trial)
        objective, chosen = self.engine.objective, key_of(self.search.start)
        for key in dict.fromkeys((advised, *self.trials)):
            trial = self.trials.get(key)
            if trial is None or is_worse(objective, self.start, trial):
                continue
            if is_gain(objective, self.start, trial):
                if is_better(objective, self.trials[chosen], trial):
                    chosen = key
            elif is_shared and key == advised:
                chosen = key
        knobs, near = self.search.trials[chosen]
        return replace(advice, knobs=dict(knobs), trial=near)

    def _keep(self, key: Key, trial: Trial | None) -> None:
        if trial is not None and trial.is_complete:
            self.trials[key] = trial
