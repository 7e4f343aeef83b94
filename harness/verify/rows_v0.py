"""The decisions of a v0 run, in the form of recorded rows."""

from collections.abc import Sequence as Seq
from typing import Any

from allocators.sequence import Sequence
from harness.executors.executor import Execution
from harness.request import Request
from harness.schedulers.batch import Batch, Dismissal, Finished, TransferId
from harness.schedulers.scheduler_v0 import SchedulerV0

Row = dict[str, Any]


class RowRecorderV0:
    """Observes an engine and writes one row a step, repeated steps included.

    While a batch repeats, each table only gains blocks at its end, so the rows in between
    follow from the tables at the end and the number of blocks that each length needs.
    """

    def __init__(self, scheduler: SchedulerV0) -> None:
        self.rows: list[Row] = []
        self._scheduler = scheduler
        self._manager = scheduler.block_manager

    def arrived(self, request: Request) -> None:
        """Arrivals are not part of the rows."""

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Start the row of this call; it is complete already if nothing runs."""
        scheduler = self._scheduler
        entries = batch.scheduled
        ignored = sorted(
            batch.dismissed, key=lambda d: d.reason is Dismissal.SWAP_IN_NEVER
        )
        ignored_ids = [dismissed.request.request_id for dismissed in ignored]
        row = {
            "step": now_ns,
            "prefill": [
                [e.request.request_id, e.num_tokens] for e in entries if e.is_prefill
            ],
            "decode": [e.request.request_id for e in entries if not e.is_prefill],
            "swap_in": [list(pair) for pair in batch.swap_in],
            "swap_out": [list(pair) for pair in batch.swap_out],
            "copy_on_write": [list(pair) for pair in batch.copy_on_write],
            "ignored": ignored_ids,
            "preempted": batch.num_preempted,
            "computed_blocks": [
                [e.request.request_id, e.num_computed_blocks]
                for e in entries
                if e.num_computed_blocks
            ],
            "free_gpu": self._manager.num_free_gpu_blocks,
            "free_cpu": self._manager.num_free_cpu_blocks,
            "waiting": len(scheduler.queues.waiting),
            "running": len(scheduler.queues.running),
            "swapped": len(scheduler.queues.swapped),
            "tables": self._tables(batch, num_steps_back=0),
        }
        self.rows.append(row)
        self._end_row(ignored_ids)

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """Add the rows of the steps between the first and the tokens of the last."""
        first = self.rows[-1]
        quiet: Row = {
            "swap_in": [], "swap_out": [], "copy_on_write": [], "ignored": [],
            "preempted": 0, "finished": [],
        }  # fmt: skip
        seqs = [seq for _, seqs in self._scheduler.batch_seqs(batch) for seq in seqs]
        for step in range(1, num_steps + 1):
            back = num_steps - step
            free_gpu = self._manager.num_free_gpu_blocks + self._grown(seqs, back)
            row = first | quiet
            row |= {"step": first["step"] + step, "tables": self._tables(batch, back)}
            row |= {"free_gpu": free_gpu, "free_gpu_end": free_gpu}
            self.rows.append(row)

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """Complete the batch's last row."""
        self._end_row(self.rows[-1]["ignored"] + [d.request.request_id for d in done])

    def transferred(self, transfers: Seq[TransferId]) -> None:
        """Copies are recorded where they begin."""

    def _end_row(self, finished: list[int]) -> None:
        self.rows[-1] |= {
            "finished": finished,
            "free_gpu_end": self._manager.num_free_gpu_blocks,
            "free_cpu_end": self._manager.num_free_cpu_blocks,
        }

    def _tables(self, batch: Batch, num_steps_back: int) -> list[list[Any]]:
        """Tables of the batch, as they were so many steps before now."""
        return [
            [request_id, [self._table(seq, num_steps_back) for seq in seqs]]
            for request_id, seqs in self._scheduler.batch_seqs(batch)
        ]

    def _table(self, seq: Sequence, num_steps_back: int) -> list[int]:
        numbers = self._manager.block_tables[seq.seq_id].block_numbers
        if num_steps_back:
            return numbers[: self._num_blocks(seq, num_steps_back)]
        return numbers

    def _num_blocks(self, seq: Sequence, num_steps_back: int) -> int:
        return -(-(seq.num_tokens - num_steps_back) // self._manager.block_size)

    def _grown(self, seqs: list[Sequence], num_steps_back: int) -> int:
        """Blocks taken in the last so many steps."""
        return sum(
            self._num_blocks(seq, 0) - self._num_blocks(seq, num_steps_back)
            for seq in seqs
        )
