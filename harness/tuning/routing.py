"""A trace shared out among replicas, as a router in front of them would."""

import numpy as np

from harness.run_columns import IntArray
from harness.tuning.choice import Routing
from harness.workload import Workload

__all__ = ["Routing", "split"]


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
        order[roots] = np.arange(len(roots)) % num_replicas
    else:
        order[roots] = _balanced(_groups(workload, roots, num_replicas), num_replicas)
    replica: IntArray = order[root]
    return replica


def _groups(workload: Workload, roots: IntArray, num_replicas: int) -> IntArray:
    """Which conversations begin alike, in groups no larger than a replica's share.

    Those that cannot be told apart stay together, however many.
    """
    prompts = workload.prompts
    offset, num_runs = prompts.offsets[roots], np.diff(prompts.offsets)[roots]
    group, depth = np.zeros(len(roots), dtype=np.int64), 0
    share = -(-len(roots) // num_replicas)
    while True:
        is_large = np.bincount(group)[group] > share
        rows = np.flatnonzero(is_large & (depth < num_runs))
        if not len(rows):
            return group
        keys = np.full((len(roots), 2), -1, dtype=np.int64)
        keys[:, 0] = group
        keys[rows, 1] = prompts.segments[offset[rows] + depth]
        _, group = np.unique(keys, axis=0, return_inverse=True)
        group, depth = group.reshape(-1), depth + 1


def _balanced(group: IntArray, num_replicas: int) -> IntArray:
    """A replica for each member of a group: the largest first, each where least is."""
    counts = np.bincount(group)
    loads = np.zeros(num_replicas, dtype=np.int64)
    chosen = np.zeros(len(counts), dtype=np.int64)
    for each in np.argsort(-counts, kind="stable"):
        chosen[each] = loads.argmin()
        loads[chosen[each]] += counts[each]
    replica: IntArray = chosen[group]
    return replica
