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


@dataclass(slots=True)
class Completion:
    """One request as the client saw it; times are nanoseconds of ``perf_counter``.

    Attributes:
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
            ServerFaultError: It is an error, or cannot be read.
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
        if not isinstance(document, dict) or "error" in document:
            said = shortened(message_in(document)) or "an error without a word"
            raise ServerFaultError(Fault.ERROR, f"in the middle of an answer: {said}")
        for choice in document.get("choices") or ():
            sample = int(choice.get("index") or 0)
            self._take_token(sample, now_ns)
            self.token_ids.setdefault(sample, []).extend(choice.get("token_ids") or ())
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
            self.num_prompt_tokens = usage.get("prompt_tokens")
            self.num_output_tokens = usage.get("completion_tokens")
            self.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get(
                "cached_tokens"
            )
        if isinstance(metrics, dict) and metrics.get("queue_time_ms") is not None:
            self.queue_ns = round(metrics["queue_time_ms"] * 1e6)
