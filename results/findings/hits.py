"""How many prompt tokens could be hits, and the time that finding them saves."""

from dataclasses import dataclass

import numpy as np

from results.columns import Columns, FloatArray, computing_ns, durations_ns
from results.findings.run_view import RunView, percent
from results.statistics import NS_PER_S

MIN_SAVING = 0.01
"""Share of the time of all steps that a measurement could still tell from noise."""

MIN_SAVING_S = 0.01
"""Mean seconds to the first token that somebody could still notice."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of the requests that ran, and what earlier ones began with as well.

    Attributes:
        tokens: Of each prompt, ``(num_prompts,)``.
        shared: Its leading tokens that an earlier request began with.
        shared_with_prompts: Its leading tokens that an earlier prompt began with.
        num_tokens: Of all prompts.
        num_hit_tokens: Found in the cache at the first admission.
    """

    tokens: FloatArray
    shared: FloatArray
    shared_with_prompts: FloatArray
    num_tokens: float
    num_hit_tokens: float

    @classmethod
    def of(cls, run: RunView) -> "Prompts":
        """The prompts of a run whose trace says what they share."""
        known = run.is_admitted & ~np.isnan(run.requests["num_shared_tokens"])
        tokens = run.requests["num_prompt_tokens"][known]
        hits = run.requests["num_cached_tokens"][known]
        shared = run.requests["num_shared_tokens"][known]
        with_prompts = run.requests["num_shared_prompt_tokens"][known]
        num_tokens, num_hits = float(tokens.sum()), float(hits.sum())
        return cls(tokens, shared, with_prompts, num_tokens, num_hits)

    def findable_tokens(self, block_size: int) -> float:
        """Tokens that could be hits: whole blocks, and never a prompt's last token."""
        return self._findable(self.shared, block_size)

    def findable_in_tier(self, block_size: int) -> float:
        """The same of a tier, which holds what prompts had and no output."""
        return self._findable(self.shared_with_prompts, block_size)

    def _findable(self, shared: FloatArray, block_size: int) -> float:
        shared = np.minimum(shared, self.tokens - 1)
        return float((shared // block_size * block_size).sum())

    def num_distinct_blocks(self, block_size: int) -> int:
        """Full blocks of all prompts, those that begin alike counted once."""
        full, shared = self.tokens // block_size, self.shared_with_prompts // block_size
        return int((full - np.minimum(shared, full)).sum())

    def num_repeated(self, block_size: int) -> int:
        """Prompts that an earlier one contains whole and that end within a block."""
        is_whole = self.shared >= self.tokens
        return int((is_whole & (self.tokens % block_size > 0)).sum())

    def percent(self, num_tokens: float) -> str:
        """So many tokens as a share of all prompt tokens."""
        return percent(num_tokens / self.num_tokens)

    def is_below(self, rate: float, num_tokens: float) -> bool:
        """Whether so many tokens are less than this share of all prompt tokens."""
        return num_tokens < rate * self.num_tokens


@dataclass(frozen=True, slots=True)
class Saving:
    """Time that hits save, or would.

    Attributes:
        share: Of the time that all steps would take without any hits.
        each_s: Seconds, averaged over the requests that ran.
    """

    share: float
    each_s: float

    @classmethod
    def of(cls, run: RunView, num_tokens: float) -> "Saving":
        """What finding so many tokens saves against finding none."""
        found = run.requests.total("num_cached_tokens")
        found += run.requests.total("num_recompute_cached_tokens")
        token_ns = _prefill_token_ns(run.steps)
        without_ns = float(durations_ns(run.steps).sum()) + found * token_ns
        saved_ns = num_tokens * token_ns
        share = saved_ns / without_ns if without_ns > 0 else 0.0
        return cls(share, saved_ns / NS_PER_S / int(run.is_admitted.sum()))

    def __str__(self) -> str:
        return (
            f"about {100 * self.share:.2f} % of the time of all steps and"
            f" {1000 * self.each_s:.2f} ms of a time to first token"
        )

    @property
    def is_worth_it(self) -> bool:
        """Whether anybody would notice."""
        return self.share >= MIN_SAVING or self.each_s >= MIN_SAVING_S


def _prefill_token_ns(steps: Columns) -> float:
    """Nanoseconds by which a prefilled token lengthens a step.

    A step reads the weights however few tokens it computes, and hits never save that: a
    prompt found in the cache still takes a step for its last token. So what counts is the
    time above the shortest decode step: least squares of time - shortest = c * tokens.
    """
    prefills = steps["num_prefill_tokens"] > 0
    decodes = ~prefills & (steps["num_decode_seqs"] > 0)
    if not prefills.any():
        return 0.0
    shortest = steps["first_step_ns"][decodes].min() if decodes.any() else 0.0
    time = computing_ns(steps)[prefills] - shortest
    tokens = (steps["num_prefill_tokens"] + steps["num_decode_seqs"])[prefills]
    return max(0.0, float(tokens @ time / (tokens @ tokens)))
