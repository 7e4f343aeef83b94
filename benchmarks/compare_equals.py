"""How often compare calls equals unequal: the share of false verdicts, and of found ones.

Run from the repository root: ``.venv/bin/python benchmarks/compare_equals.py [PAIRS]``.
Two arms serve the same requests through one server, each with service noise of its own,
so that no difference between them is real; then one of them is really faster, so that
there is something to find. Verdicts are those of ``blockbench compare``.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from results.columns import FloatArray
from results.comparison.arm import Arm, ArmRun
from results.comparison.compare import Comparer
from results.comparison.metric import METRICS, Metric, metric_named
from results.comparison.samples import RequestSamples
from results.comparison.verdict import MetricResult
from results.run_info import Ending, Outcome, RunInfo

NUM_PAIRS = 1000
SEED = 20251129

NOISE = 0.1
"""Of a single service: standard deviation as a share of its mean."""

DRIFT = 0.02
"""Of a measured run: how much the whole of it is faster or slower than others."""

NUM_REPEATS = 5
FASTER = 0.1
"""By how much services are shorter where there is something to find."""

TTFT = [m for s in ("mean", "p50", "p99") if (m := metric_named(f"ttft_{s}"))]
OUTCOMES = [m for m in METRICS if m.outcome and not m.name.startswith("itl")]

Pair = tuple[Arm, Arm]


def waits(gaps: FloatArray, services: FloatArray) -> FloatArray:
    """How long each request waits for a single server, by Lindley's recursion.

    Source: Lindley, "The theory of queues with a single server", Mathematical Proceedings
    of the Cambridge Philosophical Society 48 (1952): wait = max(0, wait before + service
    before - gap), which is a walk above its lowest point so far.
    """
    walk = np.concatenate(([0.0], np.cumsum(services[:-1] - gaps[1:])))
    lowest: FloatArray = np.minimum.accumulate(walk)
    return walk - lowest


def simulated_pairs(
    num_pairs: int, *, load: float, num_requests: int, faster: float = 0.0
) -> Iterator[Pair]:
    """Pairs of simulated arms that serve the same requests, in noise of their own.

    Args:
        num_pairs: How many.
        load: Mean service per mean gap between arrivals.
        num_requests: Of each trace.
        faster: Share by which the second arm's services are shorter.
    """
    rng = np.random.default_rng(SEED)
    for _ in range(num_pairs):
        gaps = rng.exponential(1.0, num_requests)
        services = rng.exponential(load, num_requests)
        base, other = (
            arm(name, "simulated", [_served(rng, gaps, services * speed)])
            for name, speed in (("base", 1.0), ("other", 1.0 - faster))
        )
        yield base, other


def measured_pairs(
    num_pairs: int, *, load: float = 0.6, num_requests: int = 200, faster: float = 0.0
) -> Iterator[Pair]:
    """The same of ``NUM_REPEATS`` measured runs a side, each with a drift of its own."""
    rng = np.random.default_rng(SEED)
    for _ in range(num_pairs):
        gaps = rng.exponential(1.0, num_requests)
        services = rng.exponential(load, num_requests)
        base, other = (
            arm(
                name,
                "measured",
                [
                    _served(rng, gaps, services * speed * rng.normal(1.0, DRIFT))
                    for _ in range(NUM_REPEATS)
                ],
            )
            for name, speed in (("base", 1.0), ("other", 1.0 - faster))
        )
        yield base, other


def _served(
    rng: np.random.Generator, gaps: FloatArray, services: FloatArray
) -> dict[str, FloatArray]:
    """What a run does to each request; decoding takes ten mean services."""
    noisy = services * rng.normal(1.0, NOISE, len(services)).clip(min=0.0)
    queue = waits(gaps, noisy)
    tpot = float(services.mean()) * rng.normal(1.0, NOISE, len(services)).clip(min=0.0)
    ttft = queue + noisy
    return {
        "ttft": ttft,
        "tpot": tpot,
        "e2e": ttft + 10 * tpot,
        "queue": queue,
        "finished": np.ones(len(services)),
        "good": (ttft < 2.0).astype(np.float64),
        "ends": np.cumsum(gaps) + ttft + 10 * tpot,
    }


def arm(name: str, source: str, served: Sequence[dict[str, FloatArray]]) -> Arm:
    """An arm of runs that did this to their requests, one dict of samples a run."""
    num_requests = len(served[0]["ttft"])
    info = RunInfo(
        source=source,
        engine="sim" if source == "simulated" else "vllm",
        policy="v1",
        config={"enable_prefix_caching": False, "max_concurrency": 64},
        trace={"num_requests": num_requests, "num_skipped": 0, "duration_s": 1.0},
        outcome=Outcome(ending=Ending.COMPLETE),
    )
    runs = [
        ArmRun(
            info=info,
            summary=_summary(values),
            samples=RequestSamples(values=values, num_requests=num_requests),
        )
        for values in served
    ]
    return Arm(name=name, config=info.config, runs=runs)


def _summary(values: dict[str, FloatArray]) -> dict[str, object]:
    """What the metrics read there that are no statistics over requests."""
    per_s = len(values["ttft"]) / float(values["ends"].max())
    rates = {"request": per_s, "output_token": 11 * per_s, "total_token": 111 * per_s}
    return {
        "findings": [],
        "steady": None,
        "counts": {"finished": len(values["ttft"])},
        "throughput": {f"{name}_per_s": rate for name, rate in rates.items()},
    }


def judged(pair: Pair, metrics: Sequence[Metric]) -> list[MetricResult]:
    """The metrics in which compare finds the second arm better or worse."""
    base, other = pair
    results = Comparer(base).compare(other, metrics)
    return [result for result in results if result.is_judged]


def share_judged(pairs: Iterator[Pair], metrics: Sequence[Metric]) -> float:
    """Share of pairs in which any of the metrics is called better or worse."""
    return float(np.mean([bool(judged(pair, metrics)) for pair in pairs]))


def print_row(what: str, false: float, found: float, num_pairs: int) -> None:
    """Print what was seen of one kind of pairs, and how well the first share is known."""
    error = math.sqrt(false * (1 - false) / num_pairs)
    print(f"{what:<38} {false:>7.1%} ± {error:.1%} {found:>9.1%}")


def main() -> None:
    """Print both shares for a few loads and lengths, and for measured repeats."""
    num_pairs = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_PAIRS
    print(f"{num_pairs:,} pairs a row; any of {', '.join(m.name for m in TTFT)}")
    print(f"{'simulated':<38} {'equals':>14} {f'{FASTER:.0%} less':>9}")
    for load in (0.6, 0.9):
        for num_requests in (200, 1000, 5000):
            pairs_of = partial(
                simulated_pairs, num_pairs, load=load, num_requests=num_requests
            )
            false = share_judged(pairs_of(), TTFT)
            found = share_judged(pairs_of(faster=FASTER), TTFT)
            print_row(f"load {load}, {num_requests:,} requests", false, found, num_pairs)
    print(f"\nmeasured, any of {len(OUTCOMES)} outcomes")
    false = share_judged(measured_pairs(num_pairs), OUTCOMES)
    found = share_judged(measured_pairs(num_pairs, faster=FASTER), OUTCOMES)
    print_row(f"{NUM_REPEATS} repeats a side", false, found, num_pairs)


if __name__ == "__main__":
    main()
