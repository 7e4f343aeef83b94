"""What v1's engine adds to the kernels, fitted to published servers.

Run from the repository root: ``.venv/bin/python benchmarks/fit_overhead.py``. Prints the
figures of ``profiles.engine_overhead.V1``, and how far the fitted rows are off. Every
other row of ``published_servers.FITTED`` is fitted, by TPOT and, where the source's load
is known, by TTFT; the others are left for benchmarks/fidelity.py.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from published_servers import Published, bundled
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from profiles.engine_overhead import EngineOverhead

Array = npt.NDArray[np.float64]

NAMES = (
    "layer_ns", "step_ns", "seq_ns", "shared_seq_ns", "rank_ns", "request_ns",
)  # fmt: skip
START = np.array([2e4, 5e5, 2.5e4, 2.5e4, 5e4, 1.8e7])
SPREAD = {"ttft": 0.10, "tpot": 0.04}
"""Relative errors of like size count alike: TTFT is a mean over fewer figures."""


def overhead(figures: Array, row: Published) -> EngineOverhead:
    """The figures as a row's engine has them."""
    named = dict(zip(NAMES, (round(value) for value in figures), strict=True))
    added = EngineOverhead(**named)
    if row.served.config.async_scheduling:
        return replace(added, step_ns=0, rank_ns=0)
    return added


def errors(rows: Sequence[Published], figures: Array) -> Array:
    """Log errors over their spread, of TTFT and TPOT of each row.

    A source's rows on a GPU together count as much as another's, however many they are.
    """
    num_alike = Counter((row.group, row.gpu) for row in rows)
    found = []
    for row in rows:
        latency = row.served.replayed(overhead=overhead(figures, row))
        ttft_s, tpot_s = row.served.measured_s
        share = len(rows) / len(num_alike) / num_alike[row.group, row.gpu]
        found.append(np.log(latency.tpot_s / tpot_s) / SPREAD["tpot"] * share**0.5)
        if row.has_ttft:
            found.append(np.log(latency.ttft_s / ttft_s) / SPREAD["ttft"] * share**0.5)
    return np.array(found)


def full_batches() -> list[Published]:
    """Every other saturated row of 8B, by TPOT: their batches are full on one GPU.

    Without them what a sequence costs on one GPU is told by few rows.
    """
    saturated = [
        replace(row, has_ttft=False)
        for row in bundled()
        if row.group == "8B at a rate"
        and row.is_saturated
        and row.row["prefix_caching"] == "off"
    ]
    return saturated[::2]


def main() -> None:
    """Fit and print."""
    rows = [row for row in bundled() if row.is_fitted]
    rows += full_batches()

    def residuals(scaled: Array) -> Array:
        found = errors(rows, scaled * START)
        print(f"{np.median(np.abs(found)):.3f}", end=" ", flush=True, file=sys.stderr)
        return found

    best = least_squares(
        residuals,
        np.ones(len(START)),
        bounds=(0, 20),
        loss="soft_l1",
        diff_step=0.05,
        max_nfev=8,
    )
    for name, value in zip(NAMES, best.x * START, strict=True):
        print(f"{name} = {round(value, -2 if value < 1e6 else -5):,.0f}")
    print(f"{len(rows)} rows, median error {np.median(np.abs(best.fun)):.2f} spreads")


if __name__ == "__main__":
    main()
