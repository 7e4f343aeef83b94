"""One answer of a server, as its stream comes in."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.vllm_engine.server.fault import (
    Fault,
    ServerFaultError,
    message_in,
    shortened,
)

MOST = 2**60
"""Tokens or nanoseconds of an answer: decades, so that a row can hold them."""

MOST_TIMES, SPARE = 2, 16
"""An answer with more than so many times the tokens that were asked for, and a few, has
no end. Some servers end each sample with a chunk that has no token."""


@dataclass(slots=True)
class Completion:
    """One request as the client saw it; times are nanoseconds of ``perf_counter``.

    Attributes:
        num_asked_tokens: Of all samples together; None for no bound.
        first_token_ns: When the first chunk with a token came, of whatever sample.
        last_token_ns: When the last such chunk came.
        gaps: When a chunk came that was not its sample's first, and how long after the
            one before it.
        num_chunks: Chunks with tokens, all samples together.
        num_prompt_tokens: As the server counts them; None where it does not say.
        num_output_tokens: The same, all samples together.
        num_cached_tokens: Prompt tokens that it found in its cache.
        queue_ns: What the server says that the request waited in its queue.
        token_ids: What was generated, by sample, where the server was asked and says it.
        is_begun: The first byte of an answer came.
        is_whole: The stream came to its end.
    """

    num_asked_tokens: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    num_chunks: int = 0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    queue_ns: int | None = None
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    is_begun: bool = False
    is_whole: bool = False
    _last_of_sample: dict[int, int] = field(default_factory=dict)

    def take(self, data: bytes, now_ns: int) -> None:
        """Take note of the data of one event.

        Raises:
            ServerFaultError: It is an error, cannot be read, or goes on and on.
        """
        if data == b"[DONE]":
            self.is_whole = True
            return
        try:
            document = orjson.loads(data)
        except ValueError as error:
            raise ServerFaultError(
                Fault.ERROR, f"the stream holds no JSON: {shortened(repr(data[:80]))}"
            ) from error
        if not isinstance(document, dict) or document.get("error") is not None:
            said = shortened(message_in(document)) or "an error without a word"
            raise ServerFaultError(Fault.ERROR, f"in the middle of an answer: {said}")
        try:
            self._take_document(document, now_ns)
        except (AttributeError, TypeError) as error:
            raise ServerFaultError(
                Fault.ERROR,
                "the stream holds other JSON than vLLM's completions:"
                f" {shortened(repr(data[:80]))}",
            ) from error
        self._check_end()

    def _check_end(self) -> None:
        if self.num_asked_tokens is None:
            return
        num_tokens = max(self.num_chunks, sum(map(len, self.token_ids.values())))
        if num_tokens > MOST_TIMES * self.num_asked_tokens + SPARE:
            raise ServerFaultError(
                Fault.ERROR,
                f"an answer has no end: {num_tokens:,} tokens have come, and max_tokens"
                f" asked for {self.num_asked_tokens:,}; is it a vLLM server?",
            )

    def _take_document(self, document: dict[str, Any], now_ns: int) -> None:
        for choice in document.get("choices") or ():
            sample = _count(choice.get("index")) or 0
            token_ids = choice.get("token_ids") or ()
            self._take_token(sample, now_ns)
            if all(type(token) is int for token in token_ids):
                self.token_ids.setdefault(sample, []).extend(token_ids)
        self._take_usage(document.get("usage"), document.get("metrics"))

    def _take_token(self, sample: int, now_ns: int) -> None:
        before_ns = self._last_of_sample.get(sample)
        self._last_of_sample[sample] = now_ns
        if before_ns is not None:
            self.gaps.append((now_ns, now_ns - before_ns))
        if self.first_token_ns is None:
            self.first_token_ns = now_ns
        self.last_token_ns = now_ns
        self.num_chunks += 1

    def _take_usage(self, usage: Any, metrics: Any) -> None:
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            self.num_prompt_tokens = _count(usage.get("prompt_tokens"))
            self.num_output_tokens = _count(usage.get("completion_tokens"))
            if isinstance(details, dict):
                self.num_cached_tokens = _count(details.get("cached_tokens"))
        if isinstance(metrics, dict):
            self.queue_ns = _count(metrics.get("queue_time_ms"), 1e6)


def _count(number: object, factor: float = 1) -> int | None:
    """A number of tokens or nanoseconds; None where that is none that could be."""
    if type(number) not in (int, float):
        return None
    assert isinstance(number, int | float)
    count = number * factor
    return round(count) if 0 <= count <= MOST else None
