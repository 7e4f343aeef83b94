"""How far a request has come, and the names of the content it holds."""

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import accumulate

from harness.request import Request, Run
from naive_v1.block_pool import NaiveBlock

Piece = tuple[int, int, int]
"""Tokens of one segment: ``(segment, first, end)``."""


class ContentKeys:
    """Numbers contents: equal exactly for equal blocks after equal blocks."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Hashable, tuple[Piece, ...]], int] = {}

    def key(self, parent: Hashable, pieces: tuple[Piece, ...]) -> int:
        """The number of a block with this content behind its parent."""
        return self._keys.setdefault((parent, pieces), len(self._keys))


@dataclass(slots=True, eq=False)
class Progress:
    """One sample of a request on its way through the scheduler.

    Attributes:
        request: What was asked for.
        sample: Which of its outputs this one writes.
        num_output_tokens: Tokens handed in.
        num_computed_tokens: Tokens computed, steps in flight included.
        num_handed_in_tokens: Of these, those of steps that have been handed in.
        num_in_flight_tokens: Tokens sampled by steps that have not been handed in.
        table: Its blocks in order.
        num_cached_blocks: Leading blocks that stand in the cache, or once did.
        keys: Names of its leading full blocks, as far as their tokens are known.
        was_preempted: It has lost its blocks before.
    """

    request: Request
    sample: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_handed_in_tokens: int = 0
    num_in_flight_tokens: int = 0
    table: list[NaiveBlock] = field(default_factory=list)
    num_cached_blocks: int = 0
    keys: list[int] = field(default_factory=list)
    was_preempted: bool = False
    _runs: tuple[Run, ...] = field(init=False)
    _run_ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._runs = (*self.request.prompt, self.request.outputs[self.sample])
        self._run_ends = list(accumulate(length for _, length in self._runs))

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return self.request.num_prompt_tokens + self.num_output_tokens

    @property
    def max_output_tokens(self) -> int:
        """Tokens it will have been given when it ends."""
        return self.request.outputs[self.sample][1]

    @property
    def rank(self) -> tuple[int, int, str]:
        """Its place in a queue by priority."""
        name = str(self.request.request_id)
        return (*self.urgency, name if self.request.n == 1 else f"{self.sample}_{name}")

    @property
    def urgency(self) -> tuple[int, int]:
        """Priority, then arrival: the largest makes room first."""
        return self.request.priority, self.request.arrival_ns

    def extend_keys(self, content: ContentKeys, block_size: int) -> None:
        """Name the full blocks whose last token has become known."""
        while (len(self.keys) + 1) * block_size <= self.num_tokens:
            start = len(self.keys) * block_size
            parent = self.keys[-1] if self.keys else self.request.extra_keys
            pieces = self._pieces(start, start + block_size)
            self.keys.append(content.key(parent, pieces))

    def _pieces(self, start: int, end: int) -> tuple[Piece, ...]:
        """What stands from one position to another."""
        pieces = []
        place = bisect_right(self._run_ends, start)
        while start < end:
            segment, length = self._runs[place]
            run_start = self._run_ends[place] - length
            stop = min(end, self._run_ends[place])
            pieces.append((segment, start - run_start, stop - run_start))
            start, place = stop, place + 1
        return tuple(pieces)
