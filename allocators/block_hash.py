"""Identity of cached content: one number for each distinct prefix.

Prompts arrive as runs of segments (``harness.request.Run``): token ``i`` of a segment is
the same token everywhere and a run starts at token 0 of its segment. A prefix is then
named exactly by the runs before, the segment it ends in and how far it reaches into it.
Each pair of (prefix so far, next segment) gets a number of its own the first time it is
seen, so two prefixes have equal numbers only if all their tokens, and their extra keys,
are equal. There is no digest to collide: a dictionary compares the pairs themselves, and
the hash of a dictionary key decides its speed, never the answer.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable

BlockHash = int

TOKENS_PER_SEGMENT = 1 << 32
"""Numbers from one segment to the next; those below it name no content."""

_EMPTY = 0


class PrefixIndex:
    """Numbers prefixes: equal numbers exactly for equal extra keys and equal tokens.

    Numbers depend only on the order in which prefixes are first seen, so a run repeats
    itself to the digit. All are at least ``2**32``; smaller ones are free for blocks that
    have no content yet.
    """

    def __init__(self) -> None:
        self._branches: dict[tuple[BlockHash, Hashable], int] = {}

    def root(self, extra_keys: tuple[Hashable, ...] = ()) -> BlockHash:
        """The empty prefix under these keys (adapter, cache salt)."""
        return self.branch(_EMPTY, extra_keys) if extra_keys else _EMPTY

    def branch(self, prefix: BlockHash, segment: Hashable) -> int:
        """What to add ``i`` to, for ``prefix`` and the segment's first ``i`` tokens."""
        key = (prefix, segment)
        number = self._branches.get(key)
        if number is None:
            number = self._branches[key] = len(self._branches) + 1
        return number * TOKENS_PER_SEGMENT


class PrefixHashes:
    """Numbers of all prefixes of one token sequence, kept as one pair a run.

    Args:
        index: Where prefixes are numbered.
        root: The empty prefix under the sequence's extra keys.
        runs: ``(segment, num_tokens)`` pairs.
    """

    __slots__ = ("_ends", "_index", "_offsets")

    def __init__(
        self, index: PrefixIndex, root: BlockHash, runs: Iterable[tuple[Hashable, int]]
    ) -> None:
        self._index = index
        self._ends: list[int] = []
        self._offsets: list[int] = []
        prefix, position = root, 0
        for segment, num_tokens in runs:
            base = index.branch(prefix, segment)
            self._offsets.append(base - position)
            position += num_tokens
            self._ends.append(position)
            prefix = base + num_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens covered."""
        return self._ends[-1]

    @property
    def last_run(self) -> int:
        """Equal for two sequences exactly if they agree up to their last run."""
        return self._offsets[-1]

    def __getitem__(self, num_tokens: int) -> BlockHash:
        """Number of the first ``num_tokens`` tokens, 1 to ``self.num_tokens``."""
        return self._offsets[bisect_left(self._ends, num_tokens)] + num_tokens

    def extended(self, segment: Hashable, num_tokens: int) -> "PrefixHashes":
        """The same sequence with another run behind it."""
        longer = PrefixHashes.__new__(PrefixHashes)
        base = self._index.branch(self[self.num_tokens], segment)
        longer._index = self._index
        longer._offsets = [*self._offsets, base - self.num_tokens]
        longer._ends = [*self._ends, self.num_tokens + num_tokens]
        return longer

    def of_blocks(self, num_tokens: int, block_size: int) -> list[BlockHash]:
        """Numbers of the prefixes that end where blocks end, for the first tokens.

        The last block may be part full: its prefix ends at ``num_tokens``.
        """
        hashes: list[BlockHash] = []
        start = 0
        for end, offset in zip(self._ends, self._offsets, strict=True):
            first = (start // block_size + 1) * block_size
            last = min(end, num_tokens)
            hashes.extend(range(offset + first, offset + last + 1, block_size))
            start = end
            if end >= num_tokens:
                break
        if num_tokens % block_size:
            hashes.append(self[num_tokens])
        return hashes
