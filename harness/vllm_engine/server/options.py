"""What is known of a server before anything is sent to it."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from harness.errors import UsageError

DEFAULT_VOCAB_SIZE = 10_000
"""A server does not say how many tokens its model has; hardly any has fewer."""

HANG_AFTER_S = 60.0
"""Without a token on any request for so long, a server is taken to have stopped."""

_EXAMPLE = "give it as http://localhost:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server is and how it is spoken to.

    Attributes:
        url: Its root, without ``/v1``; has neither password nor query.
        model: Name to ask for; None for the only one that it serves.
        api_key: Sent as a bearer token; never shown, logged or stored.
        vocab_size: Prompts have token ids below this.
        hang_after_s: Without a token on any request for so long, the run ends.
        warmup_requests: Requests sent before the run, which share nothing with it.
        max_concurrency: Most requests under way at a time; None for no limit.
        block_size: Tokens in a block, where the server does not say.
        sample_period_s: Time between two looks at its metrics; a replay begins with a
            tenth of it, as short ones would have none.

    Raises:
        UsageError: The URL or a number cannot be used.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    vocab_size: int = DEFAULT_VOCAB_SIZE
    hang_after_s: float = HANG_AFTER_S
    warmup_requests: int = 0
    max_concurrency: int | None = None
    block_size: int = 16
    sample_period_s: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", root_url(self.url))
        for name, lowest in (("vocab_size", 2), ("warmup_requests", 0)):
            if getattr(self, name) < lowest:
                raise UsageError(
                    f"{name} is {getattr(self, name)}, must be at least {lowest}"
                )
        if not self.hang_after_s > 0:
            raise UsageError(f"hang_after is {self.hang_after_s:g} s, must be above 0")


def root_url(text: str) -> str:
    """The URL without ``/v1`` and what follows; ``http://`` where there is no scheme.

    Raises:
        UsageError: It is none of HTTP, or holds a password or a query.
    """
    given = text.strip()
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UsageError(f"the URL cannot be read: {error}; {_EXAMPLE}") from error
    if parts.username or parts.password or "@" in parts.netloc:
        raise UsageError(
            "the URL holds a name or a password, which would be stored with the run;"
            " put the key into the environment as VLLM_API_KEY"
        )
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UsageError(f"{given!r} is no URL of a server; {_EXAMPLE}")
    if parts.query or parts.fragment:
        raise UsageError(f"the URL has something after its path; {_EXAMPLE}")
    path = parts.path.rstrip("/")
    for ending in ("/completions", "/chat", "/models", "/v1", "/metrics"):
        path = path.removesuffix(ending)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
