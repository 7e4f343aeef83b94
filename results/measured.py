"""What a measured run knows besides its rows, and what nobody measured."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from results.errors import ResultsError

Table = Literal["requests", "steps"]
Figure = TypeVar("Figure")

LATE_S = 0.005
"""Median lateness of the client above which latencies are partly its own."""

COUNTERS = (
    "preemptions",
    "prefix_cache_query_tokens",
    "prefix_cache_hit_tokens",
    "external_prefix_cache_query_tokens",
    "external_prefix_cache_hit_tokens",
    "prompt_tokens",
    "generation_tokens",
    "finished_requests",
    "swap_in_blocks",
    "swap_out_blocks",
    "copy_on_write_blocks",
    "offload_load_bytes",
    "offload_store_bytes",
)
"""Whole-run counters that figures and findings read; a source may have others too.

``external_prefix_cache_…`` counts tokens looked up, and found, outside of the GPU: in an
offload tier or a connector.
"""


class NotMeasuredError(ResultsError):
    """A figure was asked for that needs what the source of a run does not expose.

    Attributes:
        name: Column of rows, or knob of the configuration.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was not measured in this run; its figures are n/a: compare others,"
            " or measure with --engine vllm, which sees more than a server shows"
        )
        self.name = name


def if_measured(figure: Callable[[], Figure]) -> Figure | None:
    """The figure; None where it needs what was not measured."""
    try:
        return figure()
    except NotMeasuredError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is known of a measured run besides its rows; all of it is strict JSON.

    A run that is under way, or was killed, has the one with which it began, so that
    ``unmeasured`` must be whole by then.

    Attributes:
        unmeasured: Columns of the rows that the source does not expose: ``num_swapped``,
            or ``steps.num_cached_tokens`` where only one of the two tables lacks it.
            Their cells hold 0 or None and must not be read.
        counters: Differences of the engine's counters over the run, by the names in
            ``COUNTERS``; None for what this version does not count. ``raw`` holds them by
            vLLM's own names.
        facts: From the start of the engine: ``vllm_version``, ``num_gpu_blocks``,
            ``block_size``, ``kv_cache_tokens``, ``attention_backend``, ``device``,
            ``gpu``, ``gpu_memory_gib``, as far as it says.
        lateness_s: ``p50``, ``p99`` and ``max`` of the seconds between the moment at
            which a request was due and that at which it was sent; None where nobody
            sent any, or nobody looked.
        is_cold: Whether the cache was empty before the first request, as verified; None
            where that is not known.
        warmup_requests: Requests sent before, which are in no row and no counter.
        duration_s: Seconds of the run by the client's own clock, where it does not say
            when it sent each request: their rows all begin at 0 then. None where the
            rows tell.
        notes: What a reader must know: counter faults of a version, outputs of other
            lengths than asked for, and so on.
    """

    unmeasured: tuple[str, ...] = ()
    counters: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    lateness_s: Mapping[str, float] | None = None
    is_cold: bool | None = None
    warmup_requests: int = 0
    duration_s: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        json.dumps(self.to_dict(), allow_nan=False)

    def unmeasured_in(self, table: Table) -> frozenset[str]:
        """The columns of one table that must not be read."""
        others = "steps." if table == "requests" else "requests."
        names = (name for name in self.unmeasured if not name.startswith(others))
        return frozenset(name.removeprefix(f"{table}.") for name in names)

    def counter(self, name: str) -> float | None:
        """A counter over the whole run; None where the source has none such."""
        value = self.counters.get(name)
        return None if value is None else float(value)

    @property
    def is_late(self) -> bool:
        """Requests were sent so late that latencies are partly the client's own."""
        return self.lateness_s is not None and self.lateness_s["p50"] > LATE_S

    def to_dict(self) -> dict[str, Any]:
        """The fields as they stand in run.json."""
        lists = {"unmeasured": list(self.unmeasured), "notes": list(self.notes)}
        return asdict(self) | lists

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Measurement":
        """The fields as they stand in run.json.

        Raises:
            KeyError, TypeError, ValueError: Something is missing or of another kind.
        """
        late = known["lateness_s"]
        return cls(
            unmeasured=tuple(map(str, known["unmeasured"])),
            counters=dict(known["counters"]),
            facts=dict(known["facts"]),
            lateness_s=None if late is None else {n: float(s) for n, s in late.items()},
            is_cold=known["is_cold"],
            warmup_requests=int(known["warmup_requests"]),
            duration_s=known.get("duration_s"),
            notes=tuple(map(str, known["notes"])),
        )
