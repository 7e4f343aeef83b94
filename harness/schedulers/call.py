"""What one call of the v0 scheduler works on."""

from dataclasses import dataclass, field

from allocators.block_hash import PrefixHashes
from allocators.sequence import SequenceGroup
from harness.request import Request
from harness.schedulers.batch import Batch, Dismissal, Dismissed, Refused, Scheduled
from harness.schedulers.budget import Budget


@dataclass(slots=True, eq=False)
class Member:
    """What the queues hold: a request with the sequences drawn from it.

    Attributes:
        request: The request.
        group: Its sequences.
        prompt_hashes: Numbers of the prompt's prefixes; ``None`` without caching.
        num_cached_tokens: Leading tokens found in the cache at the latest admission.
    """

    request: Request
    group: SequenceGroup
    prompt_hashes: PrefixHashes | None
    num_cached_tokens: int = 0


Entry = tuple[Member, Scheduled]


@dataclass(slots=True)
class Call:
    """What one call of ``schedule`` has decided so far, by where it came from."""

    batch: Batch
    budget: Budget
    prefills: list[Entry] = field(default_factory=list)
    continuing: list[Entry] = field(default_factory=list)
    decodes: list[Entry] = field(default_factory=list)
    swapped_prefills: list[Entry] = field(default_factory=list)
    swapped_decodes: list[Entry] = field(default_factory=list)
    recomputed: list[Member] = field(default_factory=list)
    swapped_out: list[Member] = field(default_factory=list)

    def refuse(self, num_needed_blocks: int, num_room_blocks: int) -> None:
        """Note that a candidate waits on for blocks, unless the budget is at its end."""
        if self.batch.refused is None and self.budget.admits(1, 1):
            self.batch.refused = Refused(num_needed_blocks, num_room_blocks)

    def dismiss(self, member: Member, reason: Dismissal) -> None:
        """Note that a request leaves without finishing."""
        seqs = member.group.seqs
        self.batch.dismissed = (
            *self.batch.dismissed,
            Dismissed(
                member.request,
                reason,
                num_tokens=max(seq.num_tokens for seq in seqs),
                num_output_tokens=sum(seq.num_output_tokens for seq in seqs),
            ),
        )
