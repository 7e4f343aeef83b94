"""What a search is asked, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.analysis.miss_ratio import HitCurve
from harness.tuning.advice import Advice
from harness.tuning.check import Check
from harness.tuning.evidence import Row
from harness.tuning.headroom import Headroom
from harness.tuning.replicas import Replicas, SharedLoad
from harness.tuning.screen import Screened
from harness.tuning.search import Budget
from harness.tuning.space import Space
from harness.tuning.trial import Trial
from results.comparison.verdict import MetricResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know.

    Attributes:
        space: Values of each knob that may be chosen.
        start: Present settings: a value of each knob of the space.
        default: What the version would have by itself: the same.
        curve: What caches of each size would find; None where the trace does not say.
        safest_utilization: Above it memory may run out.
        step_time_error: Share by which step times are off; None if nobody knows.
        budget: Of the search.
        shared: What all replicas get; the search is of the first of them.
        is_shared: Others need the GPU too: as little memory as does.
        utilization_step: Utilizations so far apart may be advised there, between those of
            the space; None for none.
    """

    space: Space
    start: dict[str, Any]
    default: dict[str, Any]
    curve: HitCurve | None
    safest_utilization: float
    step_time_error: float | None
    budget: Budget
    shared: SharedLoad
    is_shared: bool = False
    utilization_step: float | None = None


@dataclass(slots=True, kw_only=True)
class Answer:
    """What was found.

    Attributes:
        question: What was asked.
        advice: The setting, of the screened space's knobs.
        start: The present settings, replayed.
        default: The version's own, replayed; None where they cannot start.
        screened: What was ruled out, and why.
        over_start: The objective's metric beside that of the present settings.
        over_default: The same beside the version's own; None where they cannot start.
        evidence: Rows of each knob around what is advised.
        checks: Whether the gain holds elsewhere; none where nothing changes.
        headroom: How much more load it takes; None without an SLO.
        replicas: How many today's load needs in all; None without an SLO.
        stretch: Requests of which the search, its evidence and its checks are; None
            where that is the whole trace.
        is_whole: All figures but those of the search are of the whole trace; else nothing
            is, as somebody had enough before.
        withdrawn: A setting that did better here, and worse elsewhere; None for none.
        load: Of which everything but ``headroom``, ``replicas`` and ``today`` is, as a
            multiple of today's: below 1 where no setting keeps the SLO at that.
        today: The present settings at today's load, where everything is of another.
        was_stopped: Somebody had enough, or a process was killed.
        num_trials: Settings that were tried.
    """

    question: Question
    advice: Advice
    start: Trial
    default: Trial | None
    screened: Screened
    over_start: MetricResult
    over_default: MetricResult | None
    evidence: dict[str, list[Row]] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    headroom: Headroom | None = None
    replicas: Replicas | None = None
    stretch: slice | None = None
    is_whole: bool = True
    withdrawn: dict[str, Any] | None = None
    load: float = 1.0
    today: Trial | None = None
    was_stopped: bool = False
    num_trials: int = 0

    @property
    def knobs(self) -> dict[str, Any]:
        """The advised value of every knob of the space."""
        return {**self.question.start, **self.advice.knobs}

    @property
    def is_kept(self) -> bool:
        """Whether the present settings are advised."""
        return self.knobs == self.question.start
