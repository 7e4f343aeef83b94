"""One side of a comparison: a configuration, and its run or its measured repeats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.columns import Columns
from results.comparison.metric import Metric
from results.comparison.samples import RequestSamples
from results.findings.ending import ENDS_OF_ENGINE
from results.goodput import Slo
from results.run_info import Ending, RunInfo
from results.summary import summarize

LOAD = ("request_rate", "burstiness", "seed", "max_concurrency", "speedup")
"""Knobs of who sends, which decide how much there is to serve."""

CUT_SHORT = (Ending.INTERRUPTED, Ending.KILLED, Ending.RUNNING)
"""Endings that are nobody's verdict on an engine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmRun:
    """A run as it is compared.

    Attributes:
        info: What is known of it besides its rows.
        summary: Its summary document.
        samples: What it did to each request.
        folder: Where it was saved; empty if it was not.
        created_at: When it began, with its time zone, in ISO format; else empty.
        blockbench: The version that made it; else empty.
    """

    info: RunInfo
    summary: Mapping[str, Any]
    samples: RequestSamples
    folder: str = ""
    created_at: str = ""
    blockbench: str = ""

    @classmethod
    def of(
        cls,
        info: RunInfo,
        requests: Columns,
        steps: Columns,
        **origin: str,
    ) -> "ArmRun":
        """A run from its rows; ``origin`` holds the last of the attributes."""
        slo = None if info.slo is None else Slo.from_dict(info.slo)
        return cls(
            info=info,
            summary=summarize(info, requests, steps),
            samples=RequestSamples.of(requests, info.trace["num_requests"], slo),
            **origin,
        )

    @property
    def trouble(self) -> str:
        """Why it is no run of an engine that lasted; empty where it is one."""
        for finding in self.summary["findings"]:
            if finding["code"] in ENDS_OF_ENGINE:
                return str(finding["message"])
        return ""

    @property
    def is_cut_short(self) -> bool:
        """Whether it has requests to come to yet, or never came to them."""
        return self.info.outcome.ending in CUT_SHORT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """A configuration and what it came to.

    Attributes:
        name: As tables head it.
        config: Every knob, how requests were chosen and timed included; empty where it
            could not be settled.
        runs: One simulated run, or measured repeats; none where it could not start.
        error: Why it could not start; else empty.
    """

    name: str
    config: Mapping[str, Any]
    runs: Sequence[ArmRun] = ()
    error: str = ""

    @property
    def run(self) -> ArmRun:
        """The run, or the first of the repeats."""
        return self.runs[0]

    @property
    def is_simulated(self) -> bool:
        """Whether a repeat would show the same."""
        return self.run.info.source == "simulated"

    @property
    def trouble(self) -> str:
        """Why an engine would not have lasted; empty where it would."""
        return next((run.trouble for run in self.runs if run.trouble), "")

    @property
    def is_cut_short(self) -> bool:
        """Whether one of the runs is."""
        return any(run.is_cut_short for run in self.runs)

    @property
    def keeps_up(self) -> bool:
        """Whether as much is served as arrives, so that throughput is the trace's."""
        info = self.run.info
        is_open = not info.is_closed_loop and info.trace["duration_s"] > 0
        return is_open and self.run.summary["steady"] is not False

    def values(self, metric: Metric) -> list[float | None]:
        """The metric in each run."""
        return [metric.value(run.summary, run.samples) for run in self.runs]

    def value(self, metric: Metric) -> float | None:
        """The metric, its mean over repeats; None where a run has none."""
        values = self.values(metric)
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None


DERIVED = (
    "block_bytes",
    "gpu_memory_gib",
    "kv_cache_gib",
    "longest_model_len",
    "notes",
    "num_cpu_blocks",
    "num_fitting_gpu_blocks",
    "num_gpu_blocks",
    "source_of_num_gpu_blocks",
    "step_time_error",
)
"""What follows from knobs; a difference of its own only where no knob differs."""


def differing_knobs(first: Arm, second: Arm) -> list[str]:
    """Names of what is set otherwise, sorted."""
    configs = first.config, second.config
    names = sorted({*configs[0], *configs[1]} - {"notes"})
    found = [name for name in names if configs[0].get(name) != configs[1].get(name)]
    return [name for name in found if name not in DERIVED] or found


def has_other_load(first: Arm, second: Arm) -> bool:
    """Whether requests come at other times."""
    return _differ(first, second, LOAD)


def has_other_blocks(first: Arm, second: Arm) -> bool:
    """Whether a block is not the same amount of memory, or of tokens."""
    return _differ(first, second, ("block_size", "block_bytes"))


def has_same_requests(first: Arm, second: Arm) -> bool:
    """Whether both were sent the very same requests, whenever that was."""
    traces = [arm.run.info.trace for arm in (first, second)]
    known = {
        (trace.get("content_hash"), trace["num_requests"], trace["num_skipped"])
        for trace in traces
    }
    return len(known) == 1 and not _differ(first, second, ("slice",))


def _differ(first: Arm, second: Arm, names: Sequence[str]) -> bool:
    return any(first.config.get(name) != second.config.get(name) for name in names)
