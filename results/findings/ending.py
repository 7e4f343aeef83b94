"""How a run ended, and what it did not give."""

import numpy as np

from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.latency import is_finished
from results.naming import number_of
from results.run_info import Ending


def find_ending(run: RunView) -> list[Finding]:
    """Why a run broke off, outputs that were cut, blocks that were lost."""
    return [*_broken_off(run), *_cut_outputs(run), *_lost_blocks(run)]


def _broken_off(run: RunView) -> list[Finding]:
    outcome = run.info.outcome
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
                message=f"nothing could progress: {outcome.holders}",
                advice="give the pool more blocks, lower --watermark, or raise"
                " --max-num-seqs above the largest n",
            )
        ]
    return []


def _cut_outputs(run: RunView) -> list[Finding]:
    requests = run.requests
    cut = requests["num_output_tokens"] < requests["num_requested_tokens"]
    num_cut = int(np.sum(cut & is_finished(requests)))
    if not num_cut:
        return []
    limit = run.knob("max_model_len")
    return [
        Finding(
            code="outputs_cut",
            severity="info",
            message=f"{number_of(num_cut, 'request')} reached max_model_len"
            f" ({limit:,} tokens) before all their output",
            advice="raise --max-model-len if the model allows it",
        )
    ]


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
            advice="a larger pool, so that nothing is preempted",
        )
    ]
