"""From a trace file and flags to the requests that are replayed."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli import options

if TYPE_CHECKING:
    from harness.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """How a trace's file is read."""

    trace_format: options.Format = None
    skip_bad_rows: options.SkipBadRows = False

    def open(self, trace: Path) -> "Workload":
        """All requests of the trace.

        Raises:
            TraceError: The file cannot be read, is of no known format, or has a bad row.
            UsageError: There is no format of that name.
        """
        from harness.traces import open_trace  # brings numpy; help does not need it

        return open_trace(
            trace, format=self.trace_format, skip_bad_rows=self.skip_bad_rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFlags:
    """Which requests of a trace are replayed, and when; None where not given."""

    limit: options.Limit = None
    slice: options.Slice = None
    request_rate: options.RequestRate = None
    burstiness: options.Burstiness = None
    seed: options.Seed = None
    max_concurrency: options.MaxConcurrency = None
    speedup: options.Speedup = None

    @property
    def is_all_at_once(self) -> bool:
        """Every request is to arrive at time 0."""
        return self.request_rate is not None and self.request_rate.strip() == "inf"

    def refuse_contradictions(self) -> None:
        """Refuse flags that would have no effect or work against each other.

        Raises:
            UsageError: Names the two flags and what to do.
        """
        from harness.errors import UsageError

        drawn = not (self.burstiness is None and self.seed is None)
        problems = [
            (
                self.request_rate is not None and self.speedup is not None,
                "--request-rate draws new arrival times and --speedup scales the"
                " trace's; give one of them",
            ),
            (
                self.request_rate is None and self.burstiness is not None,
                "--burstiness shapes the arrivals of --request-rate; add --request-rate",
            ),
            (
                self.request_rate is None and self.seed is not None,
                "--seed draws the arrivals of --request-rate; add --request-rate",
            ),
            (
                self.is_all_at_once and drawn,
                "--request-rate inf sends all at once, and leaves --burstiness and"
                " --seed nothing to draw; leave them out",
            ),
        ]
        for contradicts, message in problems:
            if contradicts:
                raise UsageError(message)

    def to_dict(self) -> dict[str, Any]:
        """The flags by name, as strict JSON: an infinite burstiness is ``inf``."""
        flags = asdict(self)
        if self.burstiness is not None and not math.isfinite(self.burstiness):
            flags["burstiness"] = str(self.burstiness)
        return flags


def open_workload(trace: Path, source: SourceFlags, timing: WorkloadFlags) -> "Workload":
    """The requests of a trace that the flags select, at the times they ask for."""
    changes = _Changes.asked_for_by(timing)  # what cannot be read shows before the trace
    return changes.made_to(source.open(trace))


def timed_as(workload: "Workload", timing: WorkloadFlags) -> "Workload":
    """The requests that the flags select, at the times they ask for."""
    return _Changes.asked_for_by(timing).made_to(workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What flags make of a trace, read from their texts."""

    timing: WorkloadFlags
    part: slice | None
    request_rate: float | None
    speedup: float | None

    @classmethod
    def asked_for_by(cls, timing: WorkloadFlags) -> "_Changes":
        from bench_cli.quantity import parse_rate, parse_speedup

        rate, speedup = timing.request_rate, timing.speedup
        return cls(
            timing=timing,
            part=selected_part(timing),
            request_rate=None if rate is None else parse_rate(rate),
            speedup=None if speedup is None else parse_speedup(speedup),
        )

    def made_to(self, workload: "Workload") -> "Workload":
        if self.part is not None:
            _check_selects(self.part, self.timing.slice, len(workload))
            workload = workload.select(self.part)
        if self.request_rate is not None:
            burstiness = self.timing.burstiness
            return workload.retimed(
                request_rate=self.request_rate,
                burstiness=1.0 if burstiness is None else burstiness,
                seed=self.timing.seed or 0,
            )
        if self.speedup is not None:
            return workload.retimed(speedup=self.speedup)
        return workload


def _check_selects(part: slice, text: str | None, num_requests: int) -> None:
    from harness.errors import UsageError

    if not range(num_requests)[part]:
        raise UsageError(
            f"slice {text} selects none of the trace's {num_requests:,} requests, which"
            f" count from 0; begin it below {num_requests}"
        )


def selected_part(timing: WorkloadFlags) -> slice | None:
    """The slice that ``--slice`` and ``--limit`` leave; None for the whole trace."""
    from bench_cli.quantity import parse_slice

    part = None if timing.slice is None else parse_slice(timing.slice)
    if timing.limit is None:
        return part
    part = part or slice(None)
    start = part.start or 0
    limited = start + timing.limit
    return slice(start, limited if part.stop is None else min(part.stop, limited))
