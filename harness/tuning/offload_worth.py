"""What an offload tier is worth: what it finds, what that saves, and what copies take."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from harness.analysis.miss_ratio import hit_curve
from harness.config import EngineConfig
from harness.run_columns import IntArray
from harness.timing import build_step_time
from harness.workload import Workload
from profiles.errors import CapacityError
from profiles.step_time import FS_PER_NS, BatchShape
from profiles.vllm_v1 import num_offload_blocks
from results.comparison.arm import ArmRun

STEP_GIB = 8
MOST_GIB = 128
"""A tier grows by so much, up to so much, as far as more is found."""

FS_PER_S = FS_PER_NS * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a tier finds that is larger than the last one.

    Attributes:
        size_gib: Of all GPUs together.
        from_gib: Size of the last one; 0 for none.
        hit_tokens: More than the smaller one finds, in the whole trace.
        saved_s: Seconds of prefills that these spare.
        load_s: Seconds of copies that bring them.
        is_replayed: A replay with a tier of this size found them; else they are expected.
    """

    size_gib: float
    from_gib: float
    hit_tokens: int
    saved_s: float
    load_s: float
    is_replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went over PCIe in a run, one direction beside the other.

    Attributes:
        load_gib: From the tier, of all GPUs.
        store_gib: To it.
        load_s: Seconds that the loads take.
        store_s: Seconds of the stores.
        waited_share: Of the time of all steps, in which these waited for stores.
    """

    load_gib: float
    store_gib: float
    load_s: float
    store_s: float
    waited_share: float | None


class Prices:
    """What a prompt of the trace takes to compute, and its blocks to be copied.

    Args:
        workload: The requests.
        config: An engine with a tier.
    """

    def __init__(self, workload: Workload, config: EngineConfig) -> None:
        self._step_time = build_step_time(config)
        self._block_size = config.block_size
        self._chunk = config.max_num_batched_tokens
        self.prompt_tokens = max(1, round(float(workload.input_tokens.mean())))

    def compute_s(self, num_found: int) -> float:
        """Seconds to compute a mean prompt alone, of which so much was found."""
        return self._compute_fs(num_found) / FS_PER_S

    def _compute_fs(self, num_found: int) -> int:
        step_fs, start = 0, num_found
        while start < self.prompt_tokens:
            end = min(start + self._chunk, self.prompt_tokens)
            step_fs += self._step_time.step_fs(_prefill(start, end))
            start = end
        return step_fs

    def token_s(self) -> float:
        """Seconds of a prompt token in a batch that has many: what one less saves."""
        full, half = self._chunk, self._chunk // 2
        more_fs = self._busy_fs(full) - self._busy_fs(half)
        return more_fs / (full - half) / FS_PER_S

    def _busy_fs(self, num_tokens: int) -> int:
        """Femtoseconds of a step with so many tokens, of mean prompts or part of one."""
        of_prompt = self.prompt_tokens
        is_whole = num_tokens >= of_prompt
        shape = BatchShape(
            num_prefill_tokens=num_tokens,
            prefill_attention=num_tokens * (of_prompt + 1) // 2,
            num_prefill_seqs=max(1, num_tokens // of_prompt),
            num_decode_seqs=0,
            num_context_tokens=0,
            num_prefill_context_tokens=(
                num_tokens if is_whole else (of_prompt + num_tokens) // 2
            ),
        )
        return self._step_time.step_fs(shape)

    def copies_s(self, num_blocks: float, *, is_load: bool) -> float:
        """Seconds of copies, in transfers of as many blocks as a mean prompt has."""
        of_prompt = max(1, self.prompt_tokens // self._block_size)
        one_fs = self._step_time.transfer_fs(of_prompt, is_load=is_load)
        return num_blocks / of_prompt * one_fs / FS_PER_S

    def crossover_tokens(self) -> int | None:
        """Fewest tokens of a mean prompt that are loaded sooner than computed.

        None where computing is as quick however many there are.
        """
        whole_fs = self._compute_fs(0)
        for num_blocks in range(1, (self.prompt_tokens - 1) // self._block_size + 1):
            found = num_blocks * self._block_size
            load_fs = self._step_time.transfer_fs(num_blocks, is_load=True)
            if load_fs < whole_fs - self._compute_fs(found):
                return found
        return None


def _prefill(start: int, end: int) -> BatchShape:
    """A step that computes these tokens of one prompt."""
    return BatchShape(
        num_prefill_tokens=end - start,
        prefill_attention=(end * (end + 1) - start * (start + 1)) // 2,
        num_prefill_seqs=1,
        num_decode_seqs=0,
        num_context_tokens=0,
        num_prefill_context_tokens=end,
    )


def stages(
    workload: Workload,
    config: EngineConfig,
    run: ArmRun,
    prices: Prices,
    replayed: Mapping[float, int],
) -> list[Stage]:
    """What each further part of a tier is worth, until nothing more is found.

    A tier keeps all prompts in the order of their last use, those on the GPU among them,
    and the GPU's blocks find outputs besides: what they found, less what they would find
    of prompts in the part of the room that prompts have. None are there where the trace
    does not say which prompts begin alike, or the run had no cache. Where the GPU's
    blocks are taken by requests that run, a tier smaller than they are finds what they do
    not keep, and this does not see it; a replay with such a tier does, and goes first.

    Measured against replays with tiers of 8 and 16 GiB over a pool of 3 GiB, vLLM 0.32:
    what each finds more is 0.5 % and 3 % off for 300 prompts with 40 prefixes, and 1 %
    and 5 % for examples/chat_1000.jsonl.

    Args:
        workload: The requests.
        config: The engine; the size of its tier does not count.
        run: Of the requests: in which order they end, and what the GPU's blocks found.
        prices: Of tokens and copies.
        replayed: Hit tokens of replays by the size of their tier, in GiB, with 0 among
            them where there are any.
    """
    size, before = config.block_size, run.summary["prefix_cache"]["gpu_hit_tokens"]
    ordered = workload.take(order_of_ends(workload, run))
    in_tier = hit_curve(ordered, block_size=size)
    on_gpu = hit_curve(ordered, block_size=size, with_outputs=True)
    if before is None or in_tier is None or on_gpu is None:
        return []
    part = in_tier.max_used_tokens / max(1, on_gpu.max_used_tokens)
    of_prompts = in_tier.hit_tokens(part * (config.num_gpu_blocks - 1) * size)
    of_outputs = max(0, before - of_prompts)
    most = in_tier.max_used_tokens
    sizes = _sizes(config, most, max(replayed, default=0.0))
    more = {
        size_gib: max(0, in_tier.hit_tokens(num_blocks * size) + of_outputs - before)
        for size_gib, num_blocks in sizes
    }
    return _stages_of(_with_replayed(more, replayed), replayed, size, prices)


def _with_replayed(
    more: Mapping[float, int], replayed: Mapping[float, int]
) -> dict[float, int]:
    """Tokens that each size finds more, as replays have it, and others between these."""
    known = {
        size: max(0, hits - replayed[0.0]) for size, hits in replayed.items() if size
    }
    found = {}
    for size in sorted({*more, *known}):
        least = max((hits for each, hits in known.items() if each <= size), default=0)
        most = min(
            (hits for each, hits in known.items() if each > size), default=math.inf
        )
        found[size] = int(max(least, min(most, known.get(size, more.get(size, 0)))))
    return found


def _stages_of(
    more: Mapping[float, int],
    replayed: Mapping[float, int],
    block_size: int,
    prices: Prices,
) -> list[Stage]:
    found, before, from_gib = [], 0, 0.0
    for size_gib, hits in more.items():
        found.append(
            Stage(
                size_gib=size_gib,
                from_gib=from_gib,
                hit_tokens=hits - before,
                saved_s=(hits - before) * prices.token_s(),
                load_s=prices.copies_s((hits - before) / block_size, is_load=True),
                is_replayed=size_gib in replayed,
            )
        )
        before, from_gib = hits, size_gib
    return found


def order_of_ends(workload: Workload, run: ArmRun) -> IntArray:
    """Rows in the order in which their requests end; those that do not, as they come.

    A turn begins its delay after the one that it follows has ended.
    """
    e2e_ns = np.nan_to_num(run.samples.values["e2e"]) * 1e9
    end_ns = workload.arrival_ns + e2e_ns
    for row in np.flatnonzero(workload.parent >= 0).tolist():
        begin_ns = end_ns[workload.parent[row]] + workload.delay_ns[row]
        end_ns[row] = max(0.0, begin_ns) + e2e_ns[row]
    return np.argsort(end_ns, kind="stable").astype(np.int64)


def _sizes(
    config: EngineConfig, most_tokens: int, most_gib: float
) -> Iterator[tuple[float, int]]:
    """Sizes of a tier in GiB, and in blocks, up to one that holds all or a given one."""
    for size_gib in range(STEP_GIB, MOST_GIB + 1, STEP_GIB):
        try:
            num_blocks = num_offload_blocks(
                size_gib, config.block_bytes, config.tensor_parallel_size
            )
        except CapacityError:
            return
        yield float(size_gib), num_blocks
        if num_blocks * config.block_size >= most_tokens and size_gib >= most_gib:
            return


def traffic(run: ArmRun, prices: Prices) -> Traffic | None:
    """What a run copied; None without a tier."""
    counts = run.summary["counts"]
    num_loaded, num_stored = counts["offload_load_blocks"], counts["offload_store_blocks"]
    if num_loaded is None or num_stored is None:
        return None
    return Traffic(
        load_gib=counts["offload_load_bytes"] / 2**30,
        store_gib=counts["offload_store_bytes"] / 2**30,
        load_s=prices.copies_s(num_loaded, is_load=True),
        store_s=prices.copies_s(num_stored, is_load=False),
        waited_share=run.summary["waste"]["swap_time_share"],
    )
