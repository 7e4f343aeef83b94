"""What can go wrong between a client and a server, said so that one can act on it."""

import json
import re
from contextlib import suppress
from enum import StrEnum
from typing import Any

from harness.errors import EngineError

MOST_SHOWN = 300
"""Characters of a server's own words; some send their whole input back."""


class Fault(StrEnum):
    """Why a run on a server ended early; the kind of its outcome."""

    LOST = "server_lost"
    ERROR = "server_error"
    UNRESPONSIVE = "server_unresponsive"


class ServerFaultError(EngineError):
    """The server is of no more use to this run.

    Attributes:
        kind: Which way it failed.
    """

    def __init__(self, kind: Fault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RequestRefusedError(EngineError):
    """The server does not take this request; it may take others.

    Attributes:
        reason: A word for scripts: ``prompt_too_long`` or ``refused_by_server``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_TOO_LONG = re.compile(
    r"context length|max_model_len|maximum model length|too long|longer than", re.I
)


def error_of_status(status: int, body: bytes, *, secret: str | None) -> EngineError:
    """What an answer means that is neither a stream nor a success.

    Args:
        status: Of HTTP, not 200.
        body: What came with it.
        secret: The API key, which some servers repeat in what they say.
    """
    said = told_by(body, secret=secret)
    if status in (400, 413, 422):
        is_too_long = _TOO_LONG.search(said) is not None
        reason = "prompt_too_long" if is_too_long else "refused_by_server"
        return RequestRefusedError(reason, f"{status}: {said}")
    return ServerFaultError(Fault.ERROR, f"HTTP {status}: {said}{_remedy(status)}")


def _remedy(status: int) -> str:
    if status in (401, 403):
        return (
            "; put the key that the server was started with into the environment as"
            " VLLM_API_KEY (or OPENAI_API_KEY)"
        )
    if 300 <= status < 400:
        return "; give the URL that it points to with --url"
    return {
        404: "; correct --url, or name a model that it serves with --api-model",
        429: "; it limits how much it takes: replay without the gateway before it, or"
        " lower --request-rate or --max-concurrency",
        503: "; wait until it has started",
    }.get(status, "")


def told_by(body: bytes, *, secret: str | None = None) -> str:
    """The message in an error's body, in one line and without the key."""
    text = body[: 64 * MOST_SHOWN].decode(errors="replace")
    with suppress(ValueError):
        text = message_in(json.loads(text)) or text
    return shortened(text, secret=secret) or "without a word"


def message_in(document: Any) -> str:
    """The message of an error as OpenAI, vLLM of any age or FastAPI write it."""
    for name in ("error", "detail", "message"):
        if isinstance(document, dict) and document.get(name):
            return message_in(document[name])
    return document if isinstance(document, str) else ""


def shortened(text: str, *, secret: str | None = None) -> str:
    """The text in one line of bounded length, the key blotted out."""
    if secret:
        text = text.replace(secret, "[key]")
    line = " ".join(text.split())
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"
