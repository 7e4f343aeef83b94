"""From cause to effect: metrics that move together, link by link, and where time went."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from results.columns import FloatArray
from results.comparison.arm import Arm, has_same_requests
from results.comparison.verdict import MetricResult

CHAINS = (
    ("hit_tokens", "prefill_tokens", "queue_mean", "ttft_mean"),
    ("prefill_tokens", "tpot_mean", "e2e_mean"),
    ("mean_usage", "preemptions", "recomputed_tokens", "e2e_mean"),
    ("swap_out_blocks", "tpot_mean", "e2e_mean"),
)
"""Each metric by what it acts on: what is not computed delays nobody, in the queue or in
a step; blocks that are there save preemptions, and these repeated work."""

MEMORY_KNOBS = frozenset(
    (
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "kv_cache_gib",
        "kv_offloading_size",
        "num_cpu_blocks",
        "num_gpu_blocks",
        "preemption_mode",
        "swap_space",
        "watermark",
    )
)
"""What decides which blocks there are and whose they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Metrics of which each acts on the next.

    Attributes:
        links: Their results, as far as each moved the same way as the one before: all
            better, or all worse.
        broken_by: The first that did not follow; None where all did.
    """

    links: Sequence[MetricResult]
    broken_by: MetricResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where the difference in mean E2E lies, seconds; the three add up to it.

    Attributes:
        queue_s: From the scheduler's queue to the first batch.
        prefill_s: The rest of TTFT: entering the server, and computing the prompt.
        decode_s: From the first token to the last.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


def chains(results: Sequence[MetricResult]) -> list[Chain]:
    """Those that at least two links hold together."""
    by_name = {result.metric.name: result for result in results}
    found = []
    for names in CHAINS:
        links = [by_name[name] for name in names if name in by_name]
        if len(links) < len(names):
            continue
        num_held = _num_held(links)
        if num_held >= 2:
            rest = links[num_held:]
            broken_by = rest[0] if rest else None
            found.append(Chain(links=links[:num_held], broken_by=broken_by))
    return found


def _num_held(links: Sequence[MetricResult]) -> int:
    """How many links from the first on moved, all to the better or all to the worse."""
    if not links or not links[0].is_judged:
        return 0
    for place, (cause, effect) in enumerate(pairwise(links), start=1):
        if effect.verdict is not cause.verdict:
            return place
    return len(links)


def split_of_e2e(base: Arm, other: Arm) -> Split | None:
    """Where the difference in mean E2E lies, over requests that finished in both.

    None for arms of other requests, for measured ones, where one does not last, and where
    none finished.
    """
    if not (base.is_simulated and other.is_simulated and has_same_requests(base, other)):
        return None
    if any(side.trouble or side.is_cut_short for side in (base, other)):
        return None
    sides = [arm.run.samples.values for arm in (base, other)]
    both = np.isfinite(sides[0]["e2e"]) & np.isfinite(sides[1]["e2e"])
    if not both.any():
        return None

    def mean_change(name: str) -> float:
        change: FloatArray = sides[1][name][both] - sides[0][name][both]
        return float(change.mean())

    queue_s, ttft_s = mean_change("queue"), mean_change("ttft")
    return Split(
        queue_s=queue_s,
        prefill_s=ttft_s - queue_s,
        decode_s=mean_change("e2e") - ttft_s,
    )


def is_cause_known(differing: Sequence[str]) -> bool:
    """Whether all knobs that differ act on blocks and hits, and on nothing else.

    Otherwise what moves together need not follow from one another.
    """
    return bool(differing) and set(differing) <= MEMORY_KNOBS
