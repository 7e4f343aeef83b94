"""What a result file of another client says, whichever client that was."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRequest:
    """A request as its client recorded it; None for what the file does not say.

    Attributes:
        start_s: When it was sent, on the client's clock.
        prompt_tokens: Tokens of the prompt.
        output_tokens: Tokens generated.
        requested_tokens: Output tokens that were asked for.
        cached_tokens: Prompt tokens that the server found in its prefix cache.
        ttft_s: From sending to the first token.
        e2e_s: From sending to the last token, or to the error.
        gaps_s: Times between consecutive pieces of the stream after the first.
        late_s: By how much it was sent after it was due.
        error: What the client says of its failure; empty where it was served.
        is_unfinished: It was still under way when the client stopped.
    """

    start_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    requested_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    gaps_s: tuple[float, ...] | None = None
    late_s: float | None = None
    error: str = ""
    is_unfinished: bool = False

    @property
    def is_served(self) -> bool:
        """All its tokens came."""
        return not self.error and not self.is_unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedResult:
    """One benchmark of a result file.

    Attributes:
        format: Its client, for people.
        model: As the client was told; empty where it does not say.
        requests: In the order in which the client numbers or sends them.
        load: Who sent how much: ``request_rate``, ``max_concurrency``, ``burstiness``.
        duration_s: Of the benchmark by the client's clock, if it says so.
        reported_s: Statistics that the file itself gives, by names as ``ttft_p99``.
        facts: What else it says, for ``Measurement.facts``.
        warmup_requests: Requests of a warm-up, which are not among ``requests``.
        stopped: Why the client did not come to its end; empty where it did.
        notes: What a reader must know.
    """

    format: str
    model: str
    requests: Sequence[ImportedRequest]
    load: Mapping[str, Any]
    duration_s: float | None = None
    reported_s: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    warmup_requests: int = 0
    stopped: str = ""
    notes: tuple[str, ...] = ()

    @property
    def has_starts(self) -> bool:
        """Whether it says when each request was sent."""
        return all(request.start_s is not None for request in self.requests)
