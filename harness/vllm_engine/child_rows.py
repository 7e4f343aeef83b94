"""The rows of a run, from what the child that makes it has told so far."""

from collections.abc import Callable
from typing import Any

from harness.replay import Findable
from harness.vllm_engine.process import Event
from harness.workload import Workload
from results.journal import Journal
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows
from results.run_info import Ending, Outcome

OnProgress = Callable[[int, int], None]

NO_BLOCKS = 2**40
"""Tokens in a block where there is none."""

_TIMES = ("start_ns", "end_ns", "num_steps", "first_step_ns", "last_step_ns")
NOTHING_SEEN = (
    *(f"steps.{n}" for n in StepRecord.__dataclass_fields__ if n not in _TIMES),
    "requests.num_cached_tokens",
    "requests.num_offload_cached_tokens",
    "requests.num_recompute_cached_tokens",
    "requests.num_recomputed_tokens",
    "requests.num_preemptions",
)
"""Columns that say nothing of an engine that did not start."""


class ChildRows:
    """What the child has recorded so far."""

    def __init__(
        self,
        workload: Workload,
        findable: Findable,
        on_progress: OnProgress | None,
        journal: Journal | None,
    ) -> None:
        self.steps: Rows[StepRecord] = Rows(StepRecord)
        self._requests: dict[int, RequestRecord] = {}
        self._done: set[int] = set()
        self._workload, self._findable = workload, findable
        self._on_progress, self._journal = on_progress, journal

    def take(self, event: Event) -> None:
        """Take in what is new."""
        steps = [StepRecord(**step) for step in event["steps"]]
        for step in steps:
            self.steps.append(step)
        requests = [self._request(values) for values in event["requests"]]
        for record in requests:
            self._requests[record.request_id] = record
            if record.finished_ns is not None:
                self._done.add(record.request_id)
        if self._journal is not None:
            self._journal.append(requests, steps)
        if self._on_progress is not None:
            self._on_progress(len(self._done), len(self._workload))

    def all_requests(self, outcome: Outcome, block_size: int) -> Rows[RequestRecord]:
        """One record a request, those included to which the run did not come."""
        if outcome.ending is not Ending.COMPLETE:
            self._break_off(outcome.reason, block_size)
        ordered = sorted(self._requests)
        return Rows(RequestRecord, (self._requests[number] for number in ordered))

    def _request(self, values: dict[str, Any]) -> RequestRecord:
        values["status"] = RequestStatus(values["status"])
        record = RequestRecord(**values)
        if self._findable is not None:
            shared, with_prompts = (int(t[record.request_id]) for t in self._findable)
            record.num_shared_tokens = shared
            record.num_shared_prompt_tokens = with_prompts
        return record

    def _break_off(self, reason: str, block_size: int) -> None:
        end_ns = int(self.steps[-1].end_ns) if len(self.steps) else 0
        for request_id in range(len(self._workload)):
            record = self._requests.get(request_id)
            if record is None:
                record = self._never_sent(request_id, end_ns, block_size)
                record.reason = reason
            elif record.finished_ns is None:
                record.status, record.reason = RequestStatus.FAILED, reason
            else:
                continue
            self._requests[request_id] = record
            if self._journal is not None:
                self._journal.append([record], [])

    def _never_sent(self, request_id: int, end_ns: int, block_size: int) -> RequestRecord:
        request = self._workload.request(request_id)
        arrival_ns = max(request.arrival_ns, end_ns)
        return self._request(
            {
                "request_id": request_id,
                "arrival_ns": arrival_ns,
                "queued_ns": arrival_ns,
                "num_prompt_tokens": request.num_prompt_tokens,
                "n": request.n,
                "num_requested_tokens": request.num_requested_tokens,
                "num_demand_blocks": request.num_demand_blocks(block_size),
                "status": RequestStatus.FAILED,
            }
        )
