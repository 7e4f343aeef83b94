"""The decisions of a v1 run, in the form of recorded rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from harness.executors.executor import Execution
from harness.request import Request
from harness.schedulers.batch import Batch, Finished, Preempted, TransferId
from harness.schedulers.engine_request import EngineRequest
from harness.schedulers.scheduler_v1 import SchedulerV1

Row = dict[str, Any]


class RowRecorderV1:
    """Observes an engine and writes one row a call, repeated steps included.

    While a batch repeats, tables only gain blocks at their ends, so which step brought
    which block follows from the tables at the end and the lengths.

    The tokens of a step are handed in after the next call where calls are ahead, and
    recordings put them into that call's row.
    """

    def __init__(self, scheduler: SchedulerV1) -> None:
        self.rows: list[Row] = []
        self._scheduler = scheduler
        self._pool = scheduler.manager.block_pool
        self._num_shown: dict[EngineRequest, int] = {}

    def arrived(self, request: Request) -> None:
        """Arrivals are not part of the rows."""

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Start the row of this call."""
        self._num_shown = {r: self._num_shown.get(r, 0) for r in self._scheduler.running}
        steady = self._scheduler.steady_requests() if batch.num_steady_seqs else []
        parts = list(self._scheduler.latest_call.parts.values())
        admitted = [part for part in parts if part.is_admission]
        self._forget([part.request for part in admitted])
        new = [part for part in admitted if not part.num_preemptions]
        resumed = [part for part in admitted if part.num_preemptions]
        ran = steady + [part.request for part in parts if not part.is_admission]
        ran.sort(key=lambda request: request.order)
        num_tokens = {part.request: part.num_tokens for part in parts}
        in_order = ran + [part.request for part in admitted]
        holders = [p.request for p in new] + ran + [p.request for p in resumed]
        pairs = [[name_of(r), num_tokens.get(r, 1)] for r in in_order]
        self.rows.append(
            {
                "step": now_ns,
                "scheduled": pairs,
                "new": [[name_of(p.request), p.num_cached_tokens] for p in new],
                "resumed": [[name_of(p.request), p.num_cached_tokens] for p in resumed],
                "preempted": _names_in_order(batch.preempted_recompute),
                "blocks": self._new_blocks(holders),
                "copy_on_write": 0,
                **self._copies(batch),
                "free": self._pool.num_free_blocks,
                "waiting": len(self._scheduler.waiting),
                "running": len(self._scheduler.running),
                "finished": [],
                "free_end": self._pool.num_free_blocks,
            }
        )

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """Add the rows of the steps that follow the call's own."""
        steady = self._scheduler.steady_requests()
        quiet: Row = self.rows[-1] | {
            "new": [], "resumed": [], "preempted": [], "finished": [],
            "running": len(self._scheduler.running),
        }  # fmt: skip
        free = self._pool.num_free_blocks + sum(
            r.blocks.num_blocks - self._num_shown[r] for r in steady
        )
        for back in range(num_steps - 1, -1, -1):
            blocks = self._new_blocks(steady, num_steps_back=back)
            free -= sum(len(new) for _, new in blocks)
            row = quiet | {"step": self.rows[-1]["step"] + 1, "blocks": blocks}
            self.rows.append(row | {"free": free, "free_end": free})

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """Complete the latest row."""
        self.rows[-1] |= {
            "finished": [name_of(r) for r in self._scheduler.latest_finished],
            "free_end": self._pool.num_free_blocks,
        }

    def transferred(self, transfers: Sequence[TransferId]) -> None:
        """Copies are recorded where they begin."""

    def _copies(self, batch: Batch) -> Row:
        """Copies that the call made, and stores that it forced."""
        if self._scheduler.offloading is None:
            return {}
        makers = self._scheduler.offloading.request_of
        loads, stores = (
            [
                [name_of(makers(t.transfer_id)), t.num_blocks]
                for t in batch.transfers
                if t.is_store == is_store
            ]
            for is_store in (False, True)
        )
        flushed = len(batch.flushed)
        return {"offload_store": stores, "offload_load": loads, "flushed": flushed}

    def _forget(self, requests: list[EngineRequest]) -> None:
        """Show the whole table of a request that is admitted."""
        for request in requests:
            self._num_shown[request] = 0

    def _new_blocks(
        self, requests: list[EngineRequest], num_steps_back: int = 0
    ) -> list[list[Any]]:
        """Blocks that tables have had since they were shown, up to so many steps ago."""
        shown = []
        for request in requests:
            begin, end = self._num_shown[request], request.blocks.num_blocks
            if num_steps_back:
                end = self._num_blocks(request, num_steps_back)
            if end > begin:
                block_ids = request.blocks.block_ids[begin:end].tolist()
                shown.append([name_of(request), block_ids])
                self._num_shown[request] = end
        return shown

    def _num_blocks(self, request: EngineRequest, num_steps_back: int) -> int:
        num_tokens = self._scheduler.num_computed_tokens(request) - num_steps_back
        return self._scheduler.manager.num_blocks_of(num_tokens)


def _names_in_order(preempted: Iterable[Preempted]) -> list[int | str]:
    in_order = sorted(preempted, key=lambda p: (p.request.request_id, p.sample))
    return [name(p.request, p.sample) for p in in_order]


def name_of(request: EngineRequest) -> int | str:
    """What a row calls a sample of a request."""
    return name(request.request, request.sample)


def name(request: Request, sample: int) -> int | str:
    """The request's id; with several samples ``sample_id``, as vLLM names them."""
    if request.n == 1:
        return request.request_id
    return f"{sample}_{request.request_id}"
