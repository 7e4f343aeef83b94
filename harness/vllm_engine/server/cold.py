"""Whether a server's prefix cache was empty when a run began, and making it so."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.sharing import shared_tokens
from harness.run_columns import IntArray
from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.fault import ServerFaultError
from harness.vllm_engine.server.metrics import Snapshot
from harness.workload import Workload
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
    records: Sequence[RequestRecord],
    most: IntArray | None,
    *,
    is_cached_known: bool,
    num_hit_tokens: float | None,
) -> CacheState:
    """The same, unless the run found more than it could have put there itself.

    Args:
        state: What was believed.
        records: Of the run.
        most: Tokens that each request of the workload could find at most, as
            :func:`most_findable` tells; None where the trace does not say.
        is_cached_known: Whether records say what each request found.
        num_hit_tokens: What all found together, as the server counts; None if it does
            not.
    """
    if most is None or any(record.n > 1 for record in records):
        return state
    if is_cached_known:
        has_more = any(r.num_cached_tokens > most[r.request_id] for r in records)
    else:
        has_more = num_hit_tokens is not None and num_hit_tokens > most.sum()
    if not has_more:
        return state
    return CacheState(
        False,
        "the cache was not cold: requests found more in it than the run had put there;"
        f" {UNKNOWN.partition(': ')[2]}",
    )


def most_findable(workload: Workload) -> IntArray | None:
    """Tokens with which any other request of the workload begins as well, each's most.

    In whatever order a server takes them, a request finds no more. None where the trace
    does not say which prompts begin alike.
    """
    forwards = shared_tokens(workload, with_outputs=True)
    backwards = shared_tokens(
        workload.take(np.arange(len(workload))[::-1]), with_outputs=True
    )
    if forwards is None or backwards is None:
        return None
    most: IntArray = np.maximum(forwards, backwards[::-1])
    return most
