"""What a run did to each request, so that the same requests can be set side by side."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray
from results.goodput import Slo, is_good
from results.latency import is_finished, request_latency
from results.measured import if_measured
from results.rows import IntArray

LATENCIES = ("ttft", "tpot", "e2e", "queue")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSamples:
    """Values of each request of a trace, in file order.

    Attributes:
        values: By name, ``(num_requests,)`` each. ``ttft``, ``tpot``, ``e2e`` and
            ``queue`` are seconds, NaN where a request did not finish or has none.
            ``recomputed_tokens``, ``preemptions`` and ``finished`` (0 or 1) are counts;
            the first two are there only if they were measured. ``good`` is 1 where the
            request met its SLO, and there only if one was set and can be judged.
        num_requests: Requests of the trace.
    """

    values: Mapping[str, FloatArray]
    num_requests: int

    @classmethod
    def of(
        cls, requests: Columns, num_requests: int, slo: Slo | None
    ) -> "RequestSamples":
        """The values of a run's records, wherever in the trace each belongs.

        Args:
            requests: Columns of ``RequestRecord``; a run that broke off may lack some.
            num_requests: Requests of the trace.
            slo: Limits of single requests, if any.
        """
        place = requests["request_id"].astype(np.int64)
        done = is_finished(requests)
        latency = request_latency(requests)
        values = {}
        for name in LATENCIES:
            seconds = getattr(latency, f"{name}_s")
            values[name] = _placed(seconds, place[done], num_requests, np.nan)
        counts = {"finished": done.astype(np.float64)}
        for name in ("recomputed_tokens", "preemptions"):
            if requests.has(f"num_{name}"):
                counts[name] = requests[f"num_{name}"]
        good = None if slo is None else if_measured(lambda: is_good(latency, slo))
        if good is not None:
            counts["good"] = np.zeros(len(requests))
            counts["good"][done] = good
        for name, each in counts.items():
            values[name] = _placed(each, place, num_requests, 0.0)
        return cls(values=values, num_requests=num_requests)


def _placed(
    values: FloatArray, place: IntArray, num_requests: int, missing: float
) -> FloatArray:
    """The values, each at the place of its request, ``(num_requests,)``."""
    whole = np.full(num_requests, missing)
    whole[place] = values
    return whole
