"""How a run ended, and what it did not give."""

import numpy as np

from results.findings.failure import failure
from results.findings.finding import Finding
from results.findings.fit import larger_pool, more_blocks
from results.findings.rule import findings_of
from results.findings.run_view import RunView
from results.latency import is_finished
from results.naming import number_of
from results.record import RequestStatus
from results.run_info import MEASURED_KINDS, Ending

ENDS_OF_ENGINE = (
    "vllm_would_die",
    "no_progress",
    "swap_space_short",
    "recompute_several",
    "recompute_first_sample",
    *MEASURED_KINDS,
)
"""Codes of findings that say that the engine ended there, or vLLM's would have."""


def find_ending(run: RunView) -> list[Finding]:
    """Why a run broke off, outputs that were cut, blocks that were lost."""
    return findings_of(run, _broken_off, _cut_outputs, _lost_blocks)


def _broken_off(run: RunView) -> list[Finding]:
    outcome = run.info.outcome
    if outcome.kind in MEASURED_KINDS:
        return [failure(run)]
    if outcome.ending is Ending.DIED:
        return [
            Finding(
                code="vllm_would_die",
                severity="error",
                message=f"vLLM's engine would end here: {outcome.message}",
                advice="--no-enable-chunked-prefill (--enable-chunked-prefill=False in"
                " vLLM), or n = 1; a larger --max-num-batched-tokens only makes it rarer",
            )
        ]
    if outcome.ending is Ending.STUCK:
        return [
            Finding(
                code="no_progress",
                severity="error",
                message=f"nothing could progress: {outcome.holders}{_lost(run)}",
                advice=_way_on(run),
            )
        ]
    return []


def _lost(run: RunView) -> str:
    num_lost = run.info.outcome.num_lost_blocks
    return f", {num_lost:,} blocks lost to the pool" if num_lost else ""


def _way_on(run: RunView) -> str:
    """What would let a run go on in which nothing could."""
    left = run.requests.is_equal("status", RequestStatus.FAILED)
    largest = 1 if run.is_v1 else int(run.requests["n"][left].max(initial=1))
    if largest > run.most_seqs:
        return f"--max-num-seqs {largest}, as a request has n = {largest}"
    was_swapped = len(run.steps) and run.steps["num_swapped"][-1] > 0
    if was_swapped and run.knob("enable_chunked_prefill"):
        longest = int(run.requests["num_prompt_tokens"][left].max(initial=1))
        return (
            "--no-enable-chunked-prefill (--enable-chunked-prefill=False in vLLM), or"
            f" --max-num-batched-tokens {longest}: a prompt that was swapped out half"
            " computed comes back only if its whole rest fits into a step"
        )
    lower = ", or a lower --watermark" if run.num_watermark_blocks else ""
    return f"{larger_pool(run)}{lower}"


def _cut_outputs(run: RunView) -> list[Finding]:
    requests = run.requests
    wanted = requests["num_prompt_tokens"] + (
        requests["num_requested_tokens"] / requests["n"]
    )
    cut = requests["num_output_tokens"] < requests["num_requested_tokens"]
    num_cut = int(np.sum(cut & is_finished(requests)))
    if not num_cut:
        return []
    if run.info.is_measured:
        return [_ended_early(num_cut)]
    limit = run.known("max_model_len")
    return [
        Finding(
            code="outputs_cut",
            severity="info",
            message=f"{number_of(num_cut, 'request')} reached max_model_len"
            f" ({limit:,} tokens) before all their output",
            advice=_room_for_outputs(run, int(wanted[cut].max())),
        )
    ]


def _ended_early(num_cut: int) -> Finding:
    """A real engine stops where its model says so, too, unless it is told not to."""
    return Finding(
        code="outputs_cut",
        severity="info",
        message=f"{number_of(num_cut, 'request')} ended before all the output that was"
        " asked for: at the model's own end of text, or at max_model_len",
        advice="outputs of another length are another load; ignore_eos makes a server go"
        " on to the length asked for, and a longer --max-model-len holds it",
    )


def _room_for_outputs(run: RunView, wanted: int) -> str:
    longest = run.knob("longest_model_len")
    if longest is not None and wanted > longest:
        return f"the model takes {longest:,} tokens at most: ask for shorter outputs"
    return f"--max-model-len {wanted} holds the longest"


def _lost_blocks(run: RunView) -> list[Finding]:
    num_lost = run.info.outcome.num_lost_blocks
    if not num_lost:
        return []
    return [
        Finding(
            code="blocks_lost",
            severity="warning",
            message=f"{num_lost:,} blocks were lost to the pool by the end, as vLLM's v0"
            " loses them when a group can never be swapped in, or when the last of"
            " several samples is recomputed",
            advice=f"a pool in which nothing is preempted: {more_blocks(run)}",
        )
    ]
