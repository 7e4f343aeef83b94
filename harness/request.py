"""One request, as schedulers and arrival sources see it."""

from dataclasses import dataclass

Run = tuple[int, int]
"""A stretch of prompt content: ``(segment, num_tokens)``.

Token ``i`` of segment ``s`` is the same token wherever it appears, and differs from every
other token; a run always starts at token 0 of its segment. So two prompts share exactly
the leading tokens on which their runs agree. Segments are numbers from 0, or
``NOBODY_ELSES``.
"""

NOBODY_ELSES = -1
"""Segment of a run whose tokens no other run of the workload has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt with the outputs it will have.

    Attributes:
        request_id: Position in the workload, from 0.
        arrival_ns: When it reaches the server, nanoseconds since the run began. For a
            later turn of a conversation the arrival source sets it.
        prompt: The prompt's content.
        num_prompt_tokens: Sum of the lengths in ``prompt``, at least 1.
        outputs: One run a sample; ``len(outputs)`` is vLLM's ``n``. A later prompt that
            contains an output's segment continues that conversation.
        priority: vLLM's request priority; lower is served first.
        extra_keys: What else a cached block must agree on: adapter id and cache salt.
    """

    request_id: int
    arrival_ns: int
    prompt: tuple[Run, ...]
    num_prompt_tokens: int
    outputs: tuple[Run, ...]
    priority: int = 0
    extra_keys: tuple[int | str, ...] = ()

    @property
    def n(self) -> int:
        """Number of samples drawn from the prompt."""
        return len(self.outputs)

    @property
    def num_requested_tokens(self) -> int:
        """Output tokens of all samples."""
        return sum(length for _, length in self.outputs)

    def num_demand_blocks(self, block_size: int) -> int:
        """Blocks that it holds at its full length when nobody else shares them.

        Its samples share the full blocks of the prompt.
        """
        prompt = self.num_prompt_tokens
        if len(self.outputs) == 1:
            return -(-(prompt + self.outputs[0][1]) // block_size)
        shared = prompt // block_size
        ends = (-(-(prompt + length) // block_size) for _, length in self.outputs)
        return shared + sum(end - shared for end in ends)
