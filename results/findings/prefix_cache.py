"""Whether prefix caching finds what prompts share, and whether that is worth anything."""

import numpy as np

from results.findings.finding import Finding
from results.findings.fit import larger_pool
from results.findings.hits import Prompts, Saving
from results.findings.offload import tier_for_all
from results.findings.run_view import RunView, percent
from results.queueing import MIN_REQUESTS

MIN_RATE = 0.01
"""Share of prompt tokens below which hits are as good as none."""

GOOD_RATE = 0.1
"""Share of prompt tokens whose hits are worth turning a knob for."""

MIN_BLAME = 0.5
"""Share of the missed hits that evictions must account for to be their cause."""

MAX_GPUS = 8
"""Of a common server; more memory than that is no advice."""

SMALLER_BLOCK_SIZES = {"v0": (16, 8), "v1": (16,)}
"""What v0 offers below its largest, 32, and attention backends of v1 below larger ones
(see ``harness/config``)."""


def find_prefix_cache(run: RunView) -> list[Finding]:
    """The one thing to say of hits: why there are few, or that there could be some."""
    if not run.is_admitted.any():
        return []
    if not run.info.trace["has_sharing"]:
        return _no_sharing_information(run) if run.info.is_caching else []
    prompts = Prompts.of(run)
    if not len(prompts.tokens):
        return []
    if not run.info.is_caching:
        return _would_help(run, prompts)
    shared = prompts.findable_tokens(1)
    if prompts.is_below(MIN_RATE, shared):
        return _nothing_shared(run, prompts)
    saving = Saving.of(run, shared)
    if prompts.is_below(MIN_RATE, prompts.findable_tokens(run.block_size)):
        return _below_a_block(run, prompts, saving)
    if not saving.is_worth_it:
        return _cannot_pay(run, prompts, saving)
    return _evicted(run, prompts)


def _no_sharing_information(run: RunView) -> list[Finding]:
    num_requests = int(run.is_admitted.sum())
    return [
        Finding(
            code="no_sharing_information",
            severity="info",
            message=f"the trace does not say which of its {num_requests:,} prompts begin"
            " alike, so each ran as if it were like no other: what prefix caching would"
            " find is not known, which is not 0",
            advice="a trace that names what prompts consist of, by hash ids or segments,"
            " shows it (docs/traces.md)",
        )
    ]


def _nothing_shared(run: RunView, prompts: Prompts) -> list[Finding]:
    """Only of a whole trace, and unless recomputation finds what it had computed."""
    found_again = run.requests.total("num_recompute_cached_tokens")
    too_few = len(prompts.tokens) < MIN_REQUESTS or not run.info.complete
    if too_few or not prompts.is_below(MIN_RATE, found_again):
        return []
    shared = prompts.percent(prompts.findable_tokens(1))
    return [
        Finding(
            code="nothing_shared",
            severity="info",
            message=f"the {len(prompts.tokens):,} prompts hardly begin alike: {shared} of"
            " their tokens began an earlier prompt as well, so there is nothing for"
            " prefix caching to find",
            advice=_cost_of_nothing(run),
        )
    ]


def _cost_of_nothing(run: RunView) -> str:
    """What prefix caching costs that finds nothing."""
    if run.is_v1:
        return (
            "none needed: v1 has it on because it costs next to nothing then (less than"
            " 1 % of throughput; vLLM blog on V1, January 2025)"
        )
    return (
        "leave --enable-prefix-caching out: where nothing is shared it costs a little"
        " (ShareGPT, Llama 7B on an A100: 8.55 requests/s with it, 8.71 without; vLLM PR"
        " 2762)"
    )


def _cannot_pay(run: RunView, prompts: Prompts, saving: Saving) -> list[Finding]:
    """Only of a whole trace whose blocks would fit into the pool unshared as well.

    Not of v1, which has prefix caching on where it does not pay, too.
    """
    too_few = len(prompts.tokens) < MIN_REQUESTS or not run.info.complete
    if run.is_v1 or too_few or not run.prefill_share or not _fits_unshared(run):
        return []
    shared = prompts.percent(prompts.findable_tokens(1))
    return [
        Finding(
            code="caching_cannot_pay",
            severity="info",
            message=f"{shared} of the prompt tokens began an earlier prompt as well, but"
            f" computing prompts takes so little that finding them all saves {saving}",
            advice="leave --enable-prefix-caching out: the pool holds this traffic"
            " without sharing blocks as well",
        )
    ]


def _fits_unshared(run: RunView) -> bool:
    """Whether all sequences of each step would find blocks of their own."""
    steps = run.steps
    grown = steps["num_decode_seqs"] * (steps["num_steps"] - 1)
    blocks = (steps["num_context_tokens"] + grown) / run.block_size
    blocks += steps["num_decode_seqs"]  # each may end in a block that is partly filled
    most = blocks.max(initial=0)
    return bool(most <= run.num_gpu_blocks - run.num_watermark_blocks)


