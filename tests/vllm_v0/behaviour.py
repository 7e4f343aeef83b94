"""Which rarely met behaviours of vLLM a recording shows.

Watches vLLM's classes from outside while a scenario is recorded, and changes nothing.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

from record import Recorder
from reference import Reference

# Name: what is seen. docs/v0.md states the rule behind each.
BEHAVIOURS = {
    "evicts_younger": "a block is evicted though one accessed earlier is free",
    "named_again": "a block that is full already is named by its content once more",
    "copies_onto_itself": "a copy-on-write copies a block onto itself",
    "copies_in_prefill": "a copy-on-write in an unfinished chunked prefill",
    "shares_cpu_block": "a swap-out finds its content in a CPU block that is in use",
    "swap_in_never": "a swapped group can never come back and is finished",
    "loses_cpu_blocks": "CPU blocks are missing at the end",
    "loses_gpu_blocks": "GPU blocks are missing at the end",
    "counts_finished": "blocks of a recomputed sample are held for finished ones too",
    "swaps_unforked": "a group that has not forked yet is swapped, not recomputed",
    "swaps_prefill_out": "an unfinished chunked prefill is swapped out",
    "swaps_prefill_in": "an unfinished chunked prefill comes back from the CPU",
    "recomputes_survivor": "the sample recomputed is the last of several",
    "recomputes_other_sample": "the sample recomputed is not sample 0, which has ended",
    "negative_budget": "a request is offered fewer than zero tokens",
    "negative_chunk": "a prefill is scheduled with fewer than zero tokens",
    "admits_too_long": "a prompt over max_model_len is admitted in chunks",
    "preempts_and_prefills": "a step preempts and admits new prefills",
    "ignores_alone": "a step ignores requests and runs nothing",
    "idles": "a call finds nothing to do although requests wait",
    "dies_over_budget": "an assertion: more was scheduled than the budget",
    "dies_recomputing_several": "an assertion: several running samples to recompute",
    "dies_prefilling_several": "an assertion: a prefill of a group of several sequences",
    "no_cpu_swap_space": "an error: a group does not fit into the free CPU blocks",
    "stuck": "eight idle calls at the end",
}
_DIES_IN = {
    "_schedule_chunked_prefill": "dies_over_budget",
    "_schedule_default": "dies_over_budget",
    "_preempt_by_recompute": "dies_recomputing_several",
    "schedule": "dies_prefilling_several",
}

Seen = Generator[None, Any, None]


class Watch:
    """Counts behaviours in ``seen``, from when it is made on."""

    def __init__(self, vllm: Reference) -> None:
        self.seen: Counter[str] = Counter()
        self._vllm = vllm
        scheduler = vllm.scheduler.Scheduler
        blocks = vllm.block_manager.BlockSpaceManagerV1
        _around(vllm.evictor.LRUEvictor, "evict", self._evict)
        _around(blocks, "append_slots", self._append_slots)
        _around(blocks, "swap_out", self._swap_out)
        _around(blocks, "swap_in", self._swap_in)
        _around(blocks, "can_swap_in", self._can_swap_in)
        _around(blocks, "allocate", self._allocate)
        _around(scheduler, "_preempt_by_recompute", self._recompute)
        _around(scheduler, "_get_num_new_tokens", self._num_new_tokens)

    def counts(self, recorder: Recorder) -> dict[str, int]:
        """What was seen since the last time, and what the rows tell; never zeros."""
        seen, self.seen = self.seen, Counter()
        seen.update(_in_rows(recorder))
        return {name: seen[name] for name in BEHAVIOURS if seen[name]}

    # Each of these runs to its ``yield``, is handed the result, and runs to its end.

    def _evict(self, evictor: Any) -> Seen:
        oldest = min((b.last_accessed for b in evictor.free_table.values()), default=0)
        block = yield
        self.seen["evicts_younger"] += block.last_accessed > oldest

    def _append_slots(self, blocks: Any, seq: Any, _: int = 0) -> Seen:
        table = blocks.block_tables[seq.seq_id]
        length, last, name = len(table), table[-1], table[-1].block_hash
        copies = yield
        if copies:
            self.seen["copies_onto_itself"] += copies[0][0] == copies[0][1]
            self.seen["copies_in_prefill"] += seq.is_prefill()
        elif blocks.enable_caching and len(table) == length:
            is_full = seq.get_len() == length * blocks.block_size
            self.seen["named_again"] += is_full and last.block_hash == name

    def _swap_out(self, blocks: Any, group: Any) -> Seen:
        self.seen["swaps_prefill_out"] += group.is_prefill()
        self.seen["swaps_unforked"] += group.num_seqs() == 1 < group.sampling_params.n
        used = set()
        if blocks.enable_caching:
            used = {b.block_number for b in blocks.cpu_allocator.cached_blocks.values()}
        pairs = yield
        self.seen["shares_cpu_block"] += any(cpu in used for _, cpu in pairs)

    def _swap_in(self, blocks: Any, group: Any) -> Seen:
        self.seen["swaps_prefill_in"] += group.is_prefill()
        yield

    def _can_swap_in(self, blocks: Any, group: Any, _: int = 0) -> Seen:
        status = yield
        self.seen["swap_in_never"] += status.name == "NEVER"

    def _allocate(self, blocks: Any, group: Any) -> Seen:
        self.seen["counts_finished"] += not blocks.enable_caching and group.num_seqs() > 1
        yield

    def _recompute(self, scheduler: Any, group: Any) -> Seen:
        running = group.get_seqs(status=self._vllm.sequence.SequenceStatus.RUNNING)
        is_survivor = len(running) == 1 and group.num_seqs() > 1
        self.seen["recomputes_survivor"] += is_survivor
        self.seen["recomputes_other_sample"] += (
            is_survivor and group.seqs[0].is_finished()
        )
        yield

    def _num_new_tokens(self, scheduler: Any, *_: Any) -> Seen:
        num_tokens = yield
        self.seen["negative_budget"] += num_tokens < 0


def _around(owner: type, name: str, observer: Callable[..., Seen]) -> None:
    original = getattr(owner, name)

    def watched(*args: Any) -> Any:
        observing = observer(*args)
        next(observing)
        result = original(*args)
        _finish(observing, result)
        return result

    setattr(owner, name, watched)


def _finish(observing: Seen, result: Any) -> None:
    """Hand an observer the result; it must end then."""
    try:
        observing.send(result)
    except StopIteration:
        return
    raise AssertionError("an observer yields once")


def _in_rows(recorder: Recorder) -> Counter[str]:
    """What can be told from the rows and from how the recording ended."""
    seen: Counter[str] = Counter()
    rows = [row for row in recorder.rows if "error" not in row]
    for row in rows:
        ran = bool(row["prefill"] or row["decode"])
        waits = row["waiting"] or row["swapped"] or row["running"]
        seen["ignores_alone"] += not ran and bool(row["ignored"])
        seen["idles"] += bool(waits) and not ran and not row["ignored"]
        seen["preempts_and_prefills"] += bool(row["preempted"] and row["prefill"])
        seen["negative_chunk"] += any(num_tokens < 0 for _, num_tokens in row["prefill"])
    seen["admits_too_long"] = _num_too_long(recorder, rows)
    seen[_ending(recorder)] += 1
    if _ending(recorder) == "done":
        for device in ("gpu", "cpu"):
            total = recorder.config[f"num_{device}_blocks"]
            seen[f"loses_{device}_blocks"] += rows[-1][f"free_{device}_end"] < total
    return seen


def _num_too_long(recorder: Recorder, rows: list[dict[str, Any]]) -> int:
    admitted = {request_id for row in rows for request_id, _ in row["prefill"]}
    limit = recorder.config["max_model_len"]
    prompts = recorder.prompt_lengths()
    return sum(prompts[request_id] > limit for request_id in admitted)


def _ending(recorder: Recorder) -> str:
    kind = str(recorder.rows[-1].get("error", "done"))
    if kind != "vllm_assertion":
        return kind
    assert recorder.error is not None
    return _DIES_IN[traceback.extract_tb(recorder.error.__traceback__)[-1].name]
