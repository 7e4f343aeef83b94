"""What vLLM's V0 scheduler decides in the running engine, step by step.

Swaps, copies and preemptions stand in the output of each call of its scheduler; who was
preempted, and how, follows from the queues.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from harness.request import Request
from harness.vllm_engine.child.book import Book
from results.record import StepRecord

NEVER_SEEN = (
    "num_recomputed_tokens",
    "num_recompute_cached_tokens",
    "num_offload_cached_tokens",
    "steps.swap_ns",
    "steps.num_used_tokens",
    "steps.num_cached_blocks",
    "steps.num_cached_blocks_end",
    "steps.num_head_blocks",
    "steps.num_room_blocks",
    "steps.num_evictions",
    "steps.num_regretted_evictions",
    "steps.num_offload_load_blocks",
    "steps.num_offload_store_blocks",
    "steps.num_forced_stores",
    "steps.num_prefill_attention",
    "steps.num_prefill_context_tokens",
)
"""Columns of which V0's scheduler says nothing, or which it does not have."""


class WatchV0:
    """Watches the scheduler of a V0 engine; the engine's loop brings its tokens.

    Attributes:
        unmeasured: Columns of which V0 says nothing.
        counters: Whole-run counters, by the names of ``results.measured.COUNTERS``.
        notes: What was not as expected.
        num_steps: Steps that have run.
        num_recording_ns: Time that taking notes has taken.

    Args:
        scheduler: The engine's; the first where it has several.
        book: Gets what happens to requests.
        now_ns: The run's clock.
        on_step: Gets each step's record.
        block_size: Tokens in a block.

    Raises:
        AttributeError: This version's scheduler lacks what is watched.
    """

    def __init__(
        self,
        scheduler: Any,
        book: Book,
        now_ns: Callable[[], int],
        on_step: Callable[[StepRecord], None],
        block_size: int,
    ) -> None:
        self.unmeasured = list(NEVER_SEEN)
        self.notes: list[str] = []
        self.num_steps = 0
        self.num_recording_ns = 0
        self._scheduler, self._book = scheduler, book
        self._now_ns, self._on_step = now_ns, on_step
        self._block_size = block_size
        blocks = scheduler.block_manager
        self._num_free: Callable[[], int] = blocks.get_num_free_gpu_blocks
        self._num_free_cpu: Callable[[], int] = blocks.get_num_free_cpu_blocks
        self._num_blocks, self._num_cpu_blocks = self._num_free(), self._num_free_cpu()
        self._totals: Counter[str] = Counter()
        self._lengths: dict[int, list[int]] = {}
        self._values: dict[str, int] | None = None
        self._start_ns = 0
        self._missing: Counter[str] = Counter()
        scheduler.schedule = partial(self._schedule, scheduler.schedule)

    @property
    def counters(self) -> dict[str, Any]:
        """Whole-run counters; None for what V0 does not count."""
        names = (
            "preemptions",
            "swap_in_blocks",
            "swap_out_blocks",
            "copy_on_write_blocks",
            "prompt_tokens",
            "generation_tokens",
            "finished_requests",
        )
        return {name: self._totals[name] for name in names}

    def shorten(self, request: Request) -> None:
        """V0 gives all samples of a request one length: that of the longest."""
        if len({length for _, length in request.outputs}) > 1 and not self.notes:
            self.notes.append(
                "samples of a request are as long as its longest: V0 knows one length"
            )

    def is_cold(self) -> bool | None:
        """None: V0 does not say what its free blocks hold; the process is new."""
        return None

    def stepped(self, outputs: list[Any]) -> None:
        """Take in what a step of the engine brought, and end the step's record."""
        end_ns = self._now_ns()
        gaps: Counter[int] = Counter()
        for output in outputs:
            self._got_output(output, end_ns, gaps)
        if self._values is not None:
            self._record(self._values, end_ns, gaps)
            self._values = None

    # -- the scheduler's call ----------------------------------------------------------

    def _schedule(self, schedule: Callable[..., Any], *args: Any, **named: Any) -> Any:
        scheduler = self._scheduler
        ran = [group.request_id for group in scheduler.running]
        swapped = {group.request_id for group in scheduler.swapped}
        waiting = {group.request_id for group in scheduler.waiting}
        self._start_ns = self._now_ns()
        result = schedule(*args, **named)
        began_ns = perf_counter_ns()
        metadata, outputs = result[0], result[1]  # later versions return a third
        values = self._preemptions(ran)
        values |= self._decisions(metadata, outputs, waiting | swapped)
        self._values = values | self._state()
        self.num_recording_ns += perf_counter_ns() - began_ns
        return result

    def _preemptions(self, ran: list[str]) -> dict[str, int]:
        """Who ran before the call and is in another queue after it."""
        scheduler = self._scheduler
        swapped = {group.request_id for group in scheduler.swapped}
        waiting = {group.request_id for group in scheduler.waiting}
        kinds = {"num_preempted_swap": swapped, "num_preempted_recompute": waiting}
        values = {}
        for kind, queue in kinds.items():
            gone = [name for name in ran if name in queue]
            for name in gone:
                if self._book.has(int(name)):
                    self._book.preempted((int(name), 0), 0)
            values[kind] = len(gone)
            self._totals["preemptions"] += len(gone)
        return values

    def _decisions(
        self, metadata: list[Any], outputs: Any, before: set[str]
    ) -> dict[str, int]:
        """Who runs, and what is copied."""
        values: Counter[str] = Counter()
        scheduled = zip(outputs.scheduled_seq_groups, metadata, strict=False)
        for place, (entry, meta) in enumerate(scheduled):
            num_seqs = len(meta.seq_data)
            if place >= outputs.num_prefill_groups:
                values["num_decode_seqs"] += num_seqs
                lengths = (data.get_len() for data in meta.seq_data.values())
                values["num_context_tokens"] += sum(lengths)
            else:
                values["num_prefill_seqs"] += num_seqs
                values["num_prefill_tokens"] += entry.token_chunk_size
            if meta.request_id in before:
                num_cached = self._admit(meta)
                values["num_admitted"] += 1
                values["num_cached_tokens"] += num_cached
                values["num_prefill_tokens"] -= num_cached
        for group in outputs.ignored_seq_groups:
            self._ignore(int(group.request_id))
        copies = {
            "num_swap_in_blocks": outputs.blocks_to_swap_in,
            "num_swap_out_blocks": outputs.blocks_to_swap_out,
            "num_copy_on_write": outputs.blocks_to_copy,
        }
        counts = {name: len(blocks) for name, blocks in copies.items()}
        self._totals["swap_in_blocks"] += counts["num_swap_in_blocks"]
        self._totals["swap_out_blocks"] += counts["num_swap_out_blocks"]
        self._totals["copy_on_write_blocks"] += counts["num_copy_on_write"]
        self._totals["prompt_tokens"] += values["num_prefill_tokens"]
        return dict(values) | counts

    def _admit(self, meta: Any) -> int:
        """Note an admission; tokens of blocks that were found, not computed."""
        num_cached = len(meta.computed_block_nums or ()) * self._block_size
        request_id = int(meta.request_id)
        if self._book.has(request_id):
            self._book.admitted((request_id, 0), num_cached, 0, self._start_ns)
        return num_cached

    def _ignore(self, request_id: int) -> None:
        """Note a prompt that V0 dismissed: it could never fit."""
        if self._book.has(request_id):
            self._dismiss(request_id, self._start_ns, "ignored")

    def _dismiss(self, request_id: int, now_ns: int, reason: str) -> None:
        sample = 0
        while self._book.has(request_id):
            self._book.finished((request_id, sample), now_ns, reason)
            sample += 1
        self._lengths.pop(request_id, None)

    def _state(self) -> dict[str, int]:
        """Queues and blocks after scheduling."""
        scheduler = self._scheduler
        num_used = self._num_blocks - self._num_free()
        return {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_swapped": len(scheduler.swapped),
            "num_used_blocks": num_used,
            "num_used_blocks_end": num_used,
            "num_used_cpu_blocks": self._num_cpu_blocks - self._num_free_cpu(),
        }

    # -- tokens ------------------------------------------------------------------------

    def _got_output(self, output: Any, now_ns: int, gaps: Counter[int]) -> None:
        """Take in a request's tokens, all that it has so far, and its end."""
        request_id = int(output.request_id)
        if not self._book.has(request_id):
            return
        lengths = self._lengths.setdefault(request_id, [])
        for sample, each in enumerate(output.outputs):
            if sample == len(lengths):
                lengths.append(0)
            num_tokens = len(each.token_ids) - lengths[sample]
            lengths[sample] = len(each.token_ids)
            if num_tokens > 0:
                gap_ns = self._book.got_tokens((request_id, sample), num_tokens, now_ns)
                self._totals["generation_tokens"] += num_tokens
                if gap_ns is not None:
                    gaps[gap_ns] += 1
        if output.finished:
            reasons = {each.finish_reason for each in output.outputs}
            other = sorted(reasons - {"length", "stop", None})
            self._dismiss(request_id, now_ns, str(other[0]) if other else "")
            self._totals["finished_requests"] += 1

    def _record(self, values: dict[str, int], end_ns: int, gaps: Counter[int]) -> None:
        num_seqs = values.get("num_decode_seqs", 0) + values.get("num_prefill_seqs", 0)
        if not num_seqs:
            return
        self.num_steps += 1
        known: dict[str, int] = dict.fromkeys(StepRecord.__dataclass_fields__, 0)
        known |= values | {"start_ns": self._start_ns, "end_ns": end_ns, "num_steps": 1}
        known["first_step_ns"] = known["last_step_ns"] = end_ns - self._start_ns
        lists = {"gap_ns": list(gaps), "gap_count": list(gaps.values())}
        self._on_step(StepRecord(**known | lists))  # type: ignore[arg-type]
