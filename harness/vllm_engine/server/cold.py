"""Whether a server's prefix cache was empty when a run began, and making it so."""

from dataclasses import dataclass

from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.fault import ServerFaultError
from harness.vllm_engine.server.metrics import Snapshot
from results.record import RequestRecord

UNKNOWN = (
    "the cache is not known to be cold: start the server with VLLM_SERVER_DEV_MODE=1,"
    " so that it can be emptied, or anew before each run"
)


@dataclass(frozen=True, slots=True)
class CacheState:
    """What is known of the cache before the first request.

    Attributes:
        is_cold: It held nothing that the run could find; None where nobody knows.
        how: Why that is believed, or what to do about it.
    """

    is_cold: bool | None = None
    how: str = UNKNOWN


async def reset_cache(
    client: ServerClient, server: Server, first: Snapshot | None
) -> CacheState:
    """Empty the prefix cache where the server can; what is known of it then.

    Args:
        client: Speaks to the server.
        server: What it is.
        first: Its metrics before anything of ours was sent.
    """
    if server.is_caching is False:
        return CacheState(True, "prefix caching is off")
    if await _was_reset(client):
        return CacheState(True, "emptied by POST /reset_prefix_cache")
    if first is not None and first.counter("prompt_tokens") == 0:
        return CacheState(True, "the server had seen no prompt before")
    return CacheState()


async def _was_reset(client: ServerClient) -> bool:
    """Whether the server emptied its cache; with offloading, that tier too."""
    try:
        answer = await client.post("/reset_prefix_cache?reset_external=true")
        if answer.status == 404:
            return False
        if answer.status != 200:
            answer = await client.post("/reset_prefix_cache")
    except ServerFaultError:
        return False
    said = answer.json()
    is_refused = isinstance(said, dict) and said.get("success") is False
    return answer.status == 200 and not is_refused


def checked(
    state: CacheState,
    records: list[RequestRecord],
    *,
    is_cached_known: bool,
    num_hit_tokens: float | None,
) -> CacheState:
    """The same, unless the run found more than it could have put there itself.

    A request can find what earlier prompts of the run began with, and no more.

    Args:
        state: What was believed.
        records: Of the run.
        is_cached_known: Whether they say what each request found.
        num_hit_tokens: What all found together, as the server counts; None if it does
            not.
    """
    shared = [record.num_shared_tokens for record in records]
    if any(tokens is None for tokens in shared):
        return state
    found = num_hit_tokens
    if is_cached_known:
        found = max(
            (r.num_cached_tokens - (r.num_shared_tokens or 0) for r in records), default=0
        )
        most = 0
    else:
        most = sum(tokens or 0 for tokens in shared)
    if found is not None and found > most and not any(r.n > 1 for r in records):
        return CacheState(
            False,
            "the cache was not cold: requests found more in it than the run had put"
            f" there; {UNKNOWN.partition(': ')[2]}",
        )
    return state
