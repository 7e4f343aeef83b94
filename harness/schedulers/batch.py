"""What a scheduler decides for one step, and the protocol that the engine drives."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from harness.request import Request
from profiles.step_time import BatchShape

BlockPair = tuple[int, int]
TransferId = int


class PreemptionMode(StrEnum):
    """What happens to a request that must make room."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Dismissal(StrEnum):
    """Why a request left without finishing.

    ``PROMPT_TOO_LONG``: for the model. ``TOO_LONG_FOR_A_STEP``: more tokens than
    ``max_model_len`` or a step allow. ``EXCEEDS_KV_CAPACITY``: needs more blocks than the
    pool has. ``SWAP_IN_NEVER``: swapped out and too large to come back.
    ``NO_CPU_BLOCKS``: had to make room, and the CPU pool had none for it.
    ``RECOMPUTE_SEVERAL``: was to be recomputed with several samples running.
    ``RECOMPUTE_FIRST``: its first sample was to be recomputed beside others.
    """

    PROMPT_TOO_LONG = "prompt_too_long"
    TOO_LONG_FOR_A_STEP = "too_long_for_a_step"
    EXCEEDS_KV_CAPACITY = "exceeds_kv_capacity"
    SWAP_IN_NEVER = "swap_in_never"
    NO_CPU_BLOCKS = "no_cpu_blocks"
    RECOMPUTE_SEVERAL = "recompute_several"
    RECOMPUTE_FIRST = "recompute_first"


@dataclass(frozen=True, slots=True)
class Dismissed:
    """A request that left without finishing.

    Attributes:
        request: The request.
        reason: Why.
        num_tokens: Length of its longest sequence by then.
        num_output_tokens: Tokens its samples had by then.
    """

    request: Request
    reason: Dismissal
    num_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """A request that had to make room.

    Attributes:
        request: The request.
        num_lost_tokens: Tokens that had been computed and will be again; 0 for a swap.
        sample: Which sample, where each is scheduled on its own.
    """

    request: Request
    num_lost_tokens: int = 0
    sample: int = 0


@dataclass(slots=True)
class Scheduled:
    """One request's part of a batch.

    Attributes:
        request: The request.
        num_tokens: Tokens scheduled: the prefill's chunk; 1 a sequence for a decode.
        num_seqs: Its running sequences.
        is_prefill: Counted among the batch's prefills.
        samples: Each of its sequences gets a token at the end of the step.
        is_admission: It comes from the waiting queue.
        num_cached_tokens: Of these, tokens of a prefill that were found in the cache when
            the request was admitted; their computation is skipped.
        num_loaded_tokens: Of the cached ones, tokens that came from the offload tier.
        num_computed_blocks: Leading blocks of its table that a prefill may skip.
        sample: Which sample of the request, where each is scheduled on its own.
    """

    request: Request
    num_tokens: int
    num_seqs: int
    is_prefill: bool
    samples: bool = True
    is_admission: bool = False
    num_cached_tokens: int = 0
    num_computed_blocks: int = 0
    sample: int = 0
    num_loaded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The first candidate for blocks that did not get them in a call, and waits on.

    Attributes:
        num_needed_blocks: What it needed.
        num_room_blocks: What it could have had.
    """

    num_needed_blocks: int
    num_room_blocks: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks copied between GPU and CPU beside the batches, not in front of one.

    Attributes:
        transfer_id: Unique number, handed back when the copy has ended.
        num_blocks: Blocks copied.
        is_store: From the GPU; it begins after the step, a load with it.
    """

    transfer_id: TransferId
    num_blocks: int
    is_store: bool = False


