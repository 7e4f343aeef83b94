"""Which requests stayed inside the service level, and whether the whole run did."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from results.columns import BoolArray, Columns, FloatArray
from results.latency import RequestLatency, inter_token_gaps, request_latency
from results.measured import NotMeasuredError, if_measured
from results.statistics import statistic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A limit of one statistic over the whole run, as ``ttft_p99=5s``.

    Attributes:
        metric: ``ttft``, ``tpot``, ``itl``, ``e2e`` or ``queue``.
        statistic: ``mean``, ``max``, or a percentile as ``p99`` or ``p99.9``.
        limit_s: Seconds that it may come to.
    """

    metric: str
    statistic: str
    limit_s: float

    @property
    def name(self) -> str:
        """As it is written in ``--slo``."""
        return f"{self.metric}_{self.statistic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits of a single request in seconds, None where there is none; and conditions.

    Attributes:
        ttft_s: Time to the first token.
        tpot_s: Time per output token after the first.
        itl_s: Mean time between tokens. A single request's gaps are not recorded, so
            this is its TPOT.
        e2e_s: Time to the last token.
        conditions: Limits on statistics of the whole run.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    conditions: tuple[Condition, ...] = ()

    def limits(self) -> Iterator[tuple[str, float]]:
        """Limits of a single request that were set, by the latency's name."""
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            limit = getattr(self, name)
            if limit is not None:
                yield name, limit

    def to_dict(self) -> dict[str, float]:
        """All limits that were set, ``ttft_s`` and ``ttft_p99_s`` alike."""
        conditions = {f"{c.name}_s": c.limit_s for c in self.conditions}
        return dict(self.limits()) | conditions

    @classmethod
    def from_dict(cls, limits: Mapping[str, float]) -> "Slo":
        """The limits that :meth:`to_dict` wrote."""
        single = {name: s for name, s in limits.items() if name.count("_") == 1}
        return cls(
            ttft_s=single.get("ttft_s"),
            tpot_s=single.get("tpot_s"),
            itl_s=single.get("itl_s"),
            e2e_s=single.get("e2e_s"),
            conditions=tuple(
                Condition(
                    metric=name.split("_")[0], statistic=name.split("_")[1], limit_s=s
                )
                for name, s in limits.items()
                if name not in single
            ),
        )


def count_good(requests: Columns, slo: Slo) -> int:
    """Number of requests that finished with no latency above its limit.

    Source: vLLM ``benchmarks/serve.py``: a limit that is met exactly is met, and an
    output of one token meets every TPOT limit.
    """
    return int(is_good(request_latency(requests), slo).sum())


def is_good(latency: RequestLatency, slo: Slo) -> BoolArray:
    """Which finished requests are inside every limit, ``(num_finished,)``.

    Raises:
        NotMeasuredError: One of the latencies is not known.
    """
    good = np.ones(len(latency.e2e_s), dtype=bool)
    for name, limit in slo.limits():
        if name in latency.unmeasured:
            raise NotMeasuredError(name.removesuffix("_s"))
        good &= ~(getattr(latency, name) > limit)
    return good


def judge_conditions(requests: Columns, steps: Columns, slo: Slo) -> list[dict[str, Any]]:
    """What each condition came to, and whether it was met.

    A statistic that nothing gave a sample for is None, and so is whether it was met.
    """
    latency = request_latency(requests)
    judged = []
    for condition in slo.conditions:
        value = if_measured(partial(_value_of, condition, latency, steps))
        judged.append(
            {
                "name": condition.name,
                "limit_s": condition.limit_s,
                "value_s": value,
                "met": None if value is None else value <= condition.limit_s,
            }
        )
    return judged


def _value_of(
    condition: Condition, latency: RequestLatency, steps: Columns
) -> float | None:
    return statistic_of(condition.statistic, *_samples(condition.metric, latency, steps))


def _samples(
    metric: str, latency: RequestLatency, steps: Columns
) -> tuple[FloatArray, FloatArray | None]:
    """Values and how often each occurred; ITL is that of all tokens."""
    if metric == "itl":
        return inter_token_gaps(steps)
    return getattr(latency, f"{metric}_s"), None
