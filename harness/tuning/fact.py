"""What is known of a knob besides the replays around its value: needs, costs, worth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from harness.config import EngineConfig
from harness.timing import build_step_time
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row
from harness.tuning.headroom import keeps, keeps_today
from harness.tuning.offload_worth import FS_PER_S, STEP_GIB, Prices, stages, traffic
from harness.tuning.question import Answer
from harness.tuning.swap_need import swap_need
from harness.workload import Workload
from profiles.step_time import BatchShape
from results.comparison.arm import ArmRun

GIB = 2**30

Facts = dict[str, Any]


def facts_of(answer: Answer, engine: TrialEngine) -> dict[str, Facts]:
    """What is known of each knob of the space, by its name.

    On a shared GPU some replays find the least memory that keeps the SLO.

    Args:
        answer: What is advised.
        engine: Replays the requests, at the load that the answer is of.
    """
    found: dict[str, Facts] = {}
    for name in answer.question.space.choices:
        make = _MAKERS.get(name)
        found[name] = {} if make is None else make(name, answer, engine)
    return found


def _advised(answer: Answer, engine: TrialEngine) -> EngineConfig:
    config = engine.config(answer.knobs)
    assert config is not None, "what is advised was replayed"
    return config


def _workload(answer: Answer, engine: TrialEngine) -> Workload:
    """The requests of what is advised: of a stretch where somebody stopped it there."""
    if answer.is_whole or answer.stretch is None:
        return engine.workload
    return engine.workload.select(answer.stretch)


# -- memory ------------------------------------------------------------------------------


def _of_utilization(name: str, answer: Answer, engine: TrialEngine) -> Facts:
    """Blocks for each hundredth of the GPU's memory, and the least that does."""
    config = _advised(answer, engine)
    facts: Facts = {
        "blocks_per_point": 0.01 * config.gpu_memory_gib * GIB / config.block_bytes
    }
    if answer.question.is_shared and engine.objective.slo is not None:
        facts["keeps_slo"] = keeps(answer.advice.trial)
        facts["least_keeping_slo"] = least_keeping_slo(name, answer, engine)
        facts["step"] = answer.question.utilization_step
    return facts


def least_keeping_slo(name: str, answer: Answer, engine: TrialEngine) -> Any:
    """The smallest value up to the advised one that keeps the SLO; None where none does.

    What keeps it is taken to keep it with more, too. None also where somebody stopped it.
    """
    if not keeps(answer.advice.trial):
        return None
    values = _values_up_to(name, answer)
    values = [v for v in values if engine.config({**answer.knobs, name: v}) is not None]
    low, high = 0, len(values) - 1
    while low < high and not engine.is_ended():
        middle = (low + high) // 2
        if keeps_today(engine, {**answer.knobs, name: values[middle]}):
            high = middle
        else:
            low = middle + 1
    return None if engine.is_ended() else values[high]


def _values_up_to(name: str, answer: Answer) -> list[Any]:
    """Values up to the advised one: the space's, and those between that may be had."""
    advised, step = answer.knobs[name], answer.question.utilization_step
    values = [v for v in answer.question.space.choices[name] if v < advised]
    if step is not None and values:
        first, last = round(values[0] / step), math.ceil(advised / step - 1e-6)
        values = [round(place * step, 6) for place in range(first, last)]
    return [*values, advised]


def _of_swap_space(_: str, answer: Answer, engine: TrialEngine) -> Facts:
    """The most that was swapped out at once, and the most that could be."""
    run = answer.advice.trial.run
    assert run is not None, "what is advised was replayed"
    need = swap_need(_workload(answer, engine), _advised(answer, engine), run)
    return {
        "seen_blocks": need.seen_blocks,
        "seen_gib": need.seen_gib,
        "worst_blocks": need.worst_blocks,
        "worst_gib": need.worst_gib,
    }


def _of_offloading(name: str, answer: Answer, engine: TrialEngine) -> Facts:
    """What each further part of a tier finds, what PCIe takes, and when loading pays."""
    run = answer.advice.trial.run
    knobs = {**answer.knobs, name: answer.knobs[name] or float(STEP_GIB)}
    config, workload = engine.config(knobs), _workload(answer, engine)
    if not workload.has_sharing or config is None or run is None:
        return {}
    prices = Prices(workload, config)
    copied = traffic(run, prices)
    rows = answer.evidence.get(name, ())
    replayed = {} if answer.stretch else _hits_of(rows)
    found = stages(workload, config, run, prices, replayed)
    return {
        "stages": [asdict(stage) for stage in found],
        "recomputed": [
            {"value": row.value, "tokens": row.run.summary["waste"]["recomputed_tokens"]}
            for row in rows
            if row.run is not None
        ],
        "traffic": None if copied is None else asdict(copied),
        "crossover_tokens": prices.crossover_tokens(),
        "mean_prompt_tokens": prices.prompt_tokens,
        "block_size": config.block_size,
    }


