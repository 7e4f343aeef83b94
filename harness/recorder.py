"""From what happens in the loop to the records of a run."""

from collections import Counter, deque

from harness.executors.executor import Execution
from harness.request import Request
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Dismissal,
    Dismissed,
    Finished,
    Preempted,
    Scheduled,
    Scheduler,
)
from results.record import RequestRecord, RequestStatus, StepRecord


class Recorder:
    """Observes an engine and keeps one record a request and one a stretch of steps.

    Attributes:
        requests: Records in arrival order, by request id.
        steps: Records in time order.
        dismissed: Requests that left without finishing.
        num_done: Requests that have left, however they left.

    Args:
        scheduler: Whose queues and blocks are recorded.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.requests: dict[int, RequestRecord] = {}
        self.steps: list[StepRecord] = []
        self.dismissed: list[Dismissed] = []
        self.num_done = 0
        self._scheduler = scheduler
        self._num_lost_tokens: dict[int, int] = {}
        self._last_token_ns: dict[int, int] = {}
        self._states: deque[CacheState] = deque()
        self._used_blocks_end: int | None = None
        self._num_evictions = 0

    # -- the engine's calls ----------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """Begin a request's record."""
        self.requests[request.request_id] = RequestRecord(
            request_id=request.request_id,
            arrival_ns=request.arrival_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            n=request.n,
        )

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Note admissions, preemptions and dismissals; keep the state for the step."""
        for entry in batch.scheduled:
            if entry.is_prefill:
                self._prefill(entry, now_ns)
        for preempted in batch.preempted_recompute + batch.preempted_swap:
            self._preempt(preempted)
        for dismissed in batch.dismissed:
            self._dismiss(dismissed, now_ns)
        if not batch.is_idle:
            self._states.append(self._scheduler.state())

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """Note how many blocks the stretch has come to hold."""
        self._used_blocks_end = self._scheduler.num_used_blocks

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """Record the stretch, then the tokens it brought and who finished."""
        state = self._states.popleft()
        gaps = self._take_tokens(batch, execution)
        self.steps.append(self._step_record(batch, execution, state, gaps))
        for finished in done:
            record = self.requests[finished.request.request_id]
            record.num_output_tokens = sum(finished.sample_lengths)
            record.max_sample_tokens = max(finished.sample_lengths)
            self._leave(finished.request, execution.end_ns, RequestStatus.FINISHED, "")

    def break_off(self, reason: str) -> None:
        """Note of every request still unfinished why the run ended without it."""
        for record in self.requests.values():
            if record.finished_ns is None:
                record.status, record.reason = RequestStatus.FAILED, reason

    def never_arrived(self, request: Request, reason: str) -> None:
        """Note a request to which the run did not come; its arrival is as planned."""
        self.arrived(request)
        self.requests[request.request_id].reason = reason

    def refused(self, request: Request) -> None:
        """Note a request that was not let in: its prompt is too long for the model."""
        self.arrived(request)
        reason = Dismissal.PROMPT_TOO_LONG
        dismissed = Dismissed(request, reason, request.num_prompt_tokens, 0)
        self._dismiss(dismissed, request.arrival_ns)

    # -- requests --------------------------------------------------------------------

    def _prefill(self, entry: Scheduled, now_ns: int) -> None:
        record = self.requests[entry.request.request_id]
        if record.first_scheduled_ns is None:
            record.first_scheduled_ns = now_ns
        num_lost_tokens = self._num_lost_tokens.get(record.request_id)
        if num_lost_tokens is None:
            record.num_cached_tokens += entry.num_cached_tokens
            return
        num_found_again = min(entry.num_cached_tokens, num_lost_tokens)
        self._num_lost_tokens[record.request_id] = num_lost_tokens - num_found_again
        record.num_recompute_cached_tokens += entry.num_cached_tokens
        record.num_recomputed_tokens -= num_found_again

    def _preempt(self, preempted: Preempted) -> None:
        request_id = preempted.request.request_id
        record = self.requests[request_id]
        record.num_preemptions += 1
        if preempted.num_lost_tokens:
            self._num_lost_tokens[request_id] = preempted.num_lost_tokens
            record.num_recomputed_tokens += preempted.num_lost_tokens

    def _dismiss(self, dismissed: Dismissed, now_ns: int) -> None:
        """Rejected if it never ran, aborted if it did."""
        record = self.requests[dismissed.request.request_id]
        record.num_output_tokens = dismissed.num_output_tokens
        has_run = record.first_scheduled_ns is not None
        status = RequestStatus.ABORTED if has_run else RequestStatus.REJECTED
        self._leave(dismissed.request, now_ns, status, dismissed.reason)
        self.dismissed.append(dismissed)

    def _leave(
        self, request: Request, now_ns: int, status: RequestStatus, reason: str
    ) -> None:
        record = self.requests[request.request_id]
        record.finished_ns = now_ns
        record.status = status
        record.reason = reason
        self._last_token_ns.pop(request.request_id, None)
        self.num_done += 1

    # -- steps -----------------------------------------------------------------------

    def _take_tokens(self, batch: Batch, execution: Execution) -> Counter[int]:
        """Note when tokens came; the gaps that ended with the first step."""
        gaps: Counter[int] = Counter()
        last_token_ns, first_end_ns = self._last_token_ns, execution.first_step_end_ns
        for entry in batch.scheduled:
            if not entry.samples:
                continue
            request_id = entry.request.request_id
            before_ns = last_token_ns.get(request_id)
            last_token_ns[request_id] = execution.end_ns
            if before_ns is not None:
                gaps[first_end_ns - before_ns] += entry.num_seqs
            else:
                self.requests[request_id].first_token_ns = first_end_ns
        return gaps

    def _step_record(
        self, batch: Batch, execution: Execution, state: CacheState, gaps: Counter[int]
    ) -> StepRecord:
        num_used_end, self._used_blocks_end = self._used_blocks_end, None
        num_evictions = self._scheduler.num_evictions
        num_evicted = num_evictions - self._num_evictions
        self._num_evictions = num_evictions
        shape = batch.shape
        return StepRecord(
            start_ns=execution.start_ns,
            end_ns=execution.end_ns,
            num_steps=execution.num_steps,
            first_step_ns=execution.first_step_end_ns - execution.start_ns,
            last_step_ns=execution.end_ns - execution.last_step_start_ns,
            num_prefill_tokens=shape.num_prefill_tokens,
            num_cached_tokens=sum(e.num_cached_tokens for e in batch.scheduled),
            num_prefill_seqs=shape.num_prefill_seqs,
            num_decode_seqs=shape.num_decode_seqs,
            num_context_tokens=shape.num_context_tokens,
            num_running=state.num_running,
            num_waiting=state.num_waiting,
            num_swapped=state.num_swapped,
            num_used_blocks=state.num_used_blocks,
            num_used_blocks_end=num_used_end or state.num_used_blocks,
            num_used_tokens=state.num_used_tokens,
            num_cached_blocks=state.num_cached_blocks,
            num_preempted_recompute=len(batch.preempted_recompute),
            num_preempted_swap=len(batch.preempted_swap),
            num_swap_in_blocks=len(batch.swap_in),
            num_swap_out_blocks=len(batch.swap_out),
            num_copy_on_write=len(batch.copy_on_write),
            num_evictions=num_evicted,
            gap_ns=list(gaps),
            gap_count=list(gaps.values()),
        )
