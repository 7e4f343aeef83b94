"""A trace shared out among replicas, as a router in front of them would."""

from enum import StrEnum

import numpy as np

from harness.run_columns import IntArray
from harness.workload import Workload


class Routing(StrEnum):
    """Which replica a conversation goes to.

    ``ROUND_ROBIN``: the next one. ``PREFIX``: the one for what its first prompt begins
    with, so that prompts that begin alike meet.
    """

    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"


def split(workload: Workload, num_replicas: int, routing: Routing) -> list[Workload]:
    """The requests of each replica; one that gets none is left out.

    Later turns go where the first one went. Times are those of the whole trace, counted
    from each replica's first request.
    """
    if num_replicas == 1:
        return [workload]
    replica = _replica_of_root(workload, num_replicas, routing)
    rows = [np.flatnonzero(replica == number) for number in range(num_replicas)]
    return [workload.take(chosen) for chosen in rows if len(chosen)]


def _replica_of_root(workload: Workload, num_replicas: int, routing: Routing) -> IntArray:
    root = np.arange(len(workload))
    for row, parent in enumerate(workload.parent.tolist()):
        if parent >= 0:
            root[row] = root[parent]  # a turn comes after the one that it follows
    roots = np.flatnonzero(workload.parent < 0)
    order = np.zeros(len(workload), dtype=np.int64)
    if routing is Routing.ROUND_ROBIN:
        order[roots] = np.arange(len(roots))
    else:
        prompts = workload.prompts
        firsts = prompts.segments[prompts.offsets[:-1]][roots]
        _, order[roots] = np.unique(firsts, return_inverse=True)
    replica: IntArray = order[root] % num_replicas
    return replica
