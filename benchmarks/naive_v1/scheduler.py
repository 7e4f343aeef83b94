"""The scheduler: who runs in the next step, and in which blocks."""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.request import Request
from naive_v1.block_manager import NaiveBlockManager
from naive_v1.block_pool import NaiveBlock
from naive_v1.progress import ContentKeys, Progress


@dataclass(slots=True)
class NaiveStep:
    """What one call decides.

    Attributes:
        budget: Tokens that may still be scheduled.
        chunk_limit: Most tokens that one request may have.
        scheduled: Tokens of each request, in order.
        given_blocks: Blocks that each request got, hits included.
        new: Requests admitted for the first time, with their cached tokens.
        resumed: The same of requests that had been preempted.
        preempted: Requests that lost their blocks.
        sampling: Requests that get a token.
    """

    budget: int
    chunk_limit: int
    scheduled: dict[Progress, int] = field(default_factory=dict)
    given_blocks: dict[Progress, list[NaiveBlock]] = field(default_factory=dict)
    new: dict[Progress, int] = field(default_factory=dict)
    resumed: dict[Progress, int] = field(default_factory=dict)
    preempted: list[Progress] = field(default_factory=list)
    sampling: set[Progress] = field(default_factory=set)

    def take(self, one: Progress, num_tokens: int, blocks: list[NaiveBlock]) -> None:
        """Put a request into the step."""
        self.scheduled[one] = num_tokens
        self.given_blocks[one] = blocks
        self.budget -= num_tokens

    def drop(self, one: Progress) -> None:
        """Take a request out of the step again, if it is there."""
        self.budget += self.scheduled.pop(one, 0)
        self.given_blocks.pop(one, None)


