"""What vLLM's V1 scheduler decides in the running engine, step by step.

The scheduler object of the engine gets methods that call its own and take notes, so what
is recorded is what runs.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

from harness.request import Request
from harness.verify.vllm_output import (
    newly_scheduled,
    num_computed,
    number_of,
    resumed,
)
from harness.verify.vllm_transfers import num_gpu_blocks
from harness.vllm_engine.child.book import Book, Sample
from harness.vllm_engine.child.engine import changes_explained
from results.record import StepRecord

NEVER_SEEN = (
    "steps.num_used_tokens",
    "steps.num_cached_blocks",
    "steps.num_cached_blocks_end",
    "steps.num_head_blocks",
    "steps.num_room_blocks",
    "steps.num_regretted_evictions",
)
"""Columns that would need a look at every block, or at what the scheduler keeps silent
about."""

OF_THE_TIER = (
    "steps.swap_ns",
    "steps.num_used_cpu_blocks",
    "steps.num_forced_stores",
)
TIER_COPIES = ("steps.num_offload_load_blocks", "steps.num_offload_store_blocks")

_STATS = {
    "prefix_cache_query_tokens": ("prefix_cache_stats", "queries"),
    "prefix_cache_hit_tokens": ("prefix_cache_stats", "hits"),
    "recompute_prefix_cache_query_tokens": ("prefix_cache_stats", "preempted_queries"),
    "recompute_prefix_cache_hit_tokens": ("prefix_cache_stats", "preempted_hits"),
    "external_prefix_cache_query_tokens": ("connector_prefix_cache_stats", "queries"),
    "external_prefix_cache_hit_tokens": ("connector_prefix_cache_stats", "hits"),
}
"""Where vLLM's own statistics have what it counts."""


@dataclass(slots=True)
class _Call:
    """A call of the scheduler, until its tokens are in.

    Attributes:
        start_ns: When it was made.
        values: The record as far as it is known before the step has run.
    """

    start_ns: int
    values: dict[str, int]


