"""What the block managers are asked about: sequences, and groups that share a prompt."""

from dataclasses import dataclass, field
from enum import Enum

from allocators.block_hash import BlockHash, PrefixHashes


class SequenceStatus(Enum):
    """Which queue's business a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and the output written so far by one sample.

    Attributes:
        seq_id: Unique number.
        num_prompt_tokens: Tokens of the prompt.
        hashes: Numbers of its prefixes, prompt and output; ``None`` without caching.
        num_output_tokens: Tokens sampled so far, the newest one not yet computed.
        max_output_tokens: Tokens it will have sampled when it ends.
        status: Its state.
        num_computed_tokens: Tokens a prefill has got through; unused while decoding.
        is_prefill: Some token besides the newest is not computed yet.
    """

    seq_id: int
    num_prompt_tokens: int
    hashes: PrefixHashes | None = None
    num_output_tokens: int = 0
    max_output_tokens: int = 1
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    is_prefill: bool = True

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens that exist."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it will grow no more."""
        return self.status is SequenceStatus.FINISHED

    def num_blocks(self, block_size: int) -> int:
        """Blocks that its tokens fill, the last one perhaps in part."""
        return -(-self.num_tokens // block_size)

    @property
    def content_id(self) -> int:
        """Equal for sequences that will hold the same tokens. Needs ``hashes``."""
        assert self.hashes is not None, "no hashes without prefix caching"
        return self.hashes.last_run

    def prefix_hash(self) -> BlockHash:
        """Number of everything it holds so far, for its last block. Needs ``hashes``."""
        assert self.hashes is not None, "no hashes without prefix caching"
        return self.hashes[self.num_tokens]

    def block_hashes(self, block_size: int) -> list[BlockHash]:
        """Numbers of all its blocks' content. Needs ``hashes``."""
        assert self.hashes is not None, "no hashes without prefix caching"
        return self.hashes.of_blocks(self.num_tokens, block_size)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The samples drawn from one prompt.

    Attributes:
        request_id: The request it belongs to.
        seqs: Sample 0 at first; the others once the first token has been sampled.
        n: Samples asked for.
    """

    request_id: int
    seqs: list[Sequence] = field(default_factory=list)
    n: int = 1

    def seqs_with(self, status: SequenceStatus) -> list[Sequence]:
        """Its sequences in this state, in creation order."""
        if len(self.seqs) == 1:
            return self.seqs[:] if self.seqs[0].status is status else []
        return [seq for seq in self.seqs if seq.status is status]

    @property
    def unfinished_seqs(self) -> list[Sequence]:
        """Sequences that may still grow, in creation order."""
        return [seq for seq in self.seqs if not seq.is_finished]

    @property
    def is_finished(self) -> bool:
        """Whether all its sequences are done."""
        return all(seq.is_finished for seq in self.seqs)

    @property
    def is_prefill(self) -> bool:
        """Whether its first sequence is being prefilled: vLLM asks only that one."""
        return self.seqs[0].is_prefill

    @property
    def max_num_running_seqs(self) -> int:
        """Sequences it counts as: all it will have, later those unfinished."""
        if self.n > len(self.seqs):
            return self.n
        return len(self.unfinished_seqs)
