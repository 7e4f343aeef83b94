"""What one step may still take."""

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """Tokens and sequences of one step, given out piece by piece.

    As in vLLM 0.5.5, taking does not ask: groups of several sequences are never cut, so
    more can be given out than there is, and the tokens left can be below zero.
    """

    max_tokens: int
    max_seqs: int
    num_tokens: int = 0
    num_seqs: int = 0

    @property
    def tokens_left(self) -> int:
        """Tokens not given out yet; below 0 when too many were."""
        return self.max_tokens - self.num_tokens

    @property
    def is_exceeded(self) -> bool:
        """More was given out than there is."""
        return self.num_tokens > self.max_tokens or self.num_seqs > self.max_seqs

    def admits(self, num_tokens: int, num_seqs: int) -> bool:
        """Whether so many fit into what is left; zero tokens never do."""
        return (
            num_tokens != 0
            and self.num_tokens + num_tokens <= self.max_tokens
            and self.num_seqs + num_seqs <= self.max_seqs
        )

    def take(self, num_tokens: int, num_seqs: int) -> None:
        """Give them out, whether they fit or not."""
        self.num_tokens += num_tokens
        self.num_seqs += num_seqs
