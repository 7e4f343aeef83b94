"""The three queues of the v0 scheduler, and what there is to say of them."""

from collections import deque
from dataclasses import dataclass, field

from allocators.block_space_manager import BlockSpaceManager
from allocators.sequence import SequenceStatus
from harness.schedulers.batch import CacheState
from harness.schedulers.call import Member
from results.naming import named


@dataclass(slots=True)
class Queues:
    """Every unfinished request is in one of them, between two calls.

    Attributes:
        waiting: New and recomputed requests, the next one first.
        running: Requests that hold GPU blocks; the last is preempted first.
        swapped: Requests whose blocks lie on the CPU, the next one first.
    """

    waiting: deque[Member] = field(default_factory=deque)
    running: deque[Member] = field(default_factory=deque)
    swapped: deque[Member] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running or self.swapped)

    def drop_finished(self) -> None:
        """Take those out of the running queue that have finished."""
        self.running = deque(m for m in self.running if not m.group.is_finished)

    def take_all(self) -> list[Member]:
        """Empty the queues; who was in them."""
        members = [*self.running, *self.swapped, *self.waiting]
        for queue in (self.running, self.swapped, self.waiting):
            queue.clear()
        return members


def cache_state(manager: BlockSpaceManager, queues: Queues) -> CacheState:
    """Queues and pool as they are now; costs the length of the running queue."""
    gpu = manager.gpu_allocator
    num_used_blocks = gpu.num_blocks - gpu.num_free_blocks
    cpu = manager.cpu_allocator
    unfilled = {}
    for member in queues.running:
        for seq in member.group.seqs_with(SequenceStatus.RUNNING):
            table = manager.block_tables[seq.seq_id]
            # Its newest token has no slot yet where it sits this step out.
            num_empty = len(table) * manager.block_size - seq.num_tokens
            unfilled[table.last] = max(0, num_empty)
    return CacheState(
        num_waiting=len(queues.waiting),
        num_running=len(queues.running),
        num_swapped=len(queues.swapped),
        num_used_blocks=num_used_blocks,
        num_used_tokens=num_used_blocks * manager.block_size - sum(unfilled.values()),
        num_cached_blocks=gpu.num_cached_blocks,
        num_used_cpu_blocks=cpu.num_blocks - cpu.num_free_blocks,
    )


def describe_holders(manager: BlockSpaceManager, queues: Queues) -> str:
    """Who is in which queue and how many blocks are free, for people."""
    by_name = {
        "running": queues.running,
        "swapped out": queues.swapped,
        "waiting": queues.waiting,
    }
    parts = [
        f"{len(queue)} {name} ({named(m.request.request_id for m in queue)})"
        for name, queue in by_name.items()
        if queue
    ]
    gpu = manager.gpu_allocator
    free = f"{gpu.num_free_blocks:,} of {gpu.num_blocks:,} GPU blocks free"
    return ", ".join([*parts, free])
