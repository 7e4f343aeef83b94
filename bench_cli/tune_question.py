"""From flags and a present command to what a search is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.quantity import parse_duration
from bench_cli.run_start import run_info
from bench_cli.serve_line import ServeLine
from bench_cli.serve_reading import parse_serve
from bench_cli.tune_flags import TuneFlags
from bench_cli.tune_present import present_of
from bench_cli.tune_space import (
    UTILIZATION_STEP,
    WantedSpace,
    parse_space,
    space_and_fixed,
    value_of,
)
from bench_cli.workload import SourceFlags, WorkloadFlags, timed_as
from harness.analysis.miss_ratio import hit_curve
from harness.config import EngineConfig, resolve_config
from harness.errors import HarnessError, UsageError
from harness.parallel import ReplayPool
from harness.replay import findable_of
from harness.sizing import Sizer
from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.load import LoadKind, kind_of_load
from harness.tuning.objective import Objective
from harness.tuning.question import Question
from harness.tuning.replicas import SharedLoad
from harness.tuning.routing import split
from harness.tuning.search import Budget
from harness.tuning.space import Space
from harness.workload import Workload
from profiles.errors import ProfileError

SAFE_HEADROOM_GIB = 2.0
"""Memory that an advised utilization leaves beside budget and graphs: the estimate of the
pool is up to 1.7 GiB too high in 13 of 16 published logs (docs/capacity.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a search is asked, and what the answer is to be said in.

    Attributes:
        question: For the search.
        engine: That replays.
        current: The present command, as its vLLM takes it; None where none was given.
        unreplayed: Words of it that stay in a line though no replay heeds them.
        fixed: Knobs that somebody set, by name, which are not searched.
        start: The present engine.
        default: The version's own; None where it cannot start.
        headroom_gib: Memory left by utilization, of those that may be chosen.
        num_replicas: That share the load; the search is of the first.
        notes: What a reader should know.
    """

    question: Question
    engine: TrialEngine
    current: ServeLine | None
    unreplayed: tuple[str, ...]
    fixed: Mapping[str, Any]
    start: EngineConfig
    default: EngineConfig | None
    headroom_gib: Mapping[float, float]
    num_replicas: int
    notes: Sequence[str]


def ask(
    trace: Path,
    flags: EngineFlags,
    source: SourceFlags,
    timing: WorkloadFlags,
    asked: TuneFlags,
    pool: ReplayPool,
) -> Asked:
    """Put the question together.

    Raises:
        UsageError: Flags that contradict each other or the present command.
        ConfigError, ProfileError: The present settings cannot start.
    """
    current = None if asked.current is None else parse_serve(asked.current)
    workload = timed_as(source.open(trace), timing)
    parts = split(workload, asked.replicas, asked.routing)
    shared = SharedLoad(
        workload=workload,
        routing=asked.routing,
        num_replicas=len(parts),
        max_concurrency=timing.max_concurrency,
    )
    timing = _of_one(timing, len(parts))
    present = present_of(flags, current)
    start = present.start
    wanted = WantedSpace(
        text=asked.space,
        is_shared=asked.shared_gpu,
        host_memory_gib=asked.host_memory_gib,
    )
    space, fixed = space_and_fixed(present.given, present.current, start, wanted)
    default = _default(fixed)
    headroom_gib = _headroom(fixed, space, start)
    engine = _engine(parts[0], start, fixed, asked, timing, pool)
    return Asked(
        question=_question(
            engine.workload, space, start, default, headroom_gib, asked, shared
        ),
        engine=engine,
        current=present.command,
        unreplayed=present.unreplayed,
        fixed=fixed,
        start=start,
        default=default,
        headroom_gib=headroom_gib,
        num_replicas=len(parts),
        notes=[*present.notes, *_notes(parts, timing, asked.routing)],
    )


def _of_one(timing: WorkloadFlags, num_replicas: int) -> WorkloadFlags:
    """The load of one replica: of the requests under way it has its part."""
    limit = timing.max_concurrency
    if limit is None or num_replicas == 1:
        return timing
    return replace(timing, max_concurrency=max(1, round(limit / num_replicas)))


def _engine(
    workload: Workload,
    start: EngineConfig,
    fixed: Mapping[str, Any],
    asked: TuneFlags,
    timing: WorkloadFlags,
    pool: ReplayPool,
) -> TrialEngine:
    """What replays settings of these requests."""
    return TrialEngine(
        workload=workload,
        findable=findable_of(workload, start.policy),
        fixed=fixed,
        objective=_objective(asked, workload, timing),
        make_info=lambda w, c, o: run_info(w, c, timing, o.slo),
        pool=pool,
        max_concurrency=timing.max_concurrency,
    )


def _question(
    workload: Workload,
    space: Space,
    start: EngineConfig,
    default: EngineConfig | None,
    headroom_gib: Mapping[float, float],
    asked: TuneFlags,
    shared: SharedLoad,
) -> Question:
    """What the search is to find out."""
    error = start.step_time_error
    return Question(
        space=space,
        start=_values(space, start),
        default=_values(space, start if default is None else default),
        curve=hit_curve(
            workload, block_size=start.block_size, with_outputs=start.policy == "v1"
        ),
        safest_utilization=max(
            (u for u, gib in headroom_gib.items() if gib >= SAFE_HEADROOM_GIB),
            default=0.0,
        ),
        step_time_error=None if error is None else error.fraction,
        budget=parse_budget(asked.budget),
        shared=shared,
        is_shared=asked.shared_gpu,
        utilization_step=_utilization_step(asked),
    )


def _utilization_step(asked: TuneFlags) -> float | None:
    """How fine the least memory is looked for; None where its values are given."""
    named = {} if asked.space is None else parse_space(asked.space)
    is_open = asked.shared_gpu and "gpu_memory_utilization" not in named
    return UTILIZATION_STEP if is_open else None


def _notes(
    parts: Sequence[Workload], timing: WorkloadFlags, routing: Routing
) -> list[str]:
    """What a reader should know of one of several replicas."""
    if len(parts) == 1:
        return []
    closed = timing.max_concurrency
    under_way = "" if closed is None else f", {closed:,} at a time"
    return [
        f"the search is of the first of {len(parts)} replicas, which gets"
        f" {len(parts[0]):,} requests{under_way} ({routing.value})"
    ]


def _values(space: Space, config: EngineConfig) -> dict[str, Any]:
    return {name: value_of(config, name) for name in space.choices}


def _default(fixed: Mapping[str, Any]) -> EngineConfig | None:
    try:
        return resolve_config(**fixed)
    except (HarnessError, ProfileError):
        return None


def _headroom(
    fixed: Mapping[str, Any], space: Space, start: EngineConfig
) -> dict[float, float]:
    """Memory that each utilization leaves, of those that fit at all."""
    sizer = Sizer(
        model=fixed["model"],
        gpu=fixed["gpu"],
        policy=fixed.get("policy"),
        vllm_version=fixed.get("vllm_version"),
        dtype=fixed.get("dtype"),
        quantization=fixed.get("quantization"),
        kv_cache_dtype=fixed.get("kv_cache_dtype"),
    )
    sized = ("tensor_parallel_size", "max_model_len", "max_num_seqs", "enforce_eager")
    knobs = {n: getattr(start, n) for n in (*sized, "max_num_batched_tokens")}
    found = {}
    for value in space.choices.get("gpu_memory_utilization", ()):
        try:
            sizing = sizer.size(**knobs, gpu_memory_utilization=value)
        except (HarnessError, ProfileError):
            continue
        found[value] = sizing.headroom_gib
    return found


def _objective(asked: TuneFlags, workload: Workload, timing: WorkloadFlags) -> Objective:
    name, slo = asked.objective, asked.limits()
    if name is None:
        is_open = kind_of_load(workload, timing.max_concurrency) is LoadKind.RATE
        without_slo = ObjectiveName.TTFT if is_open else ObjectiveName.THROUGHPUT
        name = without_slo if slo is None else ObjectiveName.GOODPUT
    if name is ObjectiveName.GOODPUT and slo is None:
        raise UsageError("--objective goodput needs limits; add --slo ttft=2s,tpot=50ms")
    return Objective(name=name, slo=slo)


def parse_budget(text: str) -> Budget:
    """The budget in ``60s``, ``2min`` or ``40trials``.

    Raises:
        UsageError: It is neither a time nor a number of trials.
    """
    stripped = text.strip().lower()
    number = stripped.removesuffix("trials").removesuffix("trial").strip()
    if number != stripped and number.isdigit() and 0 < int(number) < 10**6:
        return Budget(num_trials=int(number))
    try:
        seconds = parse_duration(stripped)
    except UsageError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(
            f"--budget cannot read {text!r}; write a time, as 60s or 5min, or 40trials"
        )
    return Budget(seconds=seconds)
