"""A whole comparison: each arm beside the baseline, with verdict, reason and causes."""

from collections.abc import Sequence
from dataclasses import dataclass

from results.comparison.arm import Arm, differing_knobs
from results.comparison.arm_verdict import verdict_of_arm
from results.comparison.chain import Chain, Split, chains, is_cause_known, split_of_e2e
from results.comparison.compare import Comparer
from results.comparison.metric import METRICS, Metric
from results.comparison.verdict import MetricResult, Verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmResult:
    """An arm beside the baseline.

    Attributes:
        arm: Which.
        differs: Knobs that are not the baseline's, without those that follow from others.
        verdict: What is said of it as a whole.
        reason: Why, as a sentence.
        metrics: Each metric that one of both has; none where the arm could not start.
        chains: What moved together, from cause to effect.
        is_cause_known: Whether links of chains follow from one another for sure.
        split: Where the difference in mean E2E lies; None where that is not known.
    """

    arm: Arm
    differs: Sequence[str]
    verdict: Verdict
    reason: str
    metrics: Sequence[MetricResult] = ()
    chains: Sequence[Chain] = ()
    is_cause_known: bool = False
    split: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Arms beside one baseline.

    Attributes:
        baseline: It has run.
        arms: The others, in their order.
    """

    baseline: Arm
    arms: Sequence[ArmResult]


def compare_arms(
    baseline: Arm, arms: Sequence[Arm], extra: Sequence[Metric] = ()
) -> Comparison:
    """Set arms beside a baseline.

    Args:
        baseline: It has run.
        arms: The others; some may not have been able to start.
        extra: Metrics besides ``METRICS`` that somebody asked for.
    """
    comparer = Comparer(baseline)
    metrics = list(dict.fromkeys((*METRICS, *extra)))
    results = [_arm_result(comparer, arm, metrics) for arm in arms]
    return Comparison(baseline=baseline, arms=results)


def _arm_result(comparer: Comparer, arm: Arm, metrics: Sequence[Metric]) -> ArmResult:
    base = comparer.baseline
    differs = differing_knobs(base, arm)
    if not arm.runs:
        verdict, reason = Verdict.NOT_TESTED, f"it could not start: {arm.error}"
        return ArmResult(arm=arm, differs=differs, verdict=verdict, reason=reason)
    results = comparer.compare(arm, metrics)
    verdict, reason = verdict_of_arm(base, arm, results)
    return ArmResult(
        arm=arm,
        differs=differs,
        verdict=verdict,
        reason=reason,
        metrics=results,
        chains=chains(results),
        is_cause_known=is_cause_known(differs),
        split=split_of_e2e(base, arm),
    )
