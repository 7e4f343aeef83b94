"""Whether an offload tier under the pool is large enough, and of any use."""

import math

from results.findings.finding import Finding
from results.findings.fit import more_blocks
from results.findings.hits import Prompts, Saving
from results.findings.option import has_option
from results.findings.run_view import RunView, percent
from results.naming import number_of
from results.offload import OffloadTraffic
from results.queueing import MIN_REQUESTS

MAX_TIER_GIB = 1024
"""Of a common server's memory; more is no advice."""

GOOD_RATE = 0.1
"""Share of prompt tokens whose hits are worth turning a knob for."""

MIN_BLAME = 0.5
"""Share of the missed hits that lost blocks must account for to be their cause."""

MIN_FORCED_SHARE = 0.05
"""Of the time of steps. Less is not felt."""


def find_offload(run: RunView) -> list[Finding]:
    """A tier that lost what was needed again, gave nothing, or made steps wait."""
    if not run.has_tier or not run.is_admitted.any() or not len(run.steps):
        return []
    traffic = OffloadTraffic.of(run.steps)
    return [
        *(_tier_small(run, traffic) or _unused(run, traffic)),
        *_forced_stores(run),
    ]


def tier_for_all(run: RunView, prompts: Prompts) -> str:
    """A tier that holds every prompt block there was, as a remedy; "" without one."""
    if not has_option(run, "kv_offloading_size"):
        return ""
    num_blocks = prompts.num_distinct_blocks(run.block_size)
    gib = math.ceil(run.tier_gib(num_blocks))
    if gib > MAX_TIER_GIB:
        return (
            f"--kv-offloading-size finds more the larger it is; all {num_blocks:,} blocks"
            f" of these prompts would take {gib:,} GiB of host memory"
        )
    return (
        f"--kv-offloading-size {gib}, GiB of host memory, would hold all {num_blocks:,}"
        " blocks of these prompts; less may do"
    )


def _tier_small(run: RunView, traffic: OffloadTraffic) -> list[Finding]:
    """Hits missed because the tier gave up, or never took, what they needed."""
    if not run.info.trace["has_sharing"]:
        return []
    prompts = Prompts.of(run)
    findable = prompts.findable_in_tier(run.block_size)
    missed = findable - prompts.num_hit_tokens
    num_blocks = prompts.num_distinct_blocks(run.block_size)
    num_lost = max(traffic.num_stored, num_blocks) - traffic.num_kept
    is_cause = num_lost * run.block_size >= MIN_BLAME * missed
    if prompts.is_below(GOOD_RATE, missed) or not is_cause:
        return []
    return [
        Finding(
            code="offload_tier_small",
            severity="warning" if Saving.of(run, missed).is_worth_it else "info",
            message=f"{prompts.percent(prompts.num_hit_tokens)} of prompt tokens were"
            f" hits where {prompts.percent(findable)} could have been: the"
            f" {run.num_cpu_blocks:,} blocks of the offload tier could not keep"
            f" {num_lost:,} of those that prompts filled",
            advice=tier_for_all(run, prompts),
        )
    ]


def _unused(run: RunView, traffic: OffloadTraffic) -> list[Finding]:
    """Only of a whole run: what is stored now may be wanted later."""
    is_short = not run.info.complete or len(run.requests) < MIN_REQUESTS
    if is_short or traffic.num_loaded or not traffic.num_stored:
        return []
    why = "whatever was hit was still in the GPU's blocks"
    if not run.requests.total("num_cached_tokens"):
        why = "no prompt found anything"
    return [
        Finding(
            code="offload_unused",
            severity="info",
            message=f"{number_of(traffic.num_stored, 'block')},"
            f" {run.tier_gib(traffic.num_stored):.1f} GiB, went to the offload tier and"
            f" none came back: {why}",
            advice="leave --kv-offloading-size out: for this load it frees"
            f" {run.tier_gib(run.num_cpu_blocks):.1f} GiB of host memory and costs"
            " nothing",
        )
    ]


def _forced_stores(run: RunView) -> list[Finding]:
    """Blocks were wanted while they were still being copied to the tier."""
    share = run.swap_share
    if share < MIN_FORCED_SHARE:
        return []
    num_forced = run.steps.total("num_forced_stores")
    copies = "1 copy" if num_forced == 1 else f"{num_forced:,} copies"
    return [
        Finding(
            code="forced_stores",
            severity="warning",
            message=f"{percent(share)} of the time of steps went into waiting for"
            f" {copies} to the offload tier whose blocks were given to others meanwhile",
            advice=f"{more_blocks(run)}; or leave --kv-offloading-size out",
        )
    ]
