"""Which requests stayed inside the service level that was asked for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from results.latency import request_latency
from results.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits of a single request in seconds; None means no limit.

    Attributes:
        ttft_s: Time to the first token.
        tpot_s: Time per output token after the first.
        itl_s: Mean time between tokens. A single request's gaps are not recorded, so
            this is its TPOT.
        e2e_s: Time to the last token.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def to_dict(self) -> dict[str, float]:
        """The limits that were set."""
        return {name: limit for name, limit in asdict(self).items() if limit is not None}


def count_good(requests: Sequence[RequestRecord], slo: Slo) -> int:
    """Number of requests that finished with no latency above its limit.

    Source: vLLM ``benchmarks/serve.py``: a limit that is met exactly is met, and an
    output of one token meets every TPOT limit.
    """
    latency = request_latency(requests)
    good = np.ones(len(latency.e2e_s), dtype=bool)
    for name, limit in slo.to_dict().items():
        good &= ~(getattr(latency, name) > limit)
    return int(good.sum())
