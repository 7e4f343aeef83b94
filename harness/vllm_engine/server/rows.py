"""From what a client saw to the rows of a run."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from harness.request import Request
from harness.run_columns import IntArray
from harness.vllm_engine.server.completion import Completion
from harness.vllm_engine.server.metrics import Snapshot
from harness.workload import Workload
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows

Clock = Callable[[int], int]
"""From nanoseconds of ``perf_counter`` to nanoseconds since the run began."""

_NOTHING = {
    name: 0
    for name in StepRecord.__dataclass_fields__
    if name not in ("gap_ns", "gap_count")
}


class RequestRows:
    """One record a request, from the moment at which it was due.

    Attributes:
        lateness_ns: Between due and sent, one a request that was sent.
        num_short: Requests that got fewer tokens than they asked for.
        num_long: Requests that got more, as the server counts.
        num_uneven: Requests with samples of several lengths, which a server gives one.
        num_finished_samples: Samples of all that have finished.
        has_lumps: A chunk held several tokens, so that gaps are between chunks.
        is_cached_known: The server said of each request what it found in its cache.
        is_queue_known: The same of the time in its queue.
        num_done: Requests that have left.
        refusals: How often the server said what when it refused a request.
    """

    def __init__(
        self, clock: Clock, block_size: int, findable: tuple[IntArray, IntArray] | None
    ) -> None:
        self.lateness_ns: list[int] = []
        self.num_short = self.num_long = self.num_uneven = self.num_finished_samples = 0
        self.has_lumps = False
        self.is_cached_known = self.is_queue_known = True
        self.num_done = 0
        self.refusals: Counter[str] = Counter()
        self._clock = clock
        self._block_size = block_size
        self._findable = findable
        self._records: dict[int, RequestRecord] = {}
        self._changed: set[int] = set()

    @property
    def rows(self) -> Rows[RequestRecord]:
        """The records by request id."""
        ordered = (self._records[i] for i in sorted(self._records))
        return Rows(RequestRecord, ordered)

    @property
    def records(self) -> list[RequestRecord]:
        """The records in the order in which they were sent."""
        return list(self._records.values())

    def take_changes(self) -> list[RequestRecord]:
        """Records that are new or other than when last taken."""
        changed = [self._records[i] for i in sorted(self._changed)]
        self._changed.clear()
        return changed

    def due(self, request: Request) -> RequestRecord:
        """Begin a request's record."""
        shared, of_prompts = (
            (None, None)
            if self._findable is None
            else (int(tokens[request.request_id]) for tokens in self._findable)
        )
        record = RequestRecord(
            request_id=request.request_id,
            arrival_ns=request.arrival_ns,
            queued_ns=request.arrival_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            n=request.n,
            num_requested_tokens=request.num_requested_tokens,
            num_demand_blocks=request.num_demand_blocks(self._block_size),
            num_shared_tokens=shared,
            num_shared_prompt_tokens=of_prompts,
        )
        self._records[request.request_id] = record
        self._changed.add(request.request_id)
        return record

    def sent(self, request: Request, now_ns: int) -> None:
        """Note when a request was really sent, since the run began."""
        record = self._records[request.request_id]
        self.lateness_ns.append(now_ns - record.arrival_ns)
        record.queued_ns = now_ns

    def finished(self, request: Request, seen: Completion, num_asked: int) -> int:
        """Note a whole answer; when it ended, since the run began."""
        record = self._records[request.request_id]
        assert seen.last_token_ns is not None, "a whole stream has a token"
        self._take(record, seen)
        record.finished_ns = self._clock(seen.last_token_ns)
        record.status = RequestStatus.FINISHED
        self.num_short += record.num_output_tokens < num_asked
        self.num_long += (seen.num_output_tokens or 0) > num_asked
        self.num_uneven += len({length for _, length in request.outputs}) > 1
        self.num_finished_samples += request.n
        self.has_lumps |= seen.num_chunks < record.num_output_tokens
        self.is_cached_known &= seen.num_cached_tokens is not None
        self.is_queue_known &= seen.queue_ns is not None
        if seen.queue_ns is not None:
            record.first_scheduled_ns = record.queued_ns + seen.queue_ns
        self.num_done += 1
        return record.finished_ns

    def refused(self, request: Request, now_ns: int, reason: str) -> None:
        """Note a request that the server does not take."""
        record = self._records[request.request_id]
        record.queued_ns = record.finished_ns = max(now_ns, record.arrival_ns)
        record.status, record.reason = RequestStatus.REJECTED, reason
        self._changed.add(record.request_id)
        self.num_done += 1

    def broken_off(self, request: Request, seen: Completion | None, reason: str) -> None:
        """Note a request that was under way when the run ended."""
        record = self._records[request.request_id]
        if seen is not None and seen.first_token_ns is not None:
            self._take(record, seen)
        record.status, record.reason = RequestStatus.FAILED, reason
        self._changed.add(record.request_id)

    def never_sent(self, workload: Workload, now_ns: int, reason: str) -> None:
        """Note all to which the run did not come, as planned but not before its end."""
        for request_id in range(len(workload)):
            if request_id not in self._records:
                record = self.due(workload.request(request_id))
                record.arrival_ns = max(record.arrival_ns, now_ns)
                record.queued_ns = record.arrival_ns
                record.reason = f"{reason} before it arrived"

    def _take(self, record: RequestRecord, seen: Completion) -> None:
        assert seen.first_token_ns is not None
        num_tokens = seen.num_output_tokens or seen.num_chunks
        record.first_token_ns = self._clock(seen.first_token_ns)
        record.num_output_tokens = num_tokens
        record.max_sample_tokens = -(-num_tokens // record.n)
        record.num_cached_tokens = seen.num_cached_tokens or 0
        self._changed.add(record.request_id)


class StepRows:
    """One record between two looks at a server's metrics.

    Args:
        clock: For times of the run.
        num_usable_blocks: Blocks of one engine; None where the server does not say.
    """

    def __init__(self, clock: Clock, num_usable_blocks: int | None) -> None:
        self.rows: Rows[StepRecord] = Rows(StepRecord)
        self._clock = clock
        self._num_blocks = num_usable_blocks or 0
        self._last: Snapshot | None = None
        self._last_ns = 0
        self._gaps_ns: list[int] = []
        self._num_taken = 0

    def add_gaps(self, gaps: list[tuple[int, int]]) -> None:
        """Take times between tokens; they count where the next row ends."""
        self._gaps_ns += [gap_ns for _, gap_ns in gaps]

    def look(self, now_ns: int, snapshot: Snapshot | None) -> None:
        """End a row; it holds what was so at its beginning, and blocks at its end too."""
        if now_ns > self._last_ns:
            self.rows.append(self._row(now_ns, snapshot))
            self._gaps_ns.clear()
        self._last, self._last_ns = snapshot, now_ns

    def take_new(self) -> list[StepRecord]:
        """Rows since the last call."""
        new = self.rows[self._num_taken :]
        self._num_taken = len(self.rows)
        return new

    def _row(self, now_ns: int, snapshot: Snapshot | None) -> StepRecord:
        lengths_ns, counts = np.unique(
            np.array(self._gaps_ns, dtype=np.int64), return_counts=True
        )
        duration_ns = now_ns - self._last_ns
        values = _NOTHING | {
            "start_ns": self._last_ns,
            "end_ns": now_ns,
            "num_steps": 1,
            "first_step_ns": duration_ns,
            "last_step_ns": duration_ns,
            "num_used_blocks": self._used_blocks(self._last),
            "num_used_blocks_end": self._used_blocks(snapshot),
            **{
                name: round((self._last and self._last.gauge(name)) or 0)
                for name in ("num_running", "num_waiting", "num_swapped")
            },
        }
        return StepRecord(**values, gap_ns=lengths_ns.tolist(), gap_count=counts.tolist())

    def _used_blocks(self, snapshot: Snapshot | None) -> int:
        usage = None if snapshot is None else snapshot.gauge("kv_cache_usage")
        return round(min(usage or 0.0, 1.0) * self._num_blocks)
