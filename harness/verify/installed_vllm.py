"""The scheduler of the installed vLLM, with no model and no GPU, row by row."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.request import Request
from harness.verify.vllm_interface import Vllm, VllmKnobs, block_hasher, build_scheduler
from harness.verify.vllm_output import (
    InNumberOrder,
    Row,
    RowId,
    decisions,
    holds_blocks,
    num_computed,
    row_id,
)
from harness.verify.vllm_transfers import Transfer, VllmTransfers

MOST_SHOWN = 50
"""Requests of a queue that are shown."""

SEGMENT_TOKENS = 1 << 32
"""Token i of segment s is ``s * SEGMENT_TOKENS + i``: distinct for any trace."""


class Tokens(list[int]):
    """Sampled tokens: a list, which vLLM 0.11.2 takes for an array."""

    def tolist(self) -> list[int]:
        """The same list."""
        return self


@dataclass(slots=True)
class _Batch:
    """A scheduled step whose tokens have not been handed in."""

    output: Any
    sampled: set[str]


class InstalledVllm:
    """The installed vLLM's scheduler, and the tokens that a model would have sampled.

    A request with one sample is known by its number. One with n samples becomes n
    requests that arrive together, as in vLLM: rows name them ``"0_7"``, ``"1_7"`` ... for
    the samples of request 7, as vLLM itself does.

    Each ``schedule`` is followed by one ``commit``.

    Args:
        transfer_steps: Calls of the scheduler until a transfer is done, where the caller
            does not say itself which ones ended.
        knobs: Those of ``VllmKnobs``.

    Attributes:
        version: Of the installed vLLM.

    Raises:
        UsageError: vLLM is not installed, lacks a knob, or is too different to be driven.
    """

    def __init__(self, *, transfer_steps: int = 1, **knobs: Any) -> None:
        self.knobs = VllmKnobs(**knobs)
        self._vllm = Vllm()
        self.version = self._vllm.version
        self._scheduler = build_scheduler(self._vllm, self.knobs)
        self._hasher = block_hasher(self._vllm, self.knobs)
        self._transfers = VllmTransfers(self._vllm, transfer_steps)
        self._outputs: dict[str, int] = {}
        self._in_flight: deque[_Batch] = deque()
        self._has_called = False

    @property
    def has_unfinished(self) -> bool:
        """Whether vLLM would go on without a new arrival."""
        return self._has_work or bool(self._in_flight)

    @property
    def _has_work(self) -> bool:
        """Whether vLLM would call its scheduler: for requests, or to end transfers."""
        return bool(self._scheduler.has_requests() or self._transfers.pending)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, without those that are loading or have just loaded."""
        scheduler = self._scheduler
        skipped = getattr(scheduler, "skipped_waiting", ())  # a second queue up to 0.31
        if not self.knobs.num_cpu_blocks:
            return len(scheduler.waiting) + len(skipped)
        return sum(not holds_blocks(r) for r in [*scheduler.waiting, *skipped])

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free queue."""
        pool = self._scheduler.kv_cache_manager.block_pool
        return int(pool.get_num_free_blocks())

    @property
    def pending_transfers(self) -> list[Transfer]:
        """Transfers that have not been reported as done, oldest first."""
        return list(self._transfers.pending.values())

    def describe(self, names: Iterable[RowId]) -> dict[str, Any]:
        """Queues, and the blocks of some requests, for people."""
        scheduler = self._scheduler
        waiting = list(scheduler.waiting)
        queues = {"running": list(scheduler.running), "waiting": waiting}
        tables = {}
        for name in map(str, names):
            if name in scheduler.requests:
                (block_ids,) = scheduler.kv_cache_manager.get_block_ids(name)
                tables[name] = list(block_ids)
        shown: dict[str, Any] = {
            queue: [row_id(r.request_id) for r in requests[:MOST_SHOWN]]
            for queue, requests in queues.items()
        }
        return shown | {"blocks": tables}

    def add(self, request: Request) -> None:
        """Put a request, with all its samples, into the waiting queue.

        Raises:
            EngineError: vLLM failed.
        """
        for sample, (segment, length) in enumerate(request.outputs):
            name = str(request.request_id)
            if request.n > 1:
                name = f"{sample}_{name}"
            self._outputs[name] = segment
            with self._vllm.guarded():
                self._scheduler.add_request(self._vllm_request(request, name, length))

    def schedule(self) -> Row:
        """The decisions of one call, by the names that recorded rows have.

        ``step``, ``finished`` and ``free_end`` are the caller's to add. Where vLLM would
        not call its scheduler the row says nothing about blocks and transfers.

        Raises:
            EngineError: vLLM failed.
        """
        self._has_called = self._has_work
        if not self._has_called:
            nothing: Row = {"scheduled": [], "new": [], "resumed": [], "preempted": []}
            return nothing | self._queues()
        scheduler = self._scheduler
        scheduler.finished_req_ids = InNumberOrder(scheduler.finished_req_ids)
        ran = list(scheduler.running)
        expected = {r.request_id: r.num_output_placeholders for r in ran}
        with self._vllm.guarded():
            output = scheduler.schedule()
            sampled = self._sampled(output, expected)
        self._in_flight.append(_Batch(output, sampled))
        preempted = {r.request_id for r in ran if r.status.name == "PREEMPTED"}
        row = decisions(output, preempted)
        if self.knobs.num_cpu_blocks:
            row |= self._transfers.made(output.kv_connector_metadata)
        return row | self._queues()

    def commit(
        self, transfers_done: Iterable[int] | None = None
    ) -> tuple[list[RowId], int]:
        """Hand in the oldest step's tokens and what the workers report.

        With asynchronous scheduling the step that was scheduled last stays in flight, so
        the first commit hands in nothing.

        Args:
            transfers_done: Numbers of the transfers that ended; by default those that are
                due.

        Returns:
            What finished, and how many blocks are free then.

        Raises:
            EngineError: vLLM failed.
        """
        num_kept = int(self.knobs.async_scheduling and self._has_called)
        if len(self._in_flight) <= num_kept:
            return [], self.num_free_blocks
        batch = self._in_flight.popleft()
        result = self._model_output(batch, self._transfers.report(transfers_done))
        with self._vllm.guarded():
            outputs = self._scheduler.update_from_output(batch.output, result)
        finished = [
            row_id(output.request_id)
            for client in outputs.values()
            for output in client.outputs
            if output.finish_reason is not None
        ]
        return finished, self.num_free_blocks

    def _queues(self) -> Row:
        return {
            "free": self.num_free_blocks,
            "waiting": self.num_waiting,
            "running": len(self._scheduler.running),
        }

    def _vllm_request(self, request: Request, name: str, length: int) -> Any:
        request_class = self._vllm.module("v1.request").Request
        params = self._vllm.module("sampling_params").SamplingParams(
            max_tokens=length, ignore_eos=True
        )
        # Up to 0.16 the end-of-sequence token was an argument without a default.
        has_eos = "eos_token_id" in request_class.__init__.__code__.co_varnames
        return request_class(
            request_id=name,
            prompt_token_ids=_tokens(request),
            sampling_params=params,
            pooling_params=None,
            arrival_time=request.arrival_ns,
            priority=request.priority,
            block_hasher=self._hasher,
            cache_salt=repr(keys) if (keys := request.extra_keys) else None,
            **({"eos_token_id": None} if has_eos else {}),
        )

    def _sampled(self, output: Any, expected: dict[str, int]) -> set[str]:
        """Requests that get a token: their step computes the last one that is known."""
        computed = num_computed(output)
        return {
            name
            for name, num_tokens in output.num_scheduled_tokens.items()
            if computed[name] + num_tokens
            >= self._scheduler.requests[name].num_tokens + expected.get(name, 0)
        }

    def _model_output(self, batch: _Batch, report: Any) -> Any:
        names = list(batch.output.num_scheduled_tokens)
        return self._vllm.module("v1.outputs").ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[self._token(name, batch) for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=report,
        )

    def _token(self, name: str, batch: _Batch) -> Tokens:
        """The next token of a request, unless it prefills or has finished meanwhile."""
        request = self._scheduler.requests.get(name)
        if request is None or name not in batch.sampled:
            return Tokens()
        return Tokens([self._outputs[name] * SEGMENT_TOKENS + request.num_output_tokens])


def _tokens(request: Request) -> list[int]:
    return [
        segment * SEGMENT_TOKENS + position
        for segment, length in request.prompt
        for position in range(length)
    ]
