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
from bench_cli.tune_space import WantedSpace, heeded, space_and_fixed, value_of
from bench_cli.tune_words import shown
from bench_cli.workload import SourceFlags, WorkloadFlags, timed_as
from harness.analysis.miss_ratio import hit_curve
from harness.config import EngineConfig, no_start, resolve_config
from harness.config.version import in_force
from harness.errors import ConfigError, HarnessError, UsageError
from harness.parallel import ReplayPool
from harness.replay import findable_of
from harness.sizing import Sizer
from harness.tuning.choice import ObjectiveName, Routing
from harness.tuning.engine import TrialEngine
from harness.tuning.load import LoadKind, kind_of_load
from harness.tuning.objective import Objective
from harness.tuning.question import Question
from harness.tuning.routing import split
from harness.tuning.search import Budget
from harness.tuning.space import Space
from harness.workload import Workload
from profiles.errors import ProfileError
from profiles.serve_option import GIB, runs_v1_unless_told
from results.goodput import Slo

SAFE_HEADROOM_GIB = 2.0
"""Memory that an advised utilization leaves beside budget and graphs: the estimate of the
pool is up to 1.7 GiB too high in 13 of 16 published logs (docs/capacity.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a search is asked, and what the answer is to be said in.

    Attributes:
        question: For the search.
        engine: That replays.
        current: The present command; None where none was given.
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
    fixed: Mapping[str, Any]
    start: EngineConfig
    default: EngineConfig | None
    headroom_gib: Mapping[float, float]
    num_replicas: int
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What was asked on the command line, besides the engine and the load.

    Attributes:
        slo: Limits; None for none.
        objective: What is wanted most; None for what the limits suggest.
        wanted_space: What was asked of the space.
        budget: As ``60s`` or ``40trials``.
        current: The present command; None for the version's defaults.
        num_replicas: That share the load.
        routing: How they share it.
    """

    slo: Slo | None
    objective: ObjectiveName | None
    wanted_space: WantedSpace
    budget: str
    current: str | None
    num_replicas: int
    routing: Routing


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
    parts = split(workload, asked.num_replicas, asked.routing)
    timing = _of_one(timing, len(parts))
    present = _present(_as_current(flags, current), current)
    start = present.start
    space, fixed = space_and_fixed(
        present.given, present.current, start, asked.wanted_space
    )
    default = _default(fixed)
    headroom_gib = _headroom(fixed, space, start)
    engine = _engine(parts[0], start, fixed, asked, timing, pool)
    return Asked(
        question=_question(engine.workload, space, start, default, headroom_gib, asked),
        engine=engine,
        current=current,
        fixed=fixed,
        start=start,
        default=default,
        headroom_gib=headroom_gib,
        num_replicas=len(parts),
        notes=_notes(parts, timing, asked.routing),
    )


def _of_one(timing: WorkloadFlags, num_replicas: int) -> WorkloadFlags:
    """The load of one replica: of the requests under way it has its part."""
    limit = timing.max_concurrency
    if limit is None or num_replicas == 1:
        return timing
    return replace(timing, max_concurrency=max(1, round(limit / num_replicas)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """The present settings: knobs with flags, those of the command, and the engine."""

    given: dict[str, Any]
    current: dict[str, Any]
    start: EngineConfig


def _present(flags: EngineFlags, current: ServeLine | None) -> _Present:
    """The present settings; a number of blocks as the memory that it is."""
    given = _given(flags)
    knobs = {} if current is None else dict(current.knobs)
    _refuse_contradictions(given, knobs)
    knobs.pop("policy", None)
    start = resolve_config(**{**given, **heeded(knobs, start_policy(given))})
    _check_starts(start)
    if start.source_of_num_gpu_blocks == "override":
        for each in (given, knobs):  # blocks of other sizes are as much memory
            if each.pop("num_gpu_blocks_override", None) is not None:
                each["kv_cache_gib"] = (
                    (start.num_gpu_blocks + 0.5) * start.block_bytes / GIB
                )
    return _Present(given=given, current=knobs, start=start)


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
        routing=asked.routing,
        is_shared=asked.wanted_space.is_shared,
    )


def _check_starts(start: EngineConfig) -> None:
    """Refuse a pool, given as it is, with which a replay goes on and vLLM does not."""
    if reason := no_start(start):
        raise ConfigError(reason)


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


def _given(flags: EngineFlags) -> dict[str, Any]:
    """Knobs that somebody set; one that is as it is by itself may be set otherwise."""
    plain = EngineFlags().knobs()
    always = ("model", "gpu", "engine")
    knobs = flags.knobs()
    if knobs["num_cpu_blocks_override"] is not None:
        raise UsageError(
            "vLLM has no option for --num-cpu-blocks-override; give --swap-space (v0) or"
            " --kv-offloading-size (v1) instead"
        )
    return {n: v for n, v in knobs.items() if n in always or v != plain[n]}


def _as_current(flags: EngineFlags, current: ServeLine | None) -> EngineFlags:
    """The flags, with the model and the engine that the present command has.

    From 0.8 to 0.10 a plain ``vllm serve`` runs v1.
    """
    if current is not None and flags.model == EngineFlags().model:
        flags = replace(flags, model=current.model)
    if flags.policy is not None:
        return flags
    from bench_cli.engine_options import Policy

    policy = None if current is None else current.knobs.get("policy")
    if policy is not None:
        return replace(flags, policy=Policy(policy))
    version = flags.vllm_version
    if version is not None and runs_v1_unless_told(version):
        return replace(flags, policy=Policy.V1)
    return flags


def _refuse_contradictions(given: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    for name, value in current.items():
        if given.get(name, value) != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"the present command has {name} {shown(value)}, and {flag} says"
                f" {shown(given[name])}; give one of them"
            )


def start_policy(given: Mapping[str, Any]) -> str:
    """The policy that is in force."""
    return in_force(given.get("policy"), given.get("vllm_version")).policy


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
    name = asked.objective
    if name is None:
        is_open = kind_of_load(workload, timing.max_concurrency) is LoadKind.RATE
        without_slo = ObjectiveName.TTFT if is_open else ObjectiveName.THROUGHPUT
        name = without_slo if asked.slo is None else ObjectiveName.GOODPUT
    if name is ObjectiveName.GOODPUT and asked.slo is None:
        raise UsageError("--objective goodput needs limits; add --slo ttft=2s,tpot=50ms")
    return Objective(name=name, slo=asked.slo)


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