def _hits_of(rows: Sequence[Row]) -> dict[float, int]:
    """Hit tokens of replays by the size of their tier; none where none is without one."""
    hits = {
        float(row.value): row.run.summary["prefix_cache"]["hit_tokens"]
        for row in rows
        if row.run is not None and not row.run.trouble
    }
    return hits if hits.get(0.0) is not None and None not in hits.values() else {}


# -- trades ------------------------------------------------------------------------------


def _of_block_size(name: str, answer: Answer, engine: TrialEngine) -> Facts:
    """What blocks of each size around cost: hits, empty slots, copies and books.

    It is of the requests that the search was of, as the rows are.
    """
    part, workload = answer.stretch, engine.workload
    workload = workload if part is None else workload.select(part)
    rows = [row for row in answer.evidence.get(name, ()) if row.run is not None]
    configs = [engine.config({**answer.knobs, name: row.value}) for row in rows]
    return {
        "costs": [
            block_costs(workload, config, row.run) | {"value": row.value}
            for row, config in zip(rows, configs, strict=True)
            if row.run is not None and config is not None
        ]
    }


def block_costs(workload: Workload, config: EngineConfig, run: ArmRun) -> Facts:
    """What blocks of a size cost in a run.

    ``table_blocks`` are those that all requests fill, each with its own: entries that a
    block manager keeps books of. Copies are those on write, swaps, and those to and from
    a tier; how long they take adds to steps in v0, and goes on beside them in v1.
    """
    counts = run.summary["counts"]

    def count(name: str) -> int:
        return counts.get(name) or 0

    written = count("copy_on_write")
    swapped = count("swap_out_blocks") + count("swap_in_blocks")
    of_tier = count("offload_store_bytes") + count("offload_load_bytes")
    step_fs = build_step_time(config).step_fs(
        BatchShape(0, 0, 0, 0, 0, num_swap_blocks=swapped, num_copy_blocks=written)
    )
    of_tier_s = 0.0
    if of_tier:
        copied = traffic(run, Prices(workload, config))
        assert copied is not None, "there is a tier"
        of_tier_s = copied.load_s + copied.store_s
    size = config.block_size
    requests = (workload.request(row) for row in range(len(workload)))
    return {
        "hit_tokens": run.summary["prefix_cache"]["hit_tokens"],
        "fragmentation": run.summary["kv_cache"]["fragmentation"],
        "table_blocks": sum(request.num_demand_blocks(size) for request in requests),
        "copied_gib": ((written + swapped) * config.block_bytes + of_tier) / GIB,
        "copy_s": step_fs / FS_PER_S + of_tier_s,
    }


def _of_limit(name: str, answer: Answer, _: TrialEngine) -> Facts:
    """What other limits of a batch would make of waiting and of time per token."""
    names = ("ttft_mean", "ttft_p99", "tpot_mean", "output_token_per_s")
    return {"trade": _trade(answer.evidence.get(name, ()), names, _relative)}


def _of_watermark(name: str, answer: Answer, _: TrialEngine) -> Facts:
    """Preemptions that blocks kept free avoid, and the waiting that they cost."""
    rows = answer.evidence.get(name, ())
    return {"trade": _trade(rows, ("preemptions", "queue_mean", "ttft_mean"), _less)}


def _trade(
    rows: Sequence[Row],
    names: Sequence[str],
    change: Callable[[float, float], float | None],
) -> list[Facts]:
    """By how much figures differ from the advised one's, at each other value."""
    advised = next((row for row in rows if row.is_advised), None)
    found = []
    for row in rows:
        if advised is None or row is advised or row.run is None:
            continue
        pairs = {n: (advised.figures[n], row.figures[n]) for n in names}
        changes = {
            n: None if a is None or b is None else change(a, b)
            for n, (a, b) in pairs.items()
        }
        found.append({"value": row.value, **changes})
    return found


def _relative(base: float, other: float) -> float | None:
    return other / base - 1 if base else None


def _less(base: float, other: float) -> float:
    return other - base


_MAKERS: dict[str, Callable[[str, Answer, TrialEngine], Facts]] = {
    "gpu_memory_utilization": _of_utilization,
    "swap_space": _of_swap_space,
    "kv_offloading_size": _of_offloading,
    "block_size": _of_block_size,
    "max_num_seqs": _of_limit,
    "max_num_batched_tokens": _of_limit,
    "watermark": _of_watermark,
}