@dataclass(slots=True)
class Batch:
    """All decisions of one scheduler call.

    Attributes:
        scheduled: Who runs, in batch order, but for the steady ones.
        num_steady_seqs: Sequences that decode in this batch as they did in the one
            before; nothing is decided about them, and they are not listed.
        unsteady: ``(request_id, sample)`` of those that were steady until the batch
            before, and are listed, or not in the batch, from this one on.
        shape: What the model has to do.
        swap_in: Blocks to copy, ``(cpu, gpu)``.
        swap_out: Blocks to copy, ``(gpu, cpu)``.
        copy_on_write: Blocks to copy, ``(from, to)``.
        preempted_recompute: Requests that lost their blocks.
        preempted_swap: Requests whose blocks moved to the CPU.
        dismissed: Requests that left without finishing.
        refused: Who kept the waiting queue waiting for want of blocks, and of nothing
            else.
        transfers: Copies that start with the batch and end on their own.
        flushed: Copies under way, or started here, for whose end the batch waits.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    num_steady_seqs: int = 0
    unsteady: Sequence[tuple[int, int]] = ()
    shape: BatchShape = field(default_factory=lambda: BatchShape(0, 0, 0, 0, 0))
    swap_in: list[BlockPair] = field(default_factory=list)
    swap_out: list[BlockPair] = field(default_factory=list)
    copy_on_write: list[BlockPair] = field(default_factory=list)
    preempted_recompute: Sequence[Preempted] = ()
    preempted_swap: Sequence[Preempted] = ()
    dismissed: Sequence[Dismissed] = ()
    refused: Refused | None = None
    transfers: Sequence[Transfer] = ()
    flushed: Sequence[TransferId] = ()

    @property
    def num_preempted(self) -> int:
        """Requests preempted in this call."""
        return len(self.preempted_recompute) + len(self.preempted_swap)

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing was decided: the same call would do the same again."""
        return not (
            self.scheduled
            or self.num_steady_seqs
            or self.dismissed
            or self.num_preempted
            or self.transfers
        )

    @property
    def is_plain_decode(self) -> bool:
        """Only decodes, and nothing that changes what the next call finds."""
        return not (
            self.num_preempted
            or self.dismissed
            or self.swap_in
            or self.copy_on_write
            or any(entry.is_prefill for entry in self.scheduled)
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has all its tokens.

    Attributes:
        request: The request.
        sample_lengths: Tokens of each sample; fewer than asked for where the model's
            length cut it.
    """

    request: Request
    sample_lengths: tuple[int, ...]


class CacheState(NamedTuple):
    """Queues and pool at one moment, for the records.

    Attributes:
        num_waiting: Requests in the waiting queue.
        num_running: Requests in the running queue.
        num_swapped: Requests swapped out.
        num_used_blocks: GPU blocks that sequences hold.
        num_used_tokens: Slots of those blocks that hold a token.
        num_cached_blocks: Free GPU blocks whose content could still be reused.
        num_used_cpu_blocks: CPU blocks that swapped sequences hold, or with offloaded
            content.
    """

    num_waiting: int
    num_running: int
    num_swapped: int
    num_used_blocks: int
    num_used_tokens: int
    num_cached_blocks: int
    num_used_cpu_blocks: int = 0


class Scheduler(Protocol):
    """A policy: decides batches and keeps the block bookkeeping.

    The engine calls ``schedule`` and starts the batch. Once the batches before it are
    committed, it may let it run on: ``max_repeat`` says for how many steps, ``repeat``
    does them. ``commit`` hands in the tokens of its last step.
    """

    def add(self, request: Request) -> None:
        """Put a request that has arrived into the waiting queue."""

    def schedule(self) -> Batch:
        """Decide the next step; all block decisions for it are made here."""

    def max_repeat(self, batch: Batch) -> int:
        """Further calls in a row that would decide the latest batch again.

        Time (arrivals, transfers) is the engine's matter.
        """

    def repeat(self, batch: Batch, num_steps: int) -> None:
        """Do what ``num_steps`` further calls would decide: the same batch, grown."""

    def commit(self, batch: Batch) -> list[Finished]:
        """Take in the tokens sampled in the batch's last step; who finished."""

    def transfers_done(self, transfers: Iterable[TransferId]) -> None:
        """Take note that copies which ran beside the batches have ended."""

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits, runs or is swapped out."""

    @property
    def num_used_blocks(self) -> int:
        """GPU blocks that sequences hold."""

    @property
    def num_cached_blocks(self) -> int:
        """Free GPU blocks whose content could still be reused."""

    @property
    def num_evictions(self) -> int:
        """Cached blocks given up since the run began."""

    @property
    def num_regretted_evictions(self) -> int:
        """Of these, how many were allocated again for the same content."""

    def sample_lengths(self, request_id: int) -> tuple[int, ...]:
        """Tokens that each sample of an unfinished request has."""

    def state(self) -> CacheState:
        """Queues and pool as they are now."""

    def holders(self) -> str:
        """Who is in which queue and how many blocks are free, for people."""

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is free or owned, and counted right."""

    def close(self) -> int:
        """Drop what is unfinished, take every block back, and check that all are free.

        Returns:
            Blocks that had been lost: held by no request that was still there.
        """
