"""Copies to an offload tier, which hold blocks of requests that have ended."""

import time
from typing import Any

DRAIN_S = 5.0
"""Longest wait for copies to end, after the warm-up."""


def is_draining(engine: Any) -> bool:
    """Whether vLLM's own loop would go on, for copies though nobody asks for more.

    Args:
        engine: Of V1, in this process.
    """
    scheduler = engine.engine_core.engine_core.scheduler
    has_tier = getattr(scheduler, "connector", None) is not None
    return has_tier and bool(scheduler.has_requests())


def drain(engine: Any) -> None:
    """Make steps until no block is held any more, or for as long as one may wait."""
    give_up_s = time.monotonic() + DRAIN_S
    while is_draining(engine) and time.monotonic() < give_up_s:
        engine.step()
        time.sleep(0.01)