class NaiveScheduler:
    """Decides step after step; takes the knobs of ``build_scheduler_v1``.

    ``commit`` is called once for each step, in order: right after ``schedule``, or with
    ``async_scheduling`` after the ``schedule`` of the step that follows.

    Raises:
        ValueError: A tier of CPU blocks is asked for.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        enable_prefix_caching: bool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        watermark: float = 0.0,
        scheduler_reserve_full_isl: bool = True,
        scheduling_policy: str = "fcfs",
        async_scheduling: bool = False,
        sliding_window: int | None = None,
        num_cpu_blocks: int = 0,
    ) -> None:
        if num_cpu_blocks:
            raise ValueError(
                f"num_cpu_blocks is {num_cpu_blocks}, must be 0: offloading is left out"
            )
        self.manager = NaiveBlockManager(
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            enable_prefix_caching=enable_prefix_caching,
            max_model_len=max_model_len,
            watermark=watermark,
            scheduler_reserve_full_isl=scheduler_reserve_full_isl,
            sliding_window=sliding_window,
            max_tokens_in_flight=max_num_batched_tokens * (1 + async_scheduling),
        )
        self.async_scheduling = async_scheduling
        self.waiting: deque[Progress] = deque()
        self.running: list[Progress] = []
        self._content = ContentKeys()
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._enable_chunked_prefill = enable_chunked_prefill
        self._long_prefill_token_threshold = long_prefill_token_threshold
        self._by_priority = scheduling_policy == "priority"

    @property
    def has_unfinished(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Put the samples of a request that has arrived into the waiting queue."""
        for sample in range(request.n):
            one = Progress(request, sample)
            one.extend_keys(self._content, self._block_size)
            if self._by_priority:
                insort(self.waiting, one, key=lambda other: other.rank)
            else:
                self.waiting.append(one)

    def schedule(self) -> NaiveStep:
        """Decide the next step."""
        budget = self._max_num_batched_tokens
        limit = self._long_prefill_token_threshold
        is_alone = len(self.running) + len(self.waiting) <= 1
        step = NaiveStep(budget, budget if is_alone or not limit else limit)
        self._schedule_running(step)
        if not step.preempted:
            self._admit_waiting(step)
        for one, num_tokens in step.scheduled.items():
            one.num_computed_tokens += num_tokens
            if one.num_computed_tokens == one.num_tokens + one.num_in_flight_tokens:
                one.num_in_flight_tokens += 1
                step.sampling.add(one)
        return step

    def commit(self, step: NaiveStep) -> list[Request]:
        """Hand in a step's tokens; whose samples finished."""
        finished = []
        for one, num_tokens in step.scheduled.items():
            one.num_handed_in_tokens += num_tokens  # an admission sets it anew
            if one in step.sampling:
                self._receive_token(one)
                if self._is_finished(one):
                    self._finish(one)
                    finished.append(one.request)
        return finished

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is free or held, and counted right."""
        tables: list[Sequence[NaiveBlock]] = [one.table for one in self.running]
        self.manager.pool.check_invariants(tables)
        assert not any(one.table for one in self.waiting), "who waits holds blocks"

    def _schedule_running(self, step: NaiveStep) -> None:
        for one in list(self.running):
            if step.budget == 0:
                break
            if one in step.preempted:
                continue
            num_tokens = self._num_tokens_wanted(one, step)
            if num_tokens == 0:
                continue
            blocks = self._allocate_by_preempting(one, num_tokens, step)
            if blocks is None:
                break
            step.take(one, num_tokens, blocks)

    def _num_tokens_wanted(self, one: Progress, step: NaiveStep) -> int:
        num_outputs = one.num_output_tokens + one.num_in_flight_tokens
        if num_outputs >= one.max_output_tokens:
            return 0  # its last token is in flight
        return min(
            one.num_tokens + one.num_in_flight_tokens - one.num_computed_tokens,
            self._max_model_len - 1 - one.num_computed_tokens,
            step.chunk_limit,
            step.budget,
        )

    def _allocate_by_preempting(
        self, one: Progress, num_tokens: int, step: NaiveStep
    ) -> list[NaiveBlock] | None:
        """Blocks for a running request; None if it had to make room itself."""
        while (blocks := self.manager.allocate_slots(one, num_tokens)) is None:
            victim = self.running[-1]
            if self._by_priority:
                victim = max(self.running, key=lambda other: other.urgency)
            self._preempt(victim, step)
            if victim is one:
                return None
        return blocks

    def _preempt(self, one: Progress, step: NaiveStep) -> None:
        step.drop(one)
        step.preempted.append(one)
        self.running.remove(one)
        self.manager.free(one)
        one.was_preempted = True
        if self._by_priority:
            insort(self.waiting, one, key=lambda other: other.rank)
        else:
            self.waiting.appendleft(one)

    def _admit_waiting(self, step: NaiveStep) -> None:
        while self.waiting and step.budget and len(self.running) < self._max_num_seqs:
            one = self.waiting[0]
            hits = self.manager.get_computed_blocks(one)
            num_cached_tokens = len(hits) * self._block_size
            num_tokens = min(one.num_tokens - num_cached_tokens, step.chunk_limit)
            if num_tokens > step.budget and not self._enable_chunked_prefill:
                break
            num_tokens = min(num_tokens, step.budget)
            blocks = self.manager.admit(
                one, hits, num_tokens, others_run=bool(self.running)
            )
            if blocks is None:
                break
            self.waiting.popleft()
            self.running.append(one)
            step.take(one, num_tokens, blocks)
            admitted = step.resumed if one.was_preempted else step.new
            admitted[one] = num_cached_tokens

    def _receive_token(self, one: Progress) -> None:
        one.num_in_flight_tokens -= 1
        one.num_output_tokens += 1
        one.extend_keys(self._content, self._block_size)
        self.manager.cache_blocks(one, one.num_computed_tokens - one.num_in_flight_tokens)

    def _is_finished(self, one: Progress) -> bool:
        return (
            one.num_output_tokens >= one.max_output_tokens
            or one.num_tokens >= self._max_model_len
        )

    def _finish(self, one: Progress) -> None:
        if one in self.running:
            self.running.remove(one)
            self.manager.free(one)
        else:  # preempted with its last token in flight
            self.waiting.remove(one)
