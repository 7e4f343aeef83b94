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
from bench_cli.variation import ENGINE_KNOBS, parse_variation
from bench_cli.workload import SourceFlags, WorkloadFlags, timed_as
from harness.analysis.miss_ratio import hit_curve
from harness.config import EngineConfig, resolve_config
from harness.config.version import in_force
from harness.errors import HarnessError, UsageError
from harness.parallel import ReplayPool
from harness.replay import findable_of
from harness.sizing import Sizer
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import Objective, ObjectiveName
from harness.tuning.routing import Routing, split
from harness.tuning.search import Budget
from harness.tuning.space import SEARCHED_IF_NAMED, Space, space_of, with_value
from harness.tuning.tuner import Question
from harness.workload import Workload
from profiles.errors import ProfileError
from profiles.serve_option import GIB, runs_v1_unless_told
from results.goodput import Slo

SAFE_HEADROOM_GIB = 2.0
"""Memory that an advised utilization leaves beside budget and graphs: the estimate of the
pool is up to 1.7 GiB too high in 13 of 16 published logs (docs/capacity.md)."""

DEFAULT_BUDGET = "40trials"

_POOL_KNOBS = ("kv_cache_gib", "num_gpu_blocks_override")
"""With one of these given, the utilization decides nothing."""


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
        notes: What a reader should know.
    """

    question: Question
    engine: TrialEngine
    current: ServeLine | None
    fixed: Mapping[str, Any]
    start: EngineConfig
    default: EngineConfig | None
    headroom_gib: Mapping[float, float]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What was asked on the command line, besides the engine and the load.

    Attributes:
        slo: Limits; None for none.
        objective: What is wanted most; None for what the limits suggest.
        space: As ``block_size=16|32, max_num_seqs=64..1024``; None for all there is.
        budget: As ``60s`` or ``40trials``.
        current: The present command; None for the version's defaults.
        num_replicas: That share the load.
        routing: How they share it.
        is_shared: Others need the GPU too.
        host_memory_gib: Of the machine that will serve; None if not known.
    """

    slo: Slo | None
    objective: ObjectiveName | None
    space: str | None
    budget: str
    current: str | None
    num_replicas: int
    routing: Routing
    is_shared: bool
    host_memory_gib: float | None


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
    flags = _as_current(flags, current)
    given = {n: v for n, v in flags.knobs().items() if v is not None}
    workload = timed_as(source.open(trace), timing)
    parts = split(workload, asked.num_replicas, asked.routing)
    workload = parts[0]
    start_knobs = {} if current is None else dict(current.knobs)
    start_knobs.pop("policy", None)
    start = resolve_config(**{**given, **_wanted(start_knobs, start_policy(given))})
    if start.source_of_num_gpu_blocks == "override":
        for knobs in (given, start_knobs):  # blocks of other sizes are as much memory
            if knobs.pop("num_gpu_blocks_override", None) is not None:
                knobs["kv_cache_gib"] = (
                    (start.num_gpu_blocks + 0.5) * start.block_bytes / GIB
                )
    space, fixed = _space(given, start_knobs, start, asked)
    default = _default(fixed)
    start_values = _values(space, start)
    objective = _objective(asked, workload, timing)
    engine = TrialEngine(
        workload=workload,
        findable=findable_of(workload, start.policy),
        fixed=fixed,
        objective=objective,
        make_info=lambda w, c, o: run_info(w, c, timing, o.slo),
        pool=pool,
        max_concurrency=timing.max_concurrency,
    )
    headroom_gib = _headroom(fixed, space, start)
    error = start.step_time_error
    question = Question(
        space=space,
        start=start_values,
        default=start_values if default is None else _values(space, default),
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
        is_shared=asked.is_shared,
    )
    notes = [] if len(parts) == 1 else [_of_replicas(workload, len(parts), asked.routing)]
    return Asked(
        question=question,
        engine=engine,
        current=current,
        fixed=fixed,
        start=start,
        default=default,
        headroom_gib=headroom_gib,
        notes=notes,
    )


def _of_replicas(workload: Workload, num_replicas: int, routing: Routing) -> str:
    return (
        f"the search is of the first of {num_replicas} replicas, which gets"
        f" {len(workload):,} requests ({routing.value})"
    )


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


def start_policy(given: Mapping[str, Any]) -> str:
    """The policy that is in force."""
    return in_force(given.get("policy"), given.get("vllm_version")).policy


def _wanted(knobs: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Knobs of a present command that its engine heeds."""
    if policy == "v0":
        return dict(knobs)
    return {n: v for n, v in knobs.items() if n not in ("swap_space", "preemption_mode")}


def _space(
    given: Mapping[str, Any],
    current: Mapping[str, Any],
    start: EngineConfig,
    asked: TuneFlags,
) -> tuple[Space, dict[str, Any]]:
    """What is searched, and the knobs that are the same in all trials."""
    named = parse_space(asked.space) if asked.space else {}
    pooled = any(given.get(n) or current.get(n) for n in _POOL_KNOBS)
    start_of = {n: value_of(start, n) for n in ENGINE_KNOBS if hasattr(start, n)}
    choices = dict(space_of(start.policy, start.vllm_version, start_of).choices)
    if asked.host_memory_gib is not None:
        for name in ("kv_offloading_size", "swap_space"):
            most = asked.host_memory_gib * 0.7
            choices[name] = tuple(v for v in choices.get(name, ()) if v <= most)
    for name, values in named.items():
        if name not in choices and name not in SEARCHED_IF_NAMED:
            raise UsageError(
                f"--space: {name} is not searched with vLLM {start.vllm_version};"
                f" {', '.join((*choices, *SEARCHED_IF_NAMED))} are"
            )
        choices[name] = with_value(values, value_of(start, name))
    if pooled:
        choices.pop("gpu_memory_utilization", None)
    open_ = {n: v for n, v in choices.items() if given.get(n) is None and len(v) > 1}
    fixed = {n: v for n, v in given.items() if n not in open_}
    for name, value in _wanted(current, start.policy).items():
        if name not in open_:
            fixed.setdefault(name, value)
    return Space(open_), fixed


def value_of(config: EngineConfig, name: str) -> Any:
    """A knob of an engine, by the name that it is searched by."""
    value = getattr(config, name)
    return "auto" if value is None and name == "kv_cache_dtype" else value


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
        is_closed = timing.max_concurrency is not None or workload.duration_s == 0
        without_slo = ObjectiveName.THROUGHPUT if is_closed else ObjectiveName.TTFT
        name = without_slo if asked.slo is None else ObjectiveName.GOODPUT
    if name is ObjectiveName.GOODPUT and asked.slo is None:
        raise UsageError("--objective goodput needs limits; add --slo ttft=2s,tpot=50ms")
    return Objective(name=name, slo=asked.slo)


def parse_space(text: str) -> dict[str, tuple[Any, ...]]:
    """The values in ``block_size=16|32, max_num_seqs=64..1024``, by knob.

    Raises:
        UsageError: It cannot be read.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for part in text.split(","):
        try:
            variation = parse_variation(part.replace("|", ","), ENGINE_KNOBS)
        except UsageError as error:
            raise UsageError(str(error).replace("--vary", "--space", 1)) from error
        found[variation.knob] = variation.values
    return found


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