class WatchV1:
    """Watches the scheduler of an engine.

    Attributes:
        unmeasured: Columns of which this version, or this configuration, says nothing.
        counters: Whole-run counters, by the names of ``results.measured.COUNTERS``.
        notes: What was not as expected.
        num_steps: Steps that have run.
        num_recording_ns: Time that taking notes has taken.

    Args:
        scheduler: The engine's.
        book: Gets what happens to requests.
        now_ns: The run's clock.
        on_step: Gets each step's record.
        block_bytes: Of one block on all GPUs, for the traffic of an offload tier.
        version: Of vLLM, for the words of an error.

    Raises:
        AttributeError: This version's scheduler lacks what is watched.
        ChangedVllmError: By the scheduler's methods, where its outputs do.
    """

    def __init__(
        self,
        scheduler: Any,
        book: Book,
        now_ns: Callable[[], int],
        on_step: Callable[[StepRecord], None],
        *,
        block_bytes: int,
        version: str,
    ) -> None:
        self.notes: list[str] = []
        self.num_steps = 0
        self.num_recording_ns = 0
        self._scheduler, self._book = scheduler, book
        self._now_ns, self._on_step = now_ns, on_step
        self._block_bytes, self._version = block_bytes, version
        self._pool = scheduler.kv_cache_manager.block_pool
        self._calls: dict[int, _Call] = {}
        self._through: set[str] = set()
        self._samples: dict[str, Sample] = {}
        self._num_preempted = self._num_evictions = 0
        self._last_end_ns = 0
        self._totals: Counter[str] = Counter()
        self._has_tier = getattr(scheduler, "connector", None) is not None
        self.unmeasured = [*NEVER_SEEN, *(OF_THE_TIER if self._has_tier else ())]
        self._attach()

    @property
    def counters(self) -> dict[str, Any]:
        """Whole-run counters; None for what this version does not count."""
        counters: dict[str, Any] = {name: self._totals.get(name) for name in _STATS}
        names = ("preemptions", "prompt_tokens", "generation_tokens", "finished_requests")
        counters |= {name: self._totals[name] for name in names}
        if set(TIER_COPIES).isdisjoint(self.unmeasured):
            counters |= {
                "offload_load_bytes": self._totals["loads"] * self._block_bytes,
                "offload_store_bytes": self._totals["stores"] * self._block_bytes,
            }
        return counters

    def shorten(self, request: Request) -> None:
        """Give each sample of a request that was just added its own length.

        vLLM lets all samples of a request be equally long at most.
        """
        for name in reversed(self._scheduler.requests):
            request_id, sample = number_of(name)
            if request_id != request.request_id:
                return
            length = request.outputs[sample][1]
            self._scheduler.requests[name].max_tokens = length

    def is_cold(self) -> bool:
        """Whether no block is held and none could be found."""
        found = getattr(self._pool, "cached_block_hash_to_block", ())
        num_held = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        return len(found) == 0 and num_held == 0

    # -- the scheduler's methods -------------------------------------------------------

    def _attach(self) -> None:
        scheduler = self._scheduler
        scheduler.schedule = partial(self._schedule, scheduler.schedule)
        scheduler.update_from_output = partial(self._update, scheduler.update_from_output)
        evict = getattr(self._pool, "_maybe_evict_cached_block", None)
        if evict is None:
            self.unmeasured.append("steps.num_evictions")
            return

        def count(block: Any) -> Any:
            is_evicted = evict(block)
            self._num_evictions += bool(is_evicted)
            return is_evicted

        self._pool._maybe_evict_cached_block = count

    def _schedule(self, schedule: Callable[..., Any], *args: Any, **named: Any) -> Any:
        ran = [(r, r.num_computed_tokens) for r in self._scheduler.running]
        start_ns = self._now_ns()
        output = schedule(*args, **named)
        began_ns = perf_counter_ns()
        with changes_explained(self._version):
            for request, num_lost in ran:
                if request.status.name == "PREEMPTED":
                    self._preempted(request.request_id, num_lost)
            if output.total_num_scheduled_tokens:
                values = self._scheduled(output, start_ns)
                self._calls[id(output)] = _Call(start_ns, values)
        self.num_recording_ns += perf_counter_ns() - began_ns
        return output

    def _update(
        self, update: Callable[..., Any], output: Any, result: Any, **named: Any
    ) -> Any:
        end_ns = self._now_ns()
        outputs = update(output, result, **named)
        began_ns = perf_counter_ns()
        gaps: Counter[int] = Counter()
        with changes_explained(self._version):
            for client in outputs.values():
                for each in client.outputs:
                    self._got_output(each, end_ns, gaps)
                if client.scheduler_stats is not None:
                    self._add_stats(client.scheduler_stats)
        call = self._calls.pop(id(output), None)
        if call is not None:
            self._record(call, end_ns, gaps)
        self.num_recording_ns += perf_counter_ns() - began_ns
        return outputs

    # -- notes -------------------------------------------------------------------------

    def _sample_of(self, name: str) -> Sample:
        sample = self._samples.get(name)
        if sample is None:
            sample = self._samples[name] = number_of(name)
        return sample

    def _preempted(self, name: str, num_lost_tokens: int) -> None:
        sample = self._sample_of(name)
        if self._book.has(sample[0]):
            self._book.preempted(sample, num_lost_tokens)
        self._through.discard(name)
        self._num_preempted += 1
        self._totals["preemptions"] += 1

    def _scheduled(self, output: Any, now_ns: int) -> dict[str, int]:
        """The record of a step that is about to run, as far as it is known."""
        admitted = newly_scheduled(output) | resumed(output)
        computed = num_computed(output)
        values: Counter[str] = Counter()
        for name, num_tokens in output.num_scheduled_tokens.items():
            start = computed[name]
            if name in admitted:
                values["num_cached_tokens"] += start
                self._admit(name, start, now_ns)
            if name in self._through:
                values["num_decode_seqs"] += 1
                values["num_context_tokens"] += start + num_tokens
                continue
            end = start + num_tokens
            num_cached = start if name in admitted else 0
            values["num_prefill_seqs"] += 1
            values["num_prefill_tokens"] += num_tokens
            values["num_prefill_context_tokens"] += end
            pairs = (end * (end + 1) - start * (start + 1)) // 2
            values["num_prefill_attention"] += pairs
            again = self._book.computed(self._sample_of(name), num_tokens, num_cached)
            values["num_recomputed_tokens"] += again
            request = self._scheduler.requests[name]
            if end >= request.num_tokens:
                self._through.add(name)
        self._totals["prompt_tokens"] += values["num_prefill_tokens"]
        values["num_admitted"] = len(admitted)
        return dict(values) | self._state() | self._copies(output)

    def _admit(self, name: str, num_cached_tokens: int, now_ns: int) -> None:
        request = self._scheduler.requests[name]
        num_loaded = getattr(request, "num_external_computed_tokens", 0)
        sample = self._sample_of(name)
        self._book.admitted(sample, num_cached_tokens, num_loaded, now_ns)

    def _state(self) -> dict[str, int]:
        """Queues and blocks after scheduling, and what was given up for it."""
        scheduler, pool = self._scheduler, self._pool
        skipped = getattr(scheduler, "skipped_waiting", ())  # a second queue up to 0.31
        num_used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        state = {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting) + len(skipped),
            "num_used_blocks": num_used,
            "num_used_blocks_end": num_used,
            "num_preempted_recompute": self._num_preempted,
            "num_evictions": self._num_evictions,
        }
        self._num_preempted = self._num_evictions = 0
        return state

    def _copies(self, output: Any) -> dict[str, int]:
        """Blocks that begin to move to an offload tier, or from it."""
        metadata = getattr(output, "kv_connector_metadata", None)
        if metadata is None or TIER_COPIES[0] in self.unmeasured:
            return {}
        try:
            num_loads = _total_blocks(metadata.load_jobs.values(), is_store=False)
            num_stores = _total_blocks(metadata.store_jobs.values(), is_store=True)
        except AttributeError as error:
            self.unmeasured += TIER_COPIES
            self.notes.append(f"copies to and from the offload tier: {error}")
            return {}
        self._totals["loads"] += num_loads
        self._totals["stores"] += num_stores
        return {
            "num_offload_load_blocks": num_loads,
            "num_offload_store_blocks": num_stores,
        }

    def _got_output(self, output: Any, now_ns: int, gaps: Counter[int]) -> None:
        """Take in a sample's tokens, and its end."""
        name = output.request_id
        sample = self._sample_of(name)
        if not self._book.has(sample[0]):
            return
        num_tokens = len(output.new_token_ids)
        if num_tokens:
            gap_ns = self._book.got_tokens(sample, num_tokens, now_ns)
            self._totals["generation_tokens"] += num_tokens
            if gap_ns is not None:
                gaps[gap_ns] += 1
        if output.finish_reason is not None:
            reason = str(output.finish_reason)
            is_whole = reason in ("length", "stop")
            self._book.finished(sample, now_ns, "" if is_whole else reason)
            self._totals["finished_requests"] += not self._book.has(sample[0])
            self._through.discard(name)
            self._samples.pop(name, None)

    def _add_stats(self, stats: Any) -> None:
        for counter, (part, name) in _STATS.items():
            value = getattr(getattr(stats, part, None), name, None)
            if value is not None:
                self._totals[counter] += value

    def _record(self, call: _Call, end_ns: int, gaps: Counter[int]) -> None:
        start_ns = max(call.start_ns, self._last_end_ns)
        self._last_end_ns = end_ns
        self.num_steps += 1
        known = dict.fromkeys(_COUNTS, 0) | call.values
        self._on_step(
            StepRecord(
                start_ns=start_ns,
                end_ns=end_ns,
                num_steps=1,
                first_step_ns=end_ns - start_ns,
                last_step_ns=end_ns - start_ns,
                gap_ns=list(gaps),
                gap_count=list(gaps.values()),
                **known,
            )
        )


_TIMES = ("start_ns", "end_ns", "num_steps", "first_step_ns", "last_step_ns")
_COUNTS = tuple(
    name
    for name in StepRecord.__dataclass_fields__
    if name not in (*_TIMES, "gap_ns", "gap_count")
)


def _total_blocks(jobs: Iterable[Any], *, is_store: bool) -> int:
    return sum(num_gpu_blocks(job, is_store) for job in jobs)
