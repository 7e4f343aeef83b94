"""A file's own statistics beside those of its records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray
from results.latency import inter_token_gaps, request_latency
from results.measured import if_measured
from results.statistics import statistic_of

MAX_SHARE = 0.01
MAX_S = 1e-4
"""How far both may be apart before it is said: rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A statistic as the file has it, and as its records give it.

    Attributes:
        name: As ``ttft_p99``.
        file_s: Seconds, of the file.
        rows_s: Seconds, of its records; None where these do not tell.
        between_s: Values of its records between which a percentile lies; clients differ
            in how they choose there.
    """

    name: str
    file_s: float
    rows_s: float | None
    between_s: tuple[float, float] | None = None

    @property
    def agrees(self) -> bool:
        """Whether both say the same, as far as there are two."""
        if self.rows_s is None:
            return True
        low, high = self.between_s or (self.rows_s, self.rows_s)
        margin = max(MAX_S, MAX_SHARE * self.file_s)
        return low - margin <= self.file_s <= high + margin


def beside(
    reported_s: Mapping[str, float], requests: Columns, steps: Columns
) -> list[Reported]:
    """Each statistic of the file beside what its records say.

    Standard deviations, which a summary has none of, are left out.
    """
    found = []
    for name, file_s in reported_s.items():
        metric, _, statistic = name.partition("_")
        if statistic != "std":
            values = _values(metric, requests, steps)
            found.append(
                Reported(
                    name=name,
                    file_s=file_s,
                    rows_s=statistic_of(statistic, values),
                    between_s=_neighbours(statistic, values),
                )
            )
    return found


def note_of(found: Sequence[Reported]) -> str:
    """That some disagree, and which; empty where all agree."""
    apart = [each for each in found if not each.agrees]
    if not apart:
        return ""
    named = "; ".join(
        f"{each.name} {1000 * each.file_s:.4g} ms, of its records"
        f" {1000 * (each.rows_s or 0.0):.4g} ms"
        for each in apart[:3]
    )
    more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
    return f"the file's own statistics are not those of its records: {named}{more}"


def _values(metric: str, requests: Columns, steps: Columns) -> FloatArray:
    """What it is a statistic of, seconds; NaN where a request has none."""
    if metric == "itl":
        gaps, counts = if_measured(lambda: inter_token_gaps(steps)) or _NO_GAPS
        return np.repeat(gaps, counts.astype(np.int64))
    values: FloatArray = getattr(request_latency(requests), f"{metric}_s")
    return values[~np.isnan(values)]


_NO_GAPS = (np.zeros(0), np.zeros(0))


def _neighbours(statistic: str, values: FloatArray) -> tuple[float, float] | None:
    """The values on both sides of a percentile; None for other statistics."""
    if not statistic.startswith("p") or not len(values):
        return None
    percentage = float(statistic[1:])
    low = np.percentile(values, percentage, method="lower")
    return float(low), float(np.percentile(values, percentage, method="higher"))
