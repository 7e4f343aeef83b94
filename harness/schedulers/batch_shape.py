"""From a batch's members to the work it makes."""

from collections.abc import Sequence as Seq

from allocators.sequence import SequenceGroup, SequenceStatus
from harness.schedulers.batch import Batch
from profiles.step_time import BatchShape


def shape_of(batch: Batch, groups: Seq[SequenceGroup]) -> BatchShape:
    """The work of ``batch``, whose entries belong to ``groups`` one by one.

    Tokens found in the cache are not computed. A prefill's token number ``i`` attends to
    ``i`` tokens.
    """
    num_prefill_tokens = prefill_attention = num_prefill_seqs = 0
    num_prefill_context_tokens = 0
    num_decode_seqs = num_context_tokens = 0
    for entry, group in zip(batch.scheduled, groups, strict=True):
        running = group.seqs_with(SequenceStatus.RUNNING)
        if not entry.is_prefill:
            num_decode_seqs += len(running)
            num_context_tokens += sum(seq.num_tokens for seq in running)
            continue
        start = running[0].num_computed_tokens
        end = start + max(entry.num_tokens, 1)
        start += entry.num_cached_tokens
        num_prefill_tokens += end - start
        prefill_attention += (end * (end + 1) - start * (start + 1)) // 2
        num_prefill_seqs += 1
        num_prefill_context_tokens += end
    return BatchShape(
        num_prefill_tokens=num_prefill_tokens,
        prefill_attention=prefill_attention,
        num_prefill_seqs=num_prefill_seqs,
        num_decode_seqs=num_decode_seqs,
        num_context_tokens=num_context_tokens,
        num_swap_blocks=len(batch.swap_in) + len(batch.swap_out),
        num_copy_blocks=len(batch.copy_on_write),
        num_prefill_context_tokens=num_prefill_context_tokens,
    )
