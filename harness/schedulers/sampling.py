"""Sequences of a request: made, given the tokens the workload holds, and ended."""

from itertools import count

from allocators.block_hash import PrefixHashes, PrefixIndex
from allocators.block_space_manager import BlockSpaceManager
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus
from harness.request import Request
from harness.schedulers.call import Member


class Sampling:
    """Makes the sequences of requests and lets them grow token by token.

    A group begins with sample 0 alone; its first token brings forth the others, which
    share its blocks. Samples end independently.

    Args:
        block_manager: Told of forks and ends.
        max_model_len: Tokens at which any sequence ends.
    """

    def __init__(self, block_manager: BlockSpaceManager, max_model_len: int) -> None:
        self._block_manager = block_manager
        self._max_model_len = max_model_len
        self._prefixes = PrefixIndex()
        self._contents: set[int] = set()
        self._shared_contents: set[int] = set()
        self._seq_ids = count()

    def begin(self, request: Request) -> Member:
        """A request with its first sequence, waiting."""
        prompt_hashes = None
        if self._block_manager.enable_caching:
            root = self._prefixes.root(request.extra_keys)
            prompt_hashes = PrefixHashes(self._prefixes, root, request.prompt)
        group = SequenceGroup(request.request_id, n=request.n)
        member = Member(request, group, prompt_hashes)
        group.seqs.append(self._new_seq(member, sample=0))
        return member

    def sample(self, member: Member) -> None:
        """Give each running sequence a token; the first one brings forth the others."""
        group = member.group
        running = group.seqs_with(SequenceStatus.RUNNING)
        if group.n > 1 and group.seqs[0].num_output_tokens == 0:
            self._fork(member)
        for seq in running:
            seq.num_output_tokens += 1
        for seq in running:
            if self.num_tokens_left(seq) <= 0:
                seq.status = SequenceStatus.FINISHED
                self._block_manager.free(seq)

    def end(self, member: Member) -> None:
        """Finish what is left of a group and free its blocks."""
        for seq in member.group.unfinished_seqs:
            seq.status = SequenceStatus.FINISHED
            self._block_manager.free(seq)

    def num_tokens_left(self, seq: Sequence) -> int:
        """Tokens until the sequence ends, by its own length or the model's."""
        return min(
            seq.max_output_tokens - seq.num_output_tokens,
            self._max_model_len - seq.num_tokens,
        )

    def has_twin(self, seq: Sequence) -> bool:
        """Whether another sequence ever wrote the same tokens after the same prompt.

        Only then can a block that decoding fills turn out to be cached already.
        """
        return bool(self._shared_contents) and seq.content_id in self._shared_contents

    def _fork(self, member: Member) -> None:
        """Make samples 1 to n - 1, each with a first token of its own."""
        parent = member.group.seqs[0]
        for sample in range(1, member.group.n):
            child = self._new_seq(member, sample)
            child.num_output_tokens = 1
            child.is_prefill = parent.is_prefill
            child.num_computed_tokens = parent.num_computed_tokens
            if self.num_tokens_left(child) <= 0:
                child.status = SequenceStatus.FINISHED
            else:
                child.status = SequenceStatus.RUNNING
                self._block_manager.fork(parent, child)
            member.group.seqs.append(child)

    def _new_seq(self, member: Member, sample: int) -> Sequence:
        """A sequence that will write the output of ``sample``.

        vLLM's v0 hashes a prefix as a pair (prompt tokens, output tokens), so content
        written as output is never found by a prompt: the segment is marked.
        """
        segment, num_output_tokens = member.request.outputs[sample]
        hashes = member.prompt_hashes
        if hashes is not None:
            hashes = hashes.extended(("output", segment), num_output_tokens)
            if hashes.last_run in self._contents:
                self._shared_contents.add(hashes.last_run)
            self._contents.add(hashes.last_run)
        return Sequence(
            next(self._seq_ids),
            member.request.num_prompt_tokens,
            hashes,
            max_output_tokens=num_output_tokens,
        )
