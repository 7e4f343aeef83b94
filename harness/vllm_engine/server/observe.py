"""Watching a server without sending it any load."""

import asyncio
import time
from collections.abc import Callable

from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.detect import look, watched
from harness.vllm_engine.server.fault import Fault, ServerFaultError
from harness.vllm_engine.server.observation import Observation
from harness.vllm_engine.server.options import ServerOptions

OnLook = Callable[[float, float], None]

TICK_S = 0.1
"""Between two looks at whether somebody wants to stop."""

LOOK_S = 5.0
"""Longest wait for the metrics of a server under load."""


def observe(
    options: ServerOptions,
    *,
    duration_s: float,
    on_look: OnLook | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Observation:
    """Look at a server's metrics every ``sample_period_s``; nothing but GETs is sent.

    A server that is being started anew is waited for, ``hang_after_s`` long; what was
    seen until then is there.

    Args:
        options: Where the server is.
        duration_s: For how long.
        on_look: Called with the seconds that have passed and those in all.
        is_stopped: Asked ten times a second; watching ends early once it says so.

    Raises:
        ServerFaultError: There is nothing to look at in the first place.
    """
    return asyncio.run(_observe(options, duration_s, on_look, is_stopped))


async def _observe(
    options: ServerOptions,
    duration_s: float,
    on_look: OnLook | None,
    is_stopped: Callable[[], bool],
) -> Observation:
    async with ServerClient(options) as client:
        seen = Observation(await watched(client, options))
        start_s = last_s = time.monotonic()
        number = 0
        while not seen.is_interrupted:
            if await _take(client, seen):
                last_s = time.monotonic()
            passed_s = time.monotonic() - start_s
            if on_look is not None:
                on_look(min(passed_s, duration_s), duration_s)
            if passed_s >= duration_s:
                break
            if time.monotonic() - last_s > options.hang_after_s:
                seen.fault_kind = Fault.UNRESPONSIVE.value
                seen.fault = f"{seen.fault} for {options.hang_after_s:g} s"
                break
            number = max(number + 1, int(passed_s / options.sample_period_s))
            due_s = min(number * options.sample_period_s, duration_s)
            seen.is_interrupted = await _wait(start_s + due_s, is_stopped)
    if not seen.fault_kind:
        seen.fault = ""
    return seen


async def _take(client: ServerClient, seen: Observation) -> bool:
    """Look once; whether there was an answer."""
    try:
        snapshot = await look(client, timeout_s=LOOK_S)
    except ServerFaultError as fault:
        seen.fault = str(fault)
        snapshot = None
    if snapshot is None:
        seen.num_missed += 1
        seen.fault = seen.fault or "the metrics of vLLM were not there any more"
        return False
    seen.take(snapshot)
    return True


async def _wait(until_s: float, is_stopped: Callable[[], bool]) -> bool:
    """Wait for a moment; whether somebody wanted to stop before it."""
    while (left_s := until_s - time.monotonic()) > 0:
        if is_stopped():
            return True
        await asyncio.sleep(min(left_s, TICK_S))
    return is_stopped()
