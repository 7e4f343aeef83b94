"""What the v1 scheduler knows of a request: one for each sample, as in vLLM's V1."""

from dataclasses import dataclass

from allocators.kv_cache_manager import RequestBlocks
from harness.request import Request
from harness.schedulers.batch import Dismissal


@dataclass(slots=True, eq=False)
class Siblings:
    """The requests that the engine makes of one with several samples.

    Attributes:
        request: The user's request.
        lengths: Output tokens of each sample, 0 before it has finished.
        num_left: Samples that have not left.
        reason: Why one was dismissed, if so.
    """

    request: Request
    lengths: list[int]
    num_left: int
    reason: Dismissal | None = None


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One sample of a request, from its arrival to its last token.

    While it decodes in lockstep with others, what is said here of its tokens is how
    things stood when it joined them; :class:`Lockstep` knows how they stand.

    Attributes:
        siblings: The samples of the same request, itself included.
        sample: Which of them.
        blocks: Its blocks.
        num_final_tokens: Prompt and output tokens at which it finishes.
        sort_key: Its place in a waiting queue by priority.
        num_tokens: Tokens that are known: handed in, or of the prompt.
        num_computed_tokens: Tokens whose KV is in its blocks when all that is scheduled
            has run.
        num_settled_tokens: Of these, tokens of steps that have been handed in.
        num_in_flight: Tokens that scheduled steps will bring.
        order: Its place in the running queue; later ones are preempted first.
        num_preemptions: How often it lost its blocks.
        has_sampled: It decodes: its prefill, or the one after a preemption, is over.
        base: In lockstep: computed tokens less the clock.
        joined_clock: In lockstep: the clock when it joined.
        is_in_lockstep: Whether it is.
        num_loaded_tokens: Tokens of its latest admission that the offload tier had.
        is_loading: They are on their way.
        has_left: It has finished or was dismissed.
    """

    siblings: Siblings
    sample: int
    blocks: RequestBlocks
    num_final_tokens: int
    sort_key: tuple[int, int, str]
    num_tokens: int
    num_computed_tokens: int = 0
    num_settled_tokens: int = 0
    num_in_flight: int = 0
    order: int = -1
    num_preemptions: int = 0
    has_sampled: bool = False
    base: int = 0
    joined_clock: int = 0
    is_in_lockstep: bool = False
    num_loaded_tokens: int = 0
    is_loading: bool = False
    has_left: bool = False

    @property
    def request(self) -> Request:
        """The user's request."""
        return self.siblings.request

    @property
    def num_wanted_tokens(self) -> int:
        """Tokens known or in flight that are not computed."""
        return self.num_tokens + self.num_in_flight - self.num_computed_tokens

    @property
    def is_ending(self) -> bool:
        """All its tokens are there or on their way."""
        return self.num_tokens + self.num_in_flight >= self.num_final_tokens


def engine_requests_of(
    request: Request, blocks: list[RequestBlocks], max_model_len: int
) -> list[EngineRequest]:
    """One for each sample; it finishes with its output or at the model's length."""
    prompt = request.num_prompt_tokens
    siblings = Siblings(request, [0] * request.n, request.n)
    return [
        EngineRequest(
            siblings,
            sample,
            blocks[sample],
            num_final_tokens=max(min(prompt + length, max_model_len), prompt + 1),
            sort_key=(request.priority, request.arrival_ns, _name(request, sample)),
            num_tokens=prompt,
        )
        for sample, (_, length) in enumerate(request.outputs)
    ]


def _name(request: Request, sample: int) -> str:
    """What vLLM calls a sample: equal requests are served in the order of names."""
    name = str(request.request_id)
    return name if request.n == 1 else f"{sample}_{name}"
