"""One request, as schedulers and arrival sources see it."""

from collections.abc import Iterable
from dataclasses import dataclass

_NUM_NAMED = 5

Run = tuple[int, int]
"""A stretch of prompt content: ``(segment, num_tokens)``.

Token ``i`` of segment ``s`` is the same token wherever it appears, and differs from every
other token; a run always starts at token 0 of its segment. So two prompts share exactly
the leading tokens on which their runs agree.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt with the outputs it will have.

    Attributes:
        request_id: Position in the workload, from 0.
        arrival_ns: When it reaches the engine, nanoseconds since the run began. For a
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


def named(request_ids: Iterable[int]) -> str:
    """The first few of the requests, and how many more there are, for people."""
    ids = sorted(set(request_ids))
    text = ", ".join(f"#{request_id}" for request_id in ids[:_NUM_NAMED])
    num_more = len(ids) - _NUM_NAMED
    return f"{text}, … {num_more} more" if num_more > 0 else text
