"""Whether a server goes by the priorities of a trace, as far as it tells.

Sources: vLLM 0.32.0, where a priority is taken and only ``--scheduling-policy priority``
goes by it, whatever ``entrypoints/openai/completion/protocol.py`` says of an error; vLLM
0.10, ``engine/async_llm_engine.py``, whose V0 engine refuses it otherwise.
"""

from dataclasses import dataclass

from harness.vllm_engine.server.bodies import Bodies
from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.completion import Completion
from harness.vllm_engine.server.fault import RequestRefusedError, ServerFaultError

REMEDY = "start it with --scheduling-policy priority"


@dataclass(frozen=True, slots=True)
class PriorityState:
    """What becomes of the priorities.

    Attributes:
        is_sent: Requests carry theirs.
        policy: The server's scheduling policy; None where it does not say.
        note: What a reader must know of that; empty where there is nothing.
    """

    is_sent: bool = False
    policy: str | None = None
    note: str = ""


async def policy_told(client: ServerClient) -> str | None:
    """The scheduling policy, which a server in development mode tells."""
    try:
        answer = await client.get("/server_info?config_format=json")
    except ServerFaultError:
        return None
    found = answer.json() if answer.status == 200 else None
    for name in ("vllm_config", "scheduler_config", "policy"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


async def try_priority(
    client: ServerClient, bodies: Bodies, number: int
) -> PriorityState:
    """Ask for the policy and, where that is not told, with a request that has a priority.

    Args:
        client: Speaks to the server.
        bodies: Makes that request, which shares nothing with the workload.
        number: Of that request among those before the run.

    Raises:
        ServerFaultError: The server cannot go on.
    """
    policy = await policy_told(client)
    if policy == "priority":
        return PriorityState(True, policy)
    if policy is not None:
        return PriorityState(
            False,
            policy,
            "priorities of the trace were left out: the server's scheduling policy is"
            f" {policy}; {REMEDY}",
        )
    try:
        await client.complete(bodies.warm_up(number, 1, priority=1), Completion())
    except RequestRefusedError as refusal:
        return PriorityState(
            note="priorities of the trace were left out, as the server refuses them"
            f" ({refusal}); {REMEDY}"
        )
    return PriorityState(
        True,
        note="priorities were sent; the server does not say whether it goes by them, as"
        " it does with --scheduling-policy priority",
    )
