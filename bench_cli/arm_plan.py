"""Which arms a comparison has: the combinations of the values that knobs take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.variation import ENGINE_KNOBS, LOAD_KNOBS, Variation, parse_variation
from bench_cli.workload import SourceFlags, WorkloadFlags, timed_as
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.config import EngineConfig
    from harness.workload import Workload

CACHING = Variation("enable_prefix_caching", (False, True))
"""What is compared where nothing else was asked for."""

PRELOAD = ("bench_cli.main", "bench_cli.arm_run", "pyarrow.parquet", "numpy.ma")
"""Modules that every arm needs."""

NOW = "now"
"""What an arm with the flags as they are is called, beside a stored baseline."""

MOST_ARMS = 100
"""Runs that somebody waits for."""

_UNLESS_GIVEN = {"model", "gpu", "tensor_parallel_size", "engine", "enforce_eager"}
"""Flags whose default cannot be told from the same value given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """An arm before it runs.

    Attributes:
        name: What it will be called.
        config: Its engine, resolved; None where that cannot start.
        timing: Its load.
        workload: The requests, at its times; None where it cannot start.
        error: Why it cannot start; else empty.
    """

    name: str
    config: "EngineConfig | None" = None
    timing: WorkloadFlags
    workload: "Workload | None" = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replays:
    """What is to be replayed.

    Attributes:
        trace: Its file.
        flags: The engine, as far as it is the same in all arms.
        source: How the trace is read.
        timing: The load, as far as it is the same in all arms.
        vary: What differs, as it was written.
    """

    trace: Path
    flags: EngineFlags
    source: SourceFlags
    timing: WorkloadFlags
    vary: tuple[str, ...] = ()

    def variations(self, *, has_baseline: bool) -> list[Variation]:
        """The knobs that differ; prefix caching where nothing else was asked for.

        Raises:
            UsageError: One cannot be read, or a flag sets it as well.
        """
        found = [parse_variation(text, ENGINE_KNOBS | LOAD_KNOBS) for text in self.vary]
        if not found and not has_baseline:
            found = [CACHING]
        if not has_baseline and all(len(variation.values) == 1 for variation in found):
            raise UsageError(
                f"--vary {' --vary '.join(self.vary)} makes one arm, which has nothing"
                " beside it; give a second value, or a --baseline"
            )
        names = [variation.knob for variation in found]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"--vary names {name} twice; list all values in one")
            self._refuse_given(name)
        return found

    def _refuse_given(self, name: str) -> None:
        """Refuse to vary what a flag has set."""
        given = getattr(self.timing if name in LOAD_KNOBS else self.flags, name)
        if given is None or name in _UNLESS_GIVEN:
            return
        flag = name.replace("_", "-")
        if not self.vary:
            raise UsageError(
                f"compare runs with prefix caching off and on; leave --[no-]{flag} out,"
                " or name with --vary what to compare instead"
            )
        raise UsageError(f"--{flag} and --vary {name} both set it; leave one of them out")

    def plan(
        self, variations: Sequence[Variation], *, has_baseline: bool = False
    ) -> list[ArmPlan]:
        """Every combination of the values, the last knob's changing fastest.

        Arms that cannot start say why, unless that leaves nothing to compare: without a
        stored baseline the first arm has to start, and another; with one, any.

        Raises:
            UsageError: There are too many.
            HarnessError, ProfileError: Why nothing could be compared.
        """
        knobs = [variation.knob for variation in variations]
        combinations = list(product(*(variation.values for variation in variations)))
        if len(combinations) > MOST_ARMS:
            raise UsageError(
                f"--vary makes {len(combinations)} arms, and {MOST_ARMS} are the most;"
                " vary fewer knobs, or take fewer values"
            )
        workload = self.source.open(self.trace)
        planned = []
        errors: dict[str, Exception] = {}
        for values in combinations:
            varied = dict(zip(knobs, values, strict=True))
            try:
                planned.append(self._arm(workload, varied))
            except _cannot_start() as error:
                name = name_of(varied)
                errors[name] = error
                planned.append(ArmPlan(name=name, timing=self.timing, error=str(error)))
        has_base = has_baseline or not planned[0].error
        others = planned if has_baseline else planned[1:]
        if errors and not (has_base and any(not plan.error for plan in others)):
            raise next(iter(errors.values()))
        return planned

    def _arm(self, workload: "Workload", varied: Mapping[str, Any]) -> ArmPlan:
        from harness.config import resolve_config

        load = {name: value for name, value in varied.items() if name in LOAD_KNOBS}
        engine = {name: v for name, v in varied.items() if name not in LOAD_KNOBS}
        if engine.get("kv_offloading_size") == 0:
            engine["kv_offloading_size"] = None  # no tier, which is what 0 GiB means
        timing = replace(self.timing, **load)
        timing.refuse_contradictions()
        return ArmPlan(
            name=name_of(varied),
            config=resolve_config(**self.flags.knobs() | engine),
            timing=timing,
            workload=timed_as(workload, timing),
        )


def _cannot_start() -> tuple[type[Exception], ...]:
    from harness.errors import HarnessError
    from profiles.errors import ProfileError

    return HarnessError, ProfileError


def name_of(varied: Mapping[str, Any]) -> str:
    """What an arm is called: the knobs that are varied, with its values."""
    if not varied:
        return NOW
    return " ".join(_knob_text(name, value) for name, value in varied.items())


def _knob_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        spoken = name.removeprefix("enable_").replace("_", " ")
        return f"{spoken} {'on' if value else 'off'}"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
