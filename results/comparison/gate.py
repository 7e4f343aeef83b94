"""Conditions on a comparison, for scripts: ``ttft_p99>+10%`` is not to happen."""

import math
from dataclasses import dataclass
from enum import StrEnum

from results.comparison.metric import Metric
from results.comparison.verdict import Evidence, MetricResult, Verdict


class Of(StrEnum):
    """What a condition looks at."""

    VALUE = "value"
    CHANGE = "change"
    RELATIVE_CHANGE = "relative change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What must not happen.

    Attributes:
        text: As it was written.
        metric: Whose.
        of: The arm's figure, its change from the baseline, or that as a share.
        is_above: Whether more than the limit is what must not be; else less.
        limit: In the metric's unit, or a share.
    """

    text: str
    metric: Metric
    of: Of
    is_above: bool
    limit: float

    @property
    def forbids_improvement(self) -> bool:
        """Whether only a change to the better fails it, which may be a slip."""
        return self.of is not Of.VALUE and self.is_above == self.metric.is_more_better


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a condition in one arm.

    Attributes:
        condition: Which.
        arm: Name of the arm.
        result: The condition's metric there; None for an arm that could not start.
        value: What the condition looked at; None where there is none, infinite for a
            share of 0.
        failed: What must not happen did, or nobody can tell.
        is_chance: It seems to have happened, but repeats do not support it.
    """

    condition: Condition
    arm: str
    result: MetricResult | None
    value: float | None
    failed: bool
    is_chance: bool = False


def judge_condition(
    condition: Condition, arm: str, result: MetricResult | None
) -> Judgement:
    """Whether a condition failed in an arm.

    A simulated difference is exact and counts as it is. Of measured repeats a change must
    be more than chance besides. What has no figure fails: nobody can tell that it holds.
    """
    value = None if result is None else _looked_at(condition, result)
    if result is None or value is None:
        return Judgement(
            condition=condition, arm=arm, result=result, value=None, failed=True
        )
    limit = condition.limit
    is_beyond = value > limit if condition.is_above else value < limit
    is_chance = (
        is_beyond
        and condition.of is not Of.VALUE
        and result.evidence is Evidence.REPEATS
        and result.verdict is Verdict.SAME
    )
    return Judgement(
        condition=condition,
        arm=arm,
        result=result,
        value=value,
        failed=is_beyond and not is_chance,
        is_chance=is_chance,
    )


def _looked_at(condition: Condition, result: MetricResult) -> float | None:
    if condition.of is Of.VALUE:
        return result.values[1]
    if result.difference is None or condition.of is Of.CHANGE or not result.difference:
        return result.difference
    if result.relative is None:
        return math.copysign(math.inf, result.difference)
    return result.relative
