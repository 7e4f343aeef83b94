"""What a run records: one row a request, one row a stretch of equal steps."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RequestStatus(StrEnum):
    """How a request ended.

    ``FINISHED`` produced all its tokens. ``REJECTED`` was refused before it ran (too long
    for the pool or for a limit). ``ABORTED`` ran and was dismissed. ``FAILED`` was still
    unfinished when the run ended.
    """

    FINISHED = "finished"
    REJECTED = "rejected"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(slots=True)
class RequestRecord:
    """One request of the trace, from arrival to its last token.

    Times are nanoseconds since the run began; ``None`` means it never came to that.

    Attributes:
        request_id: Position of the request in the workload (file order, from 0).
        arrival_ns: When the request reached the server, or was to reach it (TTFT and E2E
            begin).
        queued_ns: When the scheduler had it (queue time begins), which is later by what
            the server takes; when it was refused, if the server did that.
        num_prompt_tokens: Tokens of the prompt.
        num_output_tokens: Tokens generated, over all samples.
        n: Number of samples (parallel sampling).
        max_sample_tokens: Tokens of the longest sample; TPOT divides by this less one.
        first_scheduled_ns: When a batch first contained it (queue time ends).
        first_token_ns: When its first token existed.
        finished_ns: When its last token existed or it was dismissed; ``None`` if the run
            ended before.
        num_cached_tokens: Prompt tokens whose computation was skipped at the first
            admission. 0 without prefix caching.
        num_offload_cached_tokens: Of these, tokens that came from the offload tier.
        num_recompute_cached_tokens: Tokens skipped at admissions after a preemption.
        num_recomputed_tokens: Tokens that had been computed before a preemption and were
            computed again; those found in the cache excluded.
        num_preemptions: Times it was preempted, by recompute or swap.
        num_requested_tokens: Output tokens that the trace asks for, over all samples.
        num_demand_blocks: Blocks that it holds at its full length when it shares none
            with other requests; its samples share the full blocks of the prompt.
        num_shared_tokens: Leading prompt tokens with which an earlier request of the
            trace began as well, in v1 its output included: what a GPU cache without
            limit could find. ``None`` where the trace does not say.
        num_shared_prompt_tokens: The same for the prompts of earlier requests alone:
            what an offload tier without limit could find.
        status: How it ended.
        reason: Why it was rejected or aborted, as a word for scripts, or why it failed;
            else ``""``.
    """

    request_id: int
    arrival_ns: int
    queued_ns: int
    num_prompt_tokens: int
    n: int = 1
    num_output_tokens: int = 0
    max_sample_tokens: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    num_cached_tokens: int = 0
    num_offload_cached_tokens: int = 0
    num_recompute_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_requested_tokens: int = 0
    num_demand_blocks: int = 0
    num_shared_tokens: int | None = None
    num_shared_prompt_tokens: int | None = None
    status: RequestStatus = RequestStatus.FAILED
    reason: str = ""


@dataclass(slots=True)
class StepRecord:
    """A stretch of ``num_steps`` steps that ran the same batch.

    Within a stretch each step's duration exceeds the one before by the same amount, so
    two durations describe them all: ``first_step_ns`` and ``last_step_ns``. With
    asynchronous scheduling "after scheduling" is the moment at which the step begins,
    when those have left whose last tokens the step before brought.

    Attributes:
        start_ns: When the first step began.
        end_ns: When the last step ended.
        num_steps: Steps in the stretch, at least 1.
        first_step_ns: Duration of the first step.
        last_step_ns: Duration of the last step.
        swap_ns: Part of the first step in which it waited for swaps, or for copies to
            the offload tier, 0 for the others.
        num_prefill_tokens: Tokens that prefills computed (a stretch with any has one
            step).
        num_recomputed_tokens: Of these, tokens that had been computed before a
            preemption.
        num_cached_tokens: Tokens that prefills found in the cache and skipped.
        num_prefill_seqs: Sequences being prefilled.
        num_decode_seqs: Sequences that decode, each one token a step.
        num_context_tokens: Tokens that those sequences attend to in the first step.
        num_admitted: Requests that left the waiting queue to run.
        num_running: Requests in the running queue after scheduling.
        num_waiting: Requests in the waiting queue after scheduling.
        num_swapped: Requests swapped out after scheduling.
        num_used_blocks: GPU blocks held by sequences after the first scheduling.
        num_used_blocks_end: The same at the end of the stretch, before frees.
        num_used_tokens: Token slots filled in those blocks after the first scheduling,
            blocks shared by several sequences counted once.
        num_cached_blocks: Free GPU blocks whose content could still be reused, after the
            first scheduling.
        num_cached_blocks_end: The same at the end of the stretch, before frees.
        num_used_cpu_blocks: CPU blocks held by swapped sequences, or with offloaded
            content, after scheduling.
        num_head_blocks: Blocks that the first candidate for admission or swap-in needed
            when it was refused for want of blocks; 0 if none was.
        num_room_blocks: Blocks that an admission could have taken then: free ones less
            the watermark.
        num_preempted_recompute: Requests preempted by recomputation.
        num_preempted_swap: Requests preempted by swapping.
        num_swap_in_blocks: Blocks copied from CPU to GPU.
        num_swap_out_blocks: Blocks copied from GPU to CPU.
        num_offload_load_blocks: Blocks whose copy from the offload tier began.
        num_offload_store_blocks: Blocks whose copy to the offload tier began.
        num_forced_stores: Copies to the tier for whose end the step waited.
        num_copy_on_write: Blocks copied because a shared block was written.
        num_evictions: Cached blocks whose content was given up in the whole stretch.
        num_regretted_evictions: Blocks allocated in the stretch for content that had been
            cached and was given up; each eviction counts at most once.
        num_prefill_attention: Pairs of a token that prefills computed and one that it
            attends to. 0 in runs of versions that did not write it.
        num_prefill_context_tokens: Tokens that the prefilled sequences attend to, those
            found in the cache and those computed included. 0 in such runs.
        gap_ns: Distinct times between consecutive tokens of a sequence that ended with
            the first step (ITL samples), with ``gap_count`` sequences each. The later
            steps add one gap a decoding sequence each, equal to their durations.
        gap_count: Number of sequences for each entry of ``gap_ns``.
    """

    start_ns: int
    end_ns: int
    num_steps: int
    first_step_ns: int
    last_step_ns: int
    swap_ns: int
    num_prefill_tokens: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    num_prefill_seqs: int
    num_decode_seqs: int
    num_context_tokens: int
    num_admitted: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_used_blocks: int
    num_used_blocks_end: int
    num_used_tokens: int
    num_cached_blocks: int
    num_cached_blocks_end: int
    num_used_cpu_blocks: int
    num_head_blocks: int
    num_room_blocks: int
    num_preempted_recompute: int
    num_preempted_swap: int
    num_swap_in_blocks: int
    num_swap_out_blocks: int
    num_offload_load_blocks: int
    num_offload_store_blocks: int
    num_forced_stores: int
    num_copy_on_write: int
    num_evictions: int
    num_regretted_evictions: int
    num_prefill_attention: int = 0
    num_prefill_context_tokens: int = 0
    gap_ns: list[int] = field(default_factory=list)
    gap_count: list[int] = field(default_factory=list)


SAME_BEFORE = {"queued_ns": "arrival_ns"}
"""Columns that older versions did not write, by the one that was the same to them."""

UNKNOWN_BEFORE = ("num_prefill_attention", "num_prefill_context_tokens")
"""Columns of steps that older versions did not write; 0 stands for not known."""


def add_later_columns(table: Any) -> None:
    """Give a row, or a frame of rows, of an older version the columns that came later."""
    for name, same in SAME_BEFORE.items():
        if name not in table and same in table:
            table[name] = table[same]
    if "first_step_ns" in table:
        for name in UNKNOWN_BEFORE:
            if name not in table:
                table[name] = 0