def _below_a_block(run: RunView, prompts: Prompts, saving: Saving) -> list[Finding]:
    if not prompts.is_below(MIN_RATE, prompts.num_hit_tokens):
        return []
    median, most = np.percentile(prompts.shared, [50, 90])
    return [
        Finding(
            code="prefixes_below_a_block",
            severity="warning" if saving.is_worth_it else "info",
            message=f"prompts begin alike for {median:,.0f} tokens in the median and"
            f" {most:,.0f} in the 90th percentile, too few for whole blocks of"
            f" {run.block_size} that a prefill could skip (never its last):"
            f" {prompts.percent(prompts.num_hit_tokens)} of prompt tokens were hits",
            advice=_smaller_blocks(run, prompts, saving),
        )
    ]


def _smaller_blocks(run: RunView, prompts: Prompts, saving: Saving) -> str:
    """The block sizes that would hit, with what they would find, if that is anything."""
    off = "none needed" if run.is_v1 else "leave --enable-prefix-caching out"
    if not saving.is_worth_it:
        return f"{off}: finding all that prompts share would save {saving}"
    would_hit = []
    for size in SMALLER_BLOCK_SIZES[run.info.policy]:
        findable = prompts.findable_tokens(size)
        if size < run.block_size and not prompts.is_below(MIN_RATE, findable):
            would_hit.append(f"{size} could find {prompts.percent(findable)}")
    if would_hit:
        return f"--block-size {', '.join(would_hit)} of prompt tokens"
    smallest = SMALLER_BLOCK_SIZES[run.info.policy][-1]
    return (
        f"{off}: even blocks of {smallest} tokens, the smallest there are, are too large"
    )


def _evicted(run: RunView, prompts: Prompts) -> list[Finding]:
    """Hits missed because what they needed had been given up for other blocks.

    With an offload tier that is for the tier to hold, see ``offload_tier_small``.
    """
    findable = prompts.findable_tokens(run.block_size)
    missed = findable - prompts.num_hit_tokens
    if run.has_tier:
        return []
    if not run.steps.has("num_regretted_evictions"):
        return _missed(run, prompts)
    regretted = run.steps.total("num_regretted_evictions")
    again = regretted * run.block_size
    if prompts.is_below(GOOD_RATE, missed) or again < MIN_BLAME * missed:
        return []
    saving = Saving.of(run, min(again, missed))
    num_evictions = run.steps.total("num_evictions")
    return [
        Finding(
            code="prefixes_evicted",
            severity="warning" if saving.is_worth_it else "info",
            message=f"{prompts.percent(prompts.num_hit_tokens)} of prompt tokens were"
            f" hits where {prompts.percent(findable)} could have been:"
            f" {regretted:,} of {num_evictions:,} evicted blocks were needed again,"
            f" {again:,} tokens that were computed once more",
            advice=tier_for_all(run, prompts)
            or _room_for_all(run, num_evictions - regretted),
        )
    ]


def _missed(run: RunView, prompts: Prompts) -> list[Finding]:
    """Hits that a real engine missed, which does not say what it gave up for what."""
    findable = prompts.findable_tokens(run.block_size)
    if prompts.is_below(GOOD_RATE, findable - prompts.num_hit_tokens):
        return []
    return [
        Finding(
            code="hits_missed",
            severity="info",
            message=f"{prompts.percent(prompts.num_hit_tokens)} of prompt tokens were"
            f" hits where {prompts.percent(findable)} could have been in a cache without"
            " limit; what was evicted and needed again, the engine does not tell",
            advice=f"{tier_for_all(run, prompts) or larger_pool(run)}; --engine sim shows"
            " of the same trace how many blocks were needed again",
        )
    ]


def _room_for_all(run: RunView, num_blocks: int) -> str:
    """A pool with so many blocks more, which holds everything that was ever cached."""
    if run.gib(num_blocks) > MAX_GPUS * run.knob("gpu_memory_gib"):
        return (
            f"{larger_pool(run)} finds more, but {MAX_GPUS} such GPUs would not hold all"
            " that was cached"
        )
    return (
        f"{larger_pool(run, run.num_gpu_blocks + num_blocks)}: then nothing would be"
        " evicted, and fewer may do"
    )


def _would_help(run: RunView, prompts: Prompts) -> list[Finding]:
    findable = prompts.findable_tokens(run.block_size)
    if prompts.is_below(GOOD_RATE, findable) or not Saving.of(run, findable).is_worth_it:
        return []
    advice = "--enable-prefix-caching"
    if run.knob("enable_chunked_prefill") and not run.is_v1:
        advice += " --enable-chunked-prefill (vLLM's v0 does not chunk by itself then)"
    if run.steps.total("num_swap_in_blocks") and prompts.num_repeated(run.block_size):
        advice += ", once nothing is swapped: where both meet, vLLM's v0 can spoil text"
    return [
        Finding(
            code="prefix_caching_would_help",
            severity="info",
            message=f"prompts begin alike: up to {prompts.percent(findable)} of their"
            f" {prompts.num_tokens:,.0f} tokens could be hits, and computing prompts"
            f" takes {percent(run.prefill_share)} of the time of all steps",
            advice=advice,
        )
    ]
