"""What settings that did well on a stretch come to on the whole trace."""

from dataclasses import dataclass, field, replace
from functools import partial

from harness.tuning.advice import (
    Advice,
    is_better,
    is_gain,
    is_worse,
    is_worth_its_cost,
)
from harness.tuning.engine import TrialEngine
from harness.tuning.headroom import gives_up_slo
from harness.tuning.search import Search
from harness.tuning.space import Key, Knobs, is_dearer, key_of, no_dearer
from harness.tuning.trial import Trial


@dataclass(slots=True, kw_only=True)
class Whole:
    """What settings that did well on a stretch come to on the whole trace.

    Attributes:
        engine: Of the whole trace.
        search: Of the stretch.
        start: The present settings, replayed with the whole trace.
        trials: By setting.
        asked: Settings that were to be replayed ahead.
    """

    engine: TrialEngine
    search: Search
    start: Trial
    trials: dict[Key, Trial] = field(default_factory=dict)
    asked: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.trials[key_of(self.search.start)] = self.start

    def replay_ahead(self, knobs: Knobs) -> None:
        """Have a setting replayed beside those of the stretch that come next."""
        key = key_of(knobs)
        if key not in self.trials and key not in self.asked:
            self.asked.add(key)
            self.engine.replay_ahead(knobs, partial(self._keep, key))

    def replay_advised_ahead(self, knobs: Knobs) -> None:
        """It, and the same without what costs, which it has to be worth."""
        self.replay_ahead(knobs)
        self.replay_ahead(no_dearer(knobs, self.search.start))

    def chosen(self, advice: Advice, *, is_shared: bool) -> Advice:
        """What is advised, if it is a gain; another one, where that is a better one.

        From what costs least on, each has to be better than what was chosen before; and
        beyond chance, where it costs more. The start, where none is; beside it, what
        saves memory need not be a gain. The trial is of the stretch.
        """
        self._replay_missing(advice.knobs)
        objective, start = self.engine.objective, self.search.start
        settings = {key: dict(key) for key in (key_of(advice.knobs), *self.trials)}
        saving = [advice.knobs, no_dearer(advice.knobs, start)] if is_shared else []
        chosen = dict(start)
        for key in sorted(settings, key=lambda key: is_dearer(settings[key], start)):
            knobs, trial = settings[key], self.trials.get(key)
            if trial is None or key not in self.search.trials:
                continue
            if is_gain(objective, self.start, trial):
                is_dear = is_dearer(knobs, chosen)
                beats = is_worth_its_cost if is_dear else is_better
                if beats(objective, self.trials[key_of(chosen)], trial):
                    chosen = knobs
            elif knobs in saving and self._saves(knobs, trial):
                chosen = knobs
        near = self.search.trial_of(chosen)
        return replace(advice, knobs=chosen, trial=near)

    def _replay_missing(self, knobs: Knobs) -> None:
        """What is advised, and the same without what costs, on whole and stretch."""
        settings = [knobs, no_dearer(knobs, self.search.start)]
        self.search.try_out(settings, in_full=True)
        self.replay_advised_ahead(knobs)
        self.engine.evaluate([])

    def _saves(self, knobs: Knobs, trial: Trial) -> bool:
        """Whether a setting does as well as the start, at no more cost."""
        is_as_good = not is_worse(self.engine.objective, self.start, trial)
        is_dear = is_dearer(knobs, self.search.start)
        return is_as_good and not is_dear and not gives_up_slo(self.start, trial)

    def _keep(self, key: Key, trial: Trial | None) -> None:
        if trial is not None and trial.is_complete:
            self.trials[key] = trial
