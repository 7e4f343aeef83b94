"""What a search makes small: requests outside the SLO, time per token, or a latency."""

from dataclasses import dataclass, field

import numpy as np

from harness.tuning.choice import ObjectiveName
from harness.workload import Workload
from results.columns import FloatArray
from results.comparison.arm import ArmRun
from results.comparison.samples import RequestSamples
from results.comparison.verdict import LEAST_CHANGE, LEAST_SHARE
from results.goodput import Slo
from results.record import RequestRecord, RequestStatus

NS_PER_S = 1e9

LOST_S = 1e5
"""What a request that never finished counts for, in a mean of latencies: more than a day,
longer than any that finished is likely to have waited."""

CLOSENESS = 0.01
"""What being at its limits counts for a request, beside missing them: it orders settings
that miss as few."""

BEYOND = 0.001
"""What being far outside its limits counts for a request, besides: it orders settings
with which none is inside."""

MISSED = 1e6
"""Of a condition on the whole run that is missed: more than all that requests come to."""

ENDED = 1e9
"""Of an engine that would not have lasted, or cannot start: above any other loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a search makes small, as one number of a run: its loss.

    ``goodput``: the share of requests outside the limits of a single request, and a
    little for coming close to them, or for going far beyond. ``ttft``, ``tpot``: the
    mean, in seconds. ``throughput``: seconds from the first arrival to the last finish,
    for each token generated. In these a request that does not finish counts ``LOST_S``.
    Conditions on the whole run, as ``ttft_p99=5s``, come first: each that is missed adds
    ``MISSED``, and up to as much again, the further it is missed.

    Attributes:
        name: Which.
        slo: Limits; ``goodput`` needs some of a single request, or conditions.
    """

    name: ObjectiveName
    slo: Slo | None = None

    def of_request(self, record: RequestRecord) -> float:
        """What a request that left adds to the sum behind the loss."""
        is_finished = record.status is RequestStatus.FINISHED
        if self.name is ObjectiveName.GOODPUT:
            return self._outside(record) if is_finished else 1.0 + CLOSENESS + BEYOND
        if not is_finished:
            return LOST_S
        if self.name is ObjectiveName.THROUGHPUT:
            return 0.0
        return self._latency_s(record, self.name)

    def of_samples(self, samples: RequestSamples) -> FloatArray:
        """About what each request added to the loss, ``(num_requests,)``.

        0 for ``throughput``; NaN where a request has no such figure.
        """
        if self.name is ObjectiveName.THROUGHPUT:
            return np.zeros(samples.num_requests)
        if self.name is not ObjectiveName.GOODPUT:
            return samples.values[self.name.value]
        return 1.0 - samples.values["good"]

    def no_tie_above(self, loss: float) -> float:
        """A loss such that no run with a larger one does as well as a run with this one.

        Half a point of goodput is no change that counts, nor 1 % of another figure; see
        ``is_small``. Two runs with as many requests inside the limits may differ by how
        close these come.
        """
        if self.name is ObjectiveName.GOODPUT:
            return loss + LEAST_SHARE + CLOSENESS
        return loss / (1 - LEAST_CHANGE)

    def _outside(self, record: RequestRecord) -> float:
        """Up to ``CLOSENESS`` inside the limits; outside 1 more, and up to ``BEYOND``."""
        assert self.slo is not None, "goodput has limits"
        worst = 0.0
        for name, limit in self.slo.limits():
            latency_s = self._latency_s(record, name.removesuffix("_s"))
            worst = max(worst, latency_s / limit)
        if worst <= 1:
            return CLOSENESS * worst
        return 1 + CLOSENESS + BEYOND * (1 - 1 / worst)

    def _latency_s(self, record: RequestRecord, name: str) -> float:
        """A latency as ``results.latency`` defines it; 0 for the TPOT of one token."""
        assert record.finished_ns is not None, "it finished"
        assert record.first_token_ns is not None, "it finished"
        ttft_s = (record.first_token_ns - record.arrival_ns) / NS_PER_S
        if name == "ttft":
            return ttft_s
        e2e_s = (record.finished_ns - record.arrival_ns) / NS_PER_S
        if name == "e2e":
            return e2e_s
        later = record.max_sample_tokens - 1
        return (e2e_s - ttft_s) / later if later > 0 else 0.0

    def of_conditions(self, run: ArmRun) -> float:
        """What missed conditions add: for each 1, and the share of its value above it."""
        goodput = run.summary["goodput"]
        missed = 0.0
        for condition in goodput["conditions"] if goodput else ():
            if condition["met"] is False:  # None where nothing gave a sample
                missed += 2.0 - condition["limit_s"] / condition["value_s"]
        return MISSED * missed


@dataclass(slots=True)
class RunningLoss:
    """The loss of a run under way, which only grows: the least that it will come to.

    Attributes:
        objective: Of what.
        workload: The requests.
        rival: What each request added in another run, ``(num_requests,)``; None for none.
        by_request: What each request that left added, ``(num_requests,)``.
        behind: How much more than in the other run those that left have added, as a part
            of the loss; 0 without one.
    """

    objective: Objective
    workload: Workload
    rival: FloatArray | None = None
    by_request: FloatArray = field(init=False)
    behind: float = field(default=0.0, init=False)
    _sum: float = field(default=0.0, init=False)
    _num_left: int = field(default=0, init=False)
    _first_ns: int | None = field(default=None, init=False)
    _last_ns: int | None = field(default=None, init=False)
    _num_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._num_tokens = int(self.workload.output_tokens.sum())
        self.by_request = np.zeros(len(self.workload))

    def add(self, record: RequestRecord) -> None:
        """A request left; tokens that it did not bring are not to come any more."""
        added = self.objective.of_request(record)
        self._sum += added
        self._num_left += 1
        self.by_request[record.request_id] = added
        if self.rival is not None:
            more = added - float(self.rival[record.request_id])
            self.behind += more / len(self.workload)
        first_ns, last_ns = self._first_ns, self._last_ns
        if first_ns is None or record.arrival_ns < first_ns:
            self._first_ns = record.arrival_ns
        self._num_tokens -= record.num_requested_tokens
        if record.status is RequestStatus.FINISHED and record.finished_ns is not None:
            self._last_ns = max(last_ns or 0, record.finished_ns)
            self._num_tokens += record.num_output_tokens

    @property
    def least(self) -> float:
        """What the loss comes to if nothing adds to it any more."""
        of_requests = self._sum / max(1, len(self.workload))
        if self.objective.name is not ObjectiveName.THROUGHPUT or self._last_ns is None:
            return of_requests
        assert self._first_ns is not None, "what finished has arrived"
        duration_s = (self._last_ns - self._first_ns) / NS_PER_S
        return of_requests + duration_s / max(1, self._num_tokens)

    @property
    def share_left(self) -> float:
        """Of the requests, those that left."""
        return self._num_left / max(1, len(self.workload))

    @property
    def likely(self) -> float:
        """What the loss comes to if all that is to come is like what was."""
        return self.least * len(self.workload) / max(1, self._num_left)

    def of(self, run: ArmRun) -> float:
        """The loss of the run, now that it has ended."""
        if run.trouble:
            return ENDED
        return self.least + self.objective.of_conditions(run)
