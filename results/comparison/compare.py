"""Arms beside their baseline: every metric's difference, and what it is worth."""

from collections.abc import Sequence

from results.comparison.arm import (
    Arm,
    has_other_blocks,
    has_other_load,
    has_same_requests,
)
from results.comparison.difference import (
    PairedRequests,
    interval_of_repeats,
    share_finished_in_one,
)
from results.comparison.interval import Interval
from results.comparison.metric import FEWEST_BEYOND, METRICS, Metric
from results.comparison.verdict import (
    Evidence,
    MetricResult,
    Values,
    Verdict,
    judge,
)

MOST_FINISHED_IN_ONE = 0.01
"""Share of requests; latencies of more are those of other requests."""


class Comparer:
    """Sets arms beside one baseline.

    Args:
        baseline: What the others are compared with; it has run.
    """

    def __init__(self, baseline: Arm) -> None:
        self.baseline = baseline
        self._pairs = PairedRequests(baseline.run.samples.num_requests)

    def compare(
        self, arm: Arm, metrics: Sequence[Metric] = METRICS
    ) -> list[MetricResult]:
        """The metrics of an arm that has run; what neither side has is left out."""
        results = [self.result(arm, metric) for metric in metrics]
        return [result for result in results if result.values != (None, None)]

    def result(self, arm: Arm, metric: Metric) -> MetricResult:
        """One metric of an arm that has run."""
        values = self.baseline.value(metric), arm.value(metric)
        base, value = _with_zeros(metric, values, (self.baseline, arm))
        if base is None or value is None:
            return MetricResult(
                metric=metric,
                values=values,
                difference=None,
                interval=None,
                evidence=None,
                verdict=Verdict.NOT_TESTED,
                reason=self._lacking(arm, values),
            )
        interval, evidence = None, Evidence.EXACT
        if None not in values:
            interval, evidence = self._support(arm, metric)
        verdict, reason = judge(metric, base, value - base, interval)
        if why_not := self._why_not(arm, metric):
            verdict, reason = Verdict.NOT_TESTED, why_not
        return MetricResult(
            metric=metric,
            values=values,
            difference=value - base,
            interval=interval,
            evidence=evidence,
            verdict=verdict,
            reason=reason,
        )

    def _lacking(self, arm: Arm, values: Values) -> str:
        sides = zip((self.baseline, arm), values, strict=True)
        return f"n/a in {' and '.join(side.name for side, v in sides if v is None)}"

    def _support(self, arm: Arm, metric: Metric) -> tuple[Interval | None, Evidence]:
        """Between which bounds the difference may lie, and what says so."""
        if not (self.baseline.is_simulated and arm.is_simulated):
            interval = interval_of_repeats(self.baseline, arm, metric)
            return interval, Evidence.SINGLE if interval is None else Evidence.REPEATS
        if metric.sample and has_same_requests(self.baseline, arm):
            interval = self._pairs.interval(self.baseline, arm, metric)
            return interval, Evidence.EXACT if interval is None else Evidence.REQUESTS
        return None, Evidence.EXACT

    def _why_not(self, arm: Arm, metric: Metric) -> str:
        """Why a difference says nothing of the arm; empty where it does."""
        sides = self.baseline, arm
        if not has_same_requests(*sides):
            return "other requests"
        if cut := [side.name for side in sides if side.is_cut_short]:
            return f"{' and '.join(cut)} did not come to its end"
        if metric.name != "finished" and (lost := [s.name for s in sides if s.trouble]):
            return f"{' and '.join(lost)} {'do' if len(lost) > 1 else 'does'} not last"
        if any(not side.is_simulated and len(side.runs) == 1 for side in sides):
            return "one measured run does not tell what others would show"
        if metric.unit == "blocks" and has_other_blocks(*sides):
            return "blocks of another size"
        if metric.outcome == "throughput" and has_other_load(*sides):
            return "another load"
        if metric.outcome == "throughput" and all(side.keeps_up for side in sides):
            return "both serve what arrives"
        return self._why_not_of_latency(arm, metric) if metric.is_latency else ""

    def _why_not_of_latency(self, arm: Arm, metric: Metric) -> str:
        num_requests = self.baseline.run.samples.num_requests
        if metric.statistic not in ("", "mean", "p50"):
            num_beyond = metric.num_beyond(num_requests)
            if num_beyond < FEWEST_BEYOND:
                return f"too few requests beyond it: {num_beyond:.2g}"
        if self.baseline.is_simulated and arm.is_simulated:
            share = share_finished_in_one(self.baseline, arm)
            if share > MOST_FINISHED_IN_ONE:
                return f"{share:.0%} of the requests finished in one only"
        return ""


def _with_zeros(metric: Metric, values: Values, arms: tuple[Arm, Arm]) -> Values:
    """0 in place of None where nothing could have been there, as swaps in v1."""
    if not metric.is_zero_without or values == (None, None):
        return values
    first, second = (
        0.0 if value is None and _can_have_none(metric, arm) else value
        for value, arm in zip(values, arms, strict=True)
    )
    return first, second


def _can_have_none(metric: Metric, arm: Arm) -> bool:
    """Whether None means that there was none: of a real engine it may not be known."""
    info = arm.run.info
    if arm.is_simulated:
        return True
    if metric.path[0] == "counts":  # swaps and copies on write
        return info.policy == "v1"
    is_on = info.config["enable_prefix_caching"] is not False
    has_tier = info.config["num_cpu_blocks"] != 0
    return not (is_on and (has_tier or metric.name != "offload_hit_tokens"))
