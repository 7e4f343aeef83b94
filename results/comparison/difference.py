"""A metric in two arms: how far it is apart, and between which bounds that may lie."""

from collections.abc import Sequence

import numpy as np

from results.columns import FloatArray
from results.comparison.arm import Arm
from results.comparison.interval import (
    NUM_BLOCKS,
    Interval,
    Mean,
    RequestResampling,
    mean_of_runs,
    paired_interval,
    share_apart,
    unpaired_interval,
)
from results.comparison.metric import STATISTICS, Metric


def interval_of_repeats(base: Arm, other: Arm, metric: Metric) -> Interval | None:
    """Of the difference between means over repeats; None where one run is all there is.

    A simulated run is as good as many.
    """
    means = [_mean(arm.values(metric), arm.is_simulated) for arm in (base, other)]
    if any(mean.num_runs == 1 for mean in means):
        return None
    interval = unpaired_interval(*means)
    if metric.unit == "share":
        return share_apart(means[0].value, interval)
    return interval


def _mean(values: Sequence[float | None], is_simulated: bool) -> Mean:
    known = [value for value in values if value is not None]
    if is_simulated:
        return Mean(value=known[0], error=0.0, num_runs=None)
    return mean_of_runs(known)


class PairedRequests:
    """Intervals of differences between simulated runs of the same requests.

    Args:
        num_requests: Requests of the trace; so few that no block has one tell nothing of
            others, and there is no interval.
    """

    def __init__(self, num_requests: int) -> None:
        self._resampling = None
        if num_requests >= NUM_BLOCKS:
            self._resampling = RequestResampling(num_requests)
        self._drawn: dict[tuple[str, bytes], dict[str, FloatArray]] = {}

    def interval(self, base: Arm, other: Arm, metric: Metric) -> Interval | None:
        """Where the difference may lie with other requests of the same kind."""
        if self._resampling is None:
            return None
        sides = [arm.run.samples.values[metric.sample] for arm in (base, other)]
        drawn = [self._resampled(self._resampling, metric, side) for side in sides]
        values = [metric.of_samples(side) for side in sides]
        assert values[0] is not None, "an arm without the metric has no difference"
        assert values[1] is not None, "an arm without the metric has no difference"
        is_share = metric.unit == "share"
        return paired_interval(values[0], values[1], *drawn, is_share=is_share)

    def _resampled(
        self, resampling: RequestResampling, metric: Metric, values: FloatArray
    ) -> FloatArray:
        """The metric in each resample; a baseline is asked for it again and again."""
        drawn = self._drawn.setdefault((metric.sample, values.tobytes()), {})
        if metric.statistic not in drawn:
            names = {metric.statistic: None}
            if metric.is_latency:  # one sorting serves all
                names |= dict.fromkeys(STATISTICS)
            found = resampling.statistics(values, list(names))
            drawn.update(zip(names, found, strict=True))
        return drawn[metric.statistic]


def share_finished_in_one(base: Arm, other: Arm) -> float:
    """Share of the requests that finished in one of two simulated runs only."""
    finished = [arm.run.samples.values["finished"] for arm in (base, other)]
    return float(np.mean(finished[0] != finished[1])) if len(finished[0]) else 0.0
