"""From the content of prompts to token ids: equal where a trace shares, else not."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.request import NOBODY_ELSES, Request, Run
from harness.workload import Workload

LEAST_VOCABULARY = 32
"""With fewer ids a block of one segment could not be told from that of another."""

_PRIMES = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], dtype=np.uint64)


class TokenMaker:
    """Gives each token of a workload's content an id that a model takes.

    Token ``i`` of a segment has the same id wherever it appears. Two segments differ at
    every one of their tokens as long as there are no more segments than ids, so that no
    block of one is a block of the other, however little of it they fill; with more of
    them two tokens agree once in ``num_ids`` times.

    The ids at both ends of a vocabulary are left out: there lie those with a meaning,
    for the end of a text or for an image.

    Args:
        workload: Whose content.
        vocab_size: Ids that the model has, from 0.

    Raises:
        UsageError: The vocabulary is too small.
    """

    def __init__(self, workload: Workload, vocab_size: int) -> None:
        if vocab_size < LEAST_VOCABULARY:
            raise UsageError(
                f"the model has a vocabulary of {vocab_size} tokens; prompts that differ"
                f" need {LEAST_VOCABULARY} or more: choose another model"
            )
        margin = min(1_000, vocab_size // 10)
        self.first_id = margin
        self.num_ids = vocab_size - 2 * margin
        columns = (workload.prompts.segments, workload.outputs.segments)
        self._num_segments = 1 + max(int(c.max(initial=-1)) for c in columns)
        self._num_prompt_runs = workload.prompts.offsets
        self._generated: dict[int, list[int]] = {}
        self._sent: set[int] = set()

    def prompt(self, request: Request) -> list[int]:
        """The ids of a request's prompt, which is taken to be sent."""
        first_run = int(self._num_prompt_runs[request.request_id])
        tokens: list[int] = []
        for number, (segment, length) in enumerate(request.prompt, first_run):
            if segment == NOBODY_ELSES:
                tokens += self._made(self._num_segments + number, length)
            else:
                self._sent.add(segment)
                tokens += self._content(segment, length)
        return tokens

    def output(self, run: Run) -> list[int]:
        """The ids that an output would have if the engine could be told what to say."""
        return self._content(*run)

    def learn(self, run: Run, generated: Sequence[int]) -> None:
        """Let an output's content be what the engine has generated.

        A later prompt that continues it then begins as the engine's cache has it. One
        that was sent before keeps what it had: no effect.
        """
        segment, length = run
        if segment not in self._sent and len(generated) >= length:
            self._generated[segment] = list(generated)

    def warm_up(self, number: int, num_tokens: int) -> list[int]:
        """Ids of a prompt that begins like none of the workload's, nor another of these.

        So far as there are ids left for that.
        """
        behind = self._num_segments + int(self._num_prompt_runs[-1])
        return self._made(behind + number, num_tokens)

    def _content(self, segment: int, length: int) -> list[int]:
        known = self._generated.get(segment, [])[:length]
        if len(known) == length:
            return known
        return known + self._made(segment, length)[len(known) :]

    def _made(self, segment: int, length: int) -> list[int]:
        """Ids of a segment: shifted by its number, from a start that hides the shift."""
        turn, shift = divmod(segment, self.num_ids)
        positions = np.arange(length, dtype=np.uint64)
        ids = (_scrambled(positions, turn) + np.uint64(shift)) % np.uint64(self.num_ids)
        made: list[int] = (ids.astype(np.int64) + self.first_id).tolist()
        return made


def _scrambled(positions: NDArray[np.uint64], turn: int) -> NDArray[np.uint64]:
    """A number below 2**32 for each position, as if drawn; another one each turn.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014.
    """
    mixed = (positions + np.uint64(turn * 2**32 + 1)) * _PRIMES[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _PRIMES[1]
    scrambled: NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(27))) >> np.uint64(32)
    return scrambled
