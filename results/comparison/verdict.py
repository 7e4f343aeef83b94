"""Whether a difference is one: verdicts, and what they rest on."""

from dataclasses import dataclass
from enum import StrEnum

from results.comparison.interval import Interval
from results.comparison.metric import Metric

LEAST_CHANGE = 0.01
"""Of a figure; what is less nobody would set a flag for."""

LEAST_BARE_CHANGE = 0.05
"""Of a latency that has no interval, which would tell chance from it."""

LEAST_SHARE = 0.005
"""Of a share: half a point."""


class Evidence(StrEnum):
    """What a difference rests on.

    ``EXACT``: two simulated figures, which a repeat would show again. ``REQUESTS``: the
    same requests in two simulated runs; the interval is that of other such requests.
    ``REPEATS``: measured runs; the interval is that of other repeats. ``SINGLE``: one
    measured run, which tells nothing of others.
    """

    EXACT = "exact"
    REQUESTS = "requests"
    REPEATS = "repeats"
    SINGLE = "single"


Values = tuple[float | None, float | None]
"""Of the baseline and of an arm; None where it has none."""


class Verdict(StrEnum):
    """What is said of a metric, or of an arm; ``MIXED`` of an arm only."""

    BETTER = "better"
    WORSE = "worse"
    MIXED = "mixed"
    SAME = "no difference found"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """A metric in one arm beside the baseline.

    Attributes:
        metric: Which.
        values: Of the baseline and of the arm; None where it has none.
        difference: Arm less baseline; None where one of them has none.
        interval: Between which bounds the difference may lie; None where it is exact, or
            where that is not known.
        evidence: What it rests on; None where there is no difference.
        verdict: Never ``MIXED``.
        reason: Why, in a few words.
    """

    metric: Metric
    values: Values
    difference: float | None
    interval: Interval | None
    evidence: Evidence | None
    verdict: Verdict
    reason: str

    @property
    def relative(self) -> float | None:
        """The difference as a share of the baseline's figure; None where that is 0."""
        return relative_to(self.values[0], self.difference)

    @property
    def is_judged(self) -> bool:
        """Whether it was found better or worse."""
        return self.verdict in (Verdict.BETTER, Verdict.WORSE)


def relative_to(base: float | None, difference: float | None) -> float | None:
    """The difference as a share of the figure that it is from."""
    return difference / abs(base) if base and difference is not None else None


def judge(
    metric: Metric, base: float, difference: float, interval: Interval | None
) -> tuple[Verdict, str]:
    """The verdict on a difference, and why.

    Args:
        metric: What differs.
        base: The baseline's figure.
        difference: Arm less baseline.
        interval: None where the difference is exact.
    """
    change = describe_change(metric, base, difference)
    if difference == 0 and (interval is None or interval == (0.0, 0.0)):
        return Verdict.SAME, "the same in both"
    if interval is not None and interval[0] <= 0 <= interval[1]:
        if relative_to(base, difference) is None:
            return Verdict.SAME, f"{change}, which may be chance"
        least = describe_change(metric, base, (interval[1] - interval[0]) / 2)
        return Verdict.SAME, f"{change}; below {least.lstrip('+')} is chance here"
    if is_small(metric, base, difference, is_bare=interval is None):
        return Verdict.SAME, f"{change}, too little to count"
    is_better = (difference > 0) == metric.is_more_better
    return (Verdict.BETTER if is_better else Verdict.WORSE), change


def is_small(metric: Metric, base: float, difference: float, *, is_bare: bool) -> bool:
    """Whether a difference from the baseline's figure is too small to count.

    Args:
        metric: What differs.
        base: The baseline's figure.
        difference: Arm less baseline.
        is_bare: Whether it has no interval.
    """
    if metric.outcome == "finished":
        return difference == 0  # a request that is lost counts
    if metric.unit == "share":
        return abs(difference) < LEAST_SHARE
    relative = relative_to(base, difference)
    least = LEAST_BARE_CHANGE if is_bare and metric.is_latency else LEAST_CHANGE
    return difference == 0 if relative is None else abs(relative) < least


def describe_change(metric: Metric, base: float, difference: float) -> str:
    """The difference in points of a share, or in percent of the baseline's figure."""
    if metric.unit == "share":
        return f"{difference * 100:+.1f} points"
    relative = relative_to(base, difference)
    if relative is None:
        return f"from 0 to {difference:,.6g}"
    return f"{relative * 100:+.{1 if abs(relative) < 0.0995 else 0}f} %"
