"""What is checked, in the order of its worth, and how long each may take."""

from functools import partial

from cuda_checks import big_checks as big
from cuda_checks import memory_checks as memory
from cuda_checks import small_checks as small
from cuda_checks.plan import Check
from cuda_checks.server_check import server
from cuda_checks.session import Session

TOTAL_S = {"cuda": 345.0, "cpu": 420.0}
"""All checks together. On a GPU under six minutes, with what it takes to end the last."""

CPU_FACTOR = 2.0
"""How much more time each check has on a CPU, which may be a busy one."""


def plan(session: Session) -> list[Check]:
    """All checks for a device; those that cannot be made there say so themselves."""
    on_cpu = "" if session.is_cuda else "needs CUDA"
    no_tier = on_cpu or memory.why_no_tier(session)
    no_second = small.why_not_two(session)
    # Those that share a run may each be the one that makes it, under --only.
    rows = (
        ("machine", "torch and vLLM see the device", small.machine, 90, 15, ""),
        ("start", "vLLM starts on the device chosen", small.start, 100, 40, ""),
        ("exact", "vLLM decides as sim --policy v1", small.exact, 80, 8, ""),
        ("capacity", "blocks as capacity says", big.pool_size, 150, 75, on_cpu),
        ("steps", "times of steps beside ours", big.iteration_times, 150, 8, on_cpu),
        ("timed", "requests are sent in time", big.timed, 150, 2, ""),
        ("replay", "outputs are the trace's own", big.replayed_tokens, 150, 2, ""),
        ("offload", "blocks go out and back", memory.offload_tier, 70, 35, no_tier),
        ("server", "a server is replayed on", server, 90, 45, ""),
        ("memory", "no memory is a finding", memory.absurd_kv_cache, 60, 20, ""),
        ("tp", "two GPUs decide as one", small.two_gpus, 90, 40, no_second),
    )
    factor = 1.0 if session.is_cuda else CPU_FACTOR
    return [
        Check(
            name=name,
            title=title,
            run=partial(run, session),
            limit_s=limit_s * factor,
            least_s=least_s * factor,
            why_not=why,
        )
        for name, title, run, limit_s, least_s, why in rows
    ]
