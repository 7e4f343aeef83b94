"""From what happens in the loop to the records of a run."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.executors.executor import Execution
from harness.request import Request
from harness.run_columns import IntArray
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Dismissal,
    Dismissed,
    Finished,
    Preempted,
    Scheduled,
    Scheduler,
    TransferId,
)
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows


@dataclass(slots=True)
class _Call:
    """What a call left behind, until its batch has run.

    Attributes:
        num_recomputed_tokens: Tokens of its prefills that had been computed before.
        num_evictions: Cached blocks given up in the stretch.
        num_regretted: Contents allocated again in it that had been given up.
        state: Queues and pool when its step begins.
        end: Blocks used and cached at the end of the stretch.
    """

    num_recomputed_tokens: int
    num_evictions: int
    num_regretted: int
    state: CacheState = field(init=False)
    end: tuple[int, int] = field(init=False)


_Sample = tuple[int, int]
"""A request and one of its samples, where each is scheduled on its own; else sample 0."""


class Recorder:
    """Observes an engine and keeps one record a request and one a stretch of steps.

    Attributes:
        steps: Records in time order.
        num_done: Requests that have left, however they left.

    Args:
        scheduler: Whose queues and blocks are recorded.
        block_size: Tokens in a block.
        shared_tokens: Leading prompt tokens that an earlier request began with as well,
            by request id, and those that an earlier prompt began with; None where the
            trace does not say.
        entry_ns: From a request's arrival until the scheduler has it.
        is_journaled: Somebody takes the changes, now and then.
        on_left: Called with the record of each request that leaves.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        block_size: int,
        shared_tokens: tuple[IntArray, IntArray] | None = None,
        entry_ns: int = 0,
        is_journaled: bool = True,
        on_left: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.steps: Rows[StepRecord] = Rows(StepRecord)
        self.num_done = 0
        self._scheduler = scheduler
        self._block_size = block_size
        self._shared_tokens = shared_tokens
        self._entry_ns = entry_ns
        self._num_lost_tokens: dict[_Sample, int] = {}
        # The step that brought a sample its latest token; that of a steady one is older.
        self._last_step: dict[_Sample, int] = {}
        self._calls: deque[_Call] = deque()
        self._ends_ns = array("q")  # of steps
        self._num_evictions = self._num_regretted = 0
        self._under_way: dict[int, RequestRecord] = {}
        self._left: Rows[RequestRecord] = Rows(RequestRecord)
        self._is_journaled = is_journaled
        self._on_left = on_left
        self._changed: dict[int, RequestRecord] = {}
        self._num_taken_steps = 0

    @property
    def requests(self) -> Rows[RequestRecord]:
        """One record for each request that has arrived, by request id."""
        everyone = Rows(RequestRecord, self._under_way.values())
        everyone.extend(self._left)
        return everyone.sorted_by("request_id")

    # -- the engine's calls ----------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """Begin a request's record."""
        request_id, shared, with_prompts = request.request_id, None, None
        if self._shared_tokens is not None:
            shared, with_prompts = (int(t[request_id]) for t in self._shared_tokens)
        record = RequestRecord(
            request_id=request_id,
            arrival_ns=request.arrival_ns,
            queued_ns=request.arrival_ns + self._entry_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            n=request.n,
            num_requested_tokens=request.num_requested_tokens,
            num_demand_blocks=request.num_demand_blocks(self._block_size),
            num_shared_tokens=shared,
            num_shared_prompt_tokens=with_prompts,
        )
        self._under_way[request_id] = record
        self._note_change(record)

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Note admissions, preemptions and dismissals; keep the state for the step."""
        num_recomputed_tokens = 0
        for entry in batch.scheduled:
            if entry.is_prefill:
                num_recomputed_tokens += self._prefill(entry, now_ns)
        for preempted in batch.preempted_recompute:
            self._preempt(preempted)
        for preempted in batch.preempted_swap:
            self._preempt(preempted)
        for dismissed in batch.dismissed:
            self._dismiss(dismissed, now_ns)
        if not batch.is_idle:
            self._calls.append(_Call(num_recomputed_tokens, *self._take_evictions()))
            if len(self._calls) == 1:
                self._begin_step()

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """Note what the stretch has come to hold, and what it gave up."""
        call, scheduler = self._calls[-1], self._scheduler
        call.end = scheduler.num_used_blocks, scheduler.num_cached_blocks
        num_evictions, num_regretted = self._take_evictions()
        call.num_evictions += num_evictions
        call.num_regretted += num_regretted

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """Record the stretch, then the tokens it brought and who finished."""
        call = self._calls.popleft()
        gaps = self._take_tokens(batch, execution)
        self.steps.append_values(self._step_values(batch, execution, call, gaps))
        for finished in done:
            record = self._under_way[finished.request.request_id]
            record.num_output_tokens = sum(finished.sample_lengths)
            record.max_sample_tokens = max(finished.sample_lengths)
            self._leave(finished.request, execution.end_ns, RequestStatus.FINISHED, "")
        if self._calls:
            self._begin_step()

    def _begin_step(self) -> None:
        """The oldest call's step begins, without those whom the step before ended."""
        call, state = self._calls[0], self._scheduler.state()
        call.state, call.end = state, (state.num_used_blocks, state.num_cached_blocks)

    def transferred(self, transfers: Sequence[TransferId]) -> None:
        """Copies are recorded where they begin."""

    def break_off(self, reason: str) -> None:
        """Note of every request still unfinished why the run ended without it."""
        self._note_lengths()
        for record in self._under_way.values():
            record.status, record.reason = RequestStatus.FAILED, reason
            self._note_change(record)

    def never_arrived(self, request: Request, reason: str) -> None:
        """Note a request to which the run did not come.

        Its arrival is as planned, but not before the run's end: it may have had to wait
        for another one's.
        """
        self.arrived(request)
        record = self._under_way[request.request_id]
        end_ns = self._ends_ns[-1] if self._ends_ns else 0
        record.arrival_ns = max(record.arrival_ns, end_ns)
        record.queued_ns = record.arrival_ns + self._entry_ns
        record.reason = reason

    def refused(self, request: Request) -> None:
        """Note a request that was not let in: its prompt is too long for the model."""
        self.arrived(request)
        reason = Dismissal.PROMPT_TOO_LONG
        dismissed = Dismissed(request, reason, request.num_prompt_tokens, 0)
        self._dismiss(dismissed, request.arrival_ns + self._entry_ns)

    def take_changes(self) -> tuple[list[RequestRecord], list[StepRecord]]:
        """Records that are new or other than when last taken; steps only come once."""
        self._note_lengths()
        requests = [self._changed[request_id] for request_id in sorted(self._changed)]
        steps = self.steps[self._num_taken_steps :]
        self._changed.clear()
        self._num_taken_steps = len(self.steps)
        return requests, steps

    def _note_change(self, record: RequestRecord) -> None:
        if self._is_journaled:
            self._changed[record.request_id] = record

    # -- requests --------------------------------------------------------------------

    def _note_lengths(self) -> None:
        """Note how many tokens requests have that are still under way.

        Those that have none yet are passed over, however many wait.
        """
        for request_id in {request_id for request_id, _ in self._last_step}:
            lengths = self._scheduler.sample_lengths(request_id)
            record = self._under_way[request_id]
            if sum(lengths) != record.num_output_tokens:
                record.num_output_tokens = sum(lengths)
                record.max_sample_tokens = max(lengths)
                self._note_change(record)

    def _prefill(self, entry: Scheduled, now_ns: int) -> int:
        """Note an admission or a chunk; how many of its tokens are computed again."""
        record = self._under_way[entry.request.request_id]
        self._note_change(record)
        if record.first_scheduled_ns is None:
            record.first_scheduled_ns = now_ns
        sample = record.request_id, entry.sample
        num_lost_tokens = self._num_lost_tokens.get(sample)
        if num_lost_tokens is None:
            if entry.sample == 0:
                record.num_cached_tokens += entry.num_cached_tokens
                record.num_offload_cached_tokens += entry.num_loaded_tokens
            return 0
        num_regained = min(entry.num_tokens, num_lost_tokens)
        num_recomputed = num_regained - min(entry.num_cached_tokens, num_regained)
        self._num_lost_tokens[sample] = num_lost_tokens - num_regained
        record.num_recompute_cached_tokens += entry.num_cached_tokens
        record.num_recomputed_tokens += num_recomputed
        return num_recomputed

    def _preempt(self, preempted: Preempted) -> None:
        request_id = preempted.request.request_id
        record = self._under_way[request_id]
        record.num_preemptions += 1
        self._note_change(record)
        if preempted.num_lost_tokens:
            sample = request_id, preempted.sample
            self._num_lost_tokens[sample] = preempted.num_lost_tokens

    def _dismiss(self, dismissed: Dismissed, now_ns: int) -> None:
        """Rejected if it never ran, aborted if it did."""
        record = self._under_way[dismissed.request.request_id]
        record.num_output_tokens = dismissed.num_output_tokens
        record.max_sample_tokens = dismissed.num_tokens - record.num_prompt_tokens
        has_run = record.first_scheduled_ns is not None
        status = RequestStatus.ABORTED if has_run else RequestStatus.REJECTED
        self._leave(dismissed.request, now_ns, status, dismissed.reason)

    def _leave(
        self, request: Request, now_ns: int, status: RequestStatus, reason: str
    ) -> None:
        record = self._under_way.pop(request.request_id)
        record.finished_ns = now_ns
        record.status = status
        record.reason = reason
        self._left.append(record)
        if self._on_left is not None:
            self._on_left(record)
        self._note_change(record)
        for sample in range(request.n):
            self._last_step.pop((request.request_id, sample), None)
            self._num_lost_tokens.pop((request.request_id, sample), None)
        self.num_done += 1

    # -- steps -----------------------------------------------------------------------

    def _take_tokens(self, batch: Batch, execution: Execution) -> dict[int, int]:
        """Note when tokens came; the gaps that ended with the first step."""
        gaps: dict[int, int] = {}
        first_end_ns = execution.first_step_end_ns
        ends_ns = self._ends_ns
        for sample in batch.unsteady:
            if sample[0] in self._under_way:  # it may have finished meanwhile
                self._last_step[sample] = len(ends_ns) - 1
        if batch.num_steady_seqs:
            gaps[first_end_ns - ends_ns[-1]] = batch.num_steady_seqs
        for entry in batch.scheduled:
            if not entry.samples:
                continue
            sample = entry.request.request_id, entry.sample
            last_step = self._last_step.get(sample)
            self._last_step[sample] = len(ends_ns)
            if last_step is not None:
                gap_ns = first_end_ns - ends_ns[last_step]
                gaps[gap_ns] = gaps.get(gap_ns, 0) + entry.num_seqs
            else:
                self._first_token(entry.request.request_id, first_end_ns)
        ends_ns.append(execution.end_ns)
        return gaps

    def _first_token(self, request_id: int, now_ns: int) -> None:
        record = self._under_way[request_id]
        if record.first_token_ns is None:
            record.first_token_ns = now_ns
            self._note_change(record)

    def _step_values(
        self, batch: Batch, execution: Execution, call: _Call, gaps: dict[int, int]
    ) -> tuple[Any, ...]:
        """The values of a :class:`StepRecord`, in its order.

        Named arguments would take as long as all else that is recorded of a step.
        """
        shape, state, refused = batch.shape, call.state, batch.refused
        num_cached_tokens = num_admitted = num_loaded = num_stored = 0
        for entry in batch.scheduled:
            num_cached_tokens += entry.num_cached_tokens
            num_admitted += entry.is_admission
        for transfer in batch.transfers:
            num_stored += transfer.num_blocks if transfer.is_store else 0
            num_loaded += 0 if transfer.is_store else transfer.num_blocks
        return (
            execution.start_ns,
            execution.end_ns,
            execution.num_steps,
            execution.first_step_end_ns - execution.start_ns,  # first_step_ns
            execution.end_ns - execution.last_step_start_ns,  # last_step_ns
            execution.swap_ns,
            shape.num_prefill_tokens,
            call.num_recomputed_tokens,
            num_cached_tokens,
            shape.num_prefill_seqs,
            shape.num_decode_seqs,
            shape.num_context_tokens,
            num_admitted,
            state.num_running,
            state.num_waiting,
            state.num_swapped,
            state.num_used_blocks,
            call.end[0],  # num_used_blocks_end
            state.num_used_tokens,
            state.num_cached_blocks,
            call.end[1],  # num_cached_blocks_end
            state.num_used_cpu_blocks,
            refused.num_needed_blocks if refused else 0,  # num_head_blocks
            refused.num_room_blocks if refused else 0,
            len(batch.preempted_recompute),  # num_preempted_recompute
            len(batch.preempted_swap),  # num_preempted_swap
            len(batch.swap_in),  # num_swap_in_blocks
            len(batch.swap_out),  # num_swap_out_blocks
            num_loaded,  # num_offload_load_blocks
            num_stored,  # num_offload_store_blocks
            len(batch.flushed),  # num_forced_stores
            len(batch.copy_on_write),  # num_copy_on_write
            call.num_evictions,
            call.num_regretted,  # num_regretted_evictions
            shape.prefill_attention,  # num_prefill_attention
            shape.num_prefill_context_tokens,
            list(gaps),  # gap_ns
            list(gaps.values()),  # gap_count
        )

    def _take_evictions(self) -> tuple[int, int]:
        """Evictions, and those regretted, since this was asked last."""
        before = self._num_evictions, self._num_regretted
        self._num_evictions = self._scheduler.num_evictions
        self._num_regretted = self._scheduler.num_regretted_evictions
        return self._num_evictions - before[0], self._num_regretted - before[1]
