"""What a search makes small: requests outside the SLO, time per token, or a latency."""

from dataclasses import dataclass, field
from enum import StrEnum

from harness.workload import Workload
from results.comparison.arm import ArmRun
from results.goodput import Slo
from results.record import RequestRecord, RequestStatus

NS_PER_S = 1e9

LOST_S = 3600.0
"""What a request that never finished counts for, in a mean of latencies."""

CLOSENESS = 0.01
"""What being at its limits counts for a request, beside missing them: it orders settings
that miss as few."""

ENDED = 1e6
"""Of an engine that would not have lasted, or cannot start: above any other loss."""


class ObjectiveName(StrEnum):
    """What is wanted most."""

    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a search makes small, as one number of a run: its loss.

    ``goodput``: the share of requests outside the limits of a single request, and a
    little for coming close to them. ``ttft``, ``tpot``: the mean, in seconds.
    ``throughput``: seconds from the first arrival to the last finish, for each token
    generated. A condition on the whole run that is missed, as ``ttft_p99=5s``, adds the
    share by which it is missed, and 1.

    Attributes:
        name: Which.
        slo: Limits; ``goodput`` needs some of a single request, or conditions.
    """

    name: ObjectiveName
    slo: Slo | None = None

    def of_request(self, record: RequestRecord) -> float:
        """What a request that left adds to the sum behind the loss, if it is one."""
        if self.name is ObjectiveName.THROUGHPUT:
            return 0.0
        is_finished = record.status is RequestStatus.FINISHED
        if self.name is ObjectiveName.GOODPUT:
            return self._outside(record) if is_finished else 1.0 + CLOSENESS
        if not is_finished:
            return LOST_S
        return self._latency_s(record, self.name)

    def _outside(self, record: RequestRecord) -> float:
        """1 outside the limits, and up to ``CLOSENESS`` inside them."""
        assert self.slo is not None, "goodput has limits"
        worst = 0.0
        for name, limit in self.slo.limits():
            worst = max(worst, self._latency_s(record, name.removesuffix("_s")) / limit)
        return CLOSENESS * worst if worst <= 1 else 1.0 + CLOSENESS

    def _latency_s(self, record: RequestRecord, name: str) -> float:
        """A latency as ``results.latency`` defines it; 0 for the TPOT of one token."""
        assert record.finished_ns is not None, "it finished"
        assert record.first_token_ns is not None, "it finished"
        if name == "ttft":
            return (record.first_token_ns - record.arrival_ns) / NS_PER_S
        if name == "e2e":
            return (record.finished_ns - record.arrival_ns) / NS_PER_S
        later = record.max_sample_tokens - 1
        decode_s = (record.finished_ns - record.first_token_ns) / NS_PER_S
        return decode_s / later if later > 0 else 0.0

    def of_conditions(self, run: ArmRun) -> float:
        """What missed conditions add."""
        goodput = run.summary["goodput"]
        missed = 0.0
        for condition in goodput["conditions"] if goodput else ():
            value = condition["value_s"]
            if value is None or value > condition["limit_s"]:
                excess = 1.0 if value is None else value / condition["limit_s"] - 1
                missed += 1.0 + excess
        return missed


@dataclass(slots=True)
class RunningLoss:
    """The loss of a run under way, which only grows: the least that it will come to.

    Attributes:
        objective: Of what.
        workload: The requests.
    """

    objective: Objective
    workload: Workload
    _sum: float = field(default=0.0, init=False)
    _last_ns: int = field(default=0, init=False)
    _num_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._num_tokens = max(1, int(self.workload.output_tokens.sum()))

    def add(self, record: RequestRecord) -> None:
        """A request left."""
        self._sum += self.objective.of_request(record)
        self._last_ns = max(self._last_ns, record.finished_ns or 0)

    @property
    def least(self) -> float:
        """What the loss comes to if nothing adds to it any more."""
        if self.objective.name is ObjectiveName.THROUGHPUT:
            return self._last_ns / NS_PER_S / self._num_tokens
        return self._sum / max(1, len(self.workload))

    def of(self, run: ArmRun) -> float:
        """The loss of the run, now that it has ended."""
        if run.trouble:
            return ENDED
        loss = self.least
        if self.objective.name is ObjectiveName.THROUGHPUT:
            rate = run.summary["throughput"]["output_token_per_s"]
            loss = 1 / rate if rate else ENDED
        return loss + self.objective.of_conditions(run)
