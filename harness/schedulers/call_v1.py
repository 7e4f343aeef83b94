"""What one call of the v1 scheduler works on, and the batch that comes of it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from allocators.free_block_queue import BlockIds
from harness.schedulers.batch import (
    Batch,
    Dismissed,
    Preempted,
    Refused,
    Scheduled,
    Transfer,
    TransferId,
)
from harness.schedulers.engine_request import EngineRequest
from profiles.step_time import BatchShape


class Hits(NamedTuple):
    """What the caches have of a request that is to be admitted.

    Attributes:
        block_ids: GPU blocks that it begins with and does not hold yet.
        num_loadable_blocks: Blocks that the offload tier has after those.
        num_tokens: Tokens in the GPU blocks, its own included.
    """

    block_ids: BlockIds
    num_loadable_blocks: int
    num_tokens: int


@dataclass(slots=True)
class Part:
    """What a request that is not in lockstep computes in a step.

    Attributes:
        request: Who.
        num_tokens: Tokens computed.
        is_prefill: It has no token yet, or none since it was preempted.
        is_admission: It comes from the waiting queue.
        num_cached_tokens: Tokens that its admission in this step found in the cache.
        num_loaded_tokens: Of these, tokens that came from the offload tier.
        num_blocks_before: Blocks of its table before.
        samples: It gets a token at the end of the step.
        num_preemptions: How often it had been preempted by then.
    """

    request: EngineRequest
    num_tokens: int
    is_prefill: bool
    is_admission: bool = False
    num_cached_tokens: int = 0
    num_loaded_tokens: int = 0
    num_blocks_before: int = 0
    samples: bool = False
    num_preemptions: int = 0

    def entry(self) -> Scheduled:
        """The same as the engine sees it; tokens found in the cache count as well."""
        return Scheduled(
            self.request.request,
            self.num_tokens + self.num_cached_tokens,
            num_seqs=1,
            is_prefill=self.is_prefill,
            samples=self.samples,
            is_admission=self.is_admission,
            num_cached_tokens=self.num_cached_tokens,
            num_loaded_tokens=self.num_loaded_tokens,
            sample=self.request.sample,
        )


@dataclass(slots=True)
class Call:
    """What one call has decided so far.

    Attributes:
        num_tokens_left: Tokens that the step may still take.
        is_crowded: Several requests were there when it began.
        parts: Requests that run and are not in lockstep, in the order of scheduling.
        loading: Requests whose blocks are about to be filled from the offload tier.
        preempted: Who lost its blocks.
        victims: The same requests.
        transfers: Copies to start.
        flushed: Copies that must end before the step.
        dismissed: Who left without finishing.
        refused: Who waits on for want of blocks.
        num_steady_seqs: Requests that decode in lockstep.
        num_steady_tokens: Tokens that they attend to.
        unsteady: Ids of requests that were in lockstep until the step before.
        sampled: Who is not in lockstep any more, or never was, and gets a token by the
            step, in the order of scheduling.
        ending: Of these, who finishes by it.
        clock: Of the lockstep, at the end of the step.
    """

    num_tokens_left: int
    is_crowded: bool
    parts: dict[EngineRequest, Part] = field(default_factory=dict)
    loading: tuple[EngineRequest, ...] = ()
    preempted: list[Preempted] = field(default_factory=list)
    victims: list[EngineRequest] = field(default_factory=list)
    transfers: tuple[Transfer, ...] = ()
    flushed: tuple[TransferId, ...] = ()
    dismissed: tuple[Dismissed, ...] = ()
    refused: Refused | None = None
    num_steady_seqs: int = 0
    num_steady_tokens: int = 0
    unsteady: list[tuple[int, int]] = field(default_factory=list)
    sampled: list[EngineRequest] = field(default_factory=list)
    ending: list[EngineRequest] = field(default_factory=list)
    clock: int = 0

    def take(self, part: Part) -> None:
        """Let a request run."""
        self.parts[part.request] = part
        self.num_tokens_left -= part.num_tokens

    def give_back(self, request: EngineRequest) -> None:
        """Let a request not run after all."""
        self.num_tokens_left += self.parts.pop(request).num_tokens

    def settle(self) -> None:
        """Note that what was computed has been handed in, but for who was preempted."""
        for request, part in self.parts.items():
            if part.num_preemptions == request.num_preemptions:
                request.num_settled_tokens += part.num_tokens

    @property
    def is_steady(self) -> bool:
        """Nothing but the lockstep runs, and it will run on."""
        return not (
            self.parts
            or self.preempted
            or self.dismissed
            or self.ending
            or self.transfers
            or self.flushed
        )

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing was decided."""
        return self.is_steady and not self.num_steady_seqs

    def batch(self) -> Batch:
        """The call's decisions as the engine sees them."""
        return Batch(
            scheduled=[part.entry() for part in self.parts.values()],
            num_steady_seqs=self.num_steady_seqs,
            unsteady=self.unsteady,
            shape=self._shape(),
            preempted_recompute=self.preempted,
            dismissed=self.dismissed,
            refused=self.refused,
            transfers=self.transfers,
            flushed=self.flushed,
        )

    def _shape(self) -> BatchShape:
        num_prefill_tokens = prefill_attention = num_prefill_seqs = 0
        num_prefill_context_tokens = 0
        num_decode_seqs, num_context_tokens = self.num_steady_seqs, self.num_steady_tokens
        for part in self.parts.values():
            end = part.request.num_computed_tokens
            if not part.is_prefill:
                num_decode_seqs += 1
                num_context_tokens += end
                continue
            start = end - part.num_tokens
            num_prefill_tokens += part.num_tokens
            prefill_attention += (end * (end + 1) - start * (start + 1)) // 2
            num_prefill_seqs += 1
            num_prefill_context_tokens += end
        no_swaps = no_copies = 0
        return BatchShape(  # in order: a shape is made for each call
            num_prefill_tokens,
            prefill_attention,
            num_prefill_seqs,
            num_decode_seqs,
            num_context_tokens,
            no_swaps,
            no_copies,
            num_prefill_context_tokens,
        )
