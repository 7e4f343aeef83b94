"""What is known of a run before it begins: its name, trace, configuration and limits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.measured_flags import MeasuredFlags, given_to_vllm
from bench_cli.workload import WorkloadFlags

if TYPE_CHECKING:
    from harness.config import EngineConfig
    from harness.workload import Workload
    from results.goodput import Slo
    from results.measured import Measurement
    from results.run_info import RunInfo


def run_info(
    workload: "Workload",
    config: "EngineConfig",
    timing: WorkloadFlags,
    slo: "Slo | None",
) -> "RunInfo":
    """What is known of a simulated run before it begins."""
    from results.run_info import RunInfo

    return RunInfo(
        source="simulated",
        engine=Engine.SIM.value,
        policy=config.policy,
        config=config.to_dict() | timing.to_dict(),
        trace=describe_trace(workload),
        slo=None if slo is None else slo.to_dict(),
    )


def measured_run_info(
    workload: "Workload",
    flags: EngineFlags,
    measured: MeasuredFlags,
    timing: WorkloadFlags,
    slo: "Slo | None",
    facts: dict[str, Any],
    measurement: "Measurement",
) -> "RunInfo":
    """What is known of a run on a real engine before its first request.

    Args:
        workload: What is sent.
        flags: What was asked for.
        measured: The same, of real engines.
        timing: When it is sent.
        slo: What goodput is counted under.
        facts: What the engine says of itself; nothing where it did not start.
        measurement: What is known by then.
    """
    from harness.vllm_engine.measured_config import measured_config
    from results.run_info import RunInfo

    engine = flags.engine
    given: dict[str, Any] = {"vllm_version": flags.vllm_version}
    if engine is Engine.VLLM:
        given |= given_to_vllm(flags)
    given["policy"] = flags.knobs()["policy"]
    config = measured_config(engine.value, facts, given, measured.words())
    return RunInfo(
        source="measured",
        engine=engine.value,
        policy=config["policy"],
        config=config | timing.to_dict() | {"warmup": measured.num_warmups},
        trace=describe_trace(workload),
        slo=None if slo is None else slo.to_dict(),
        measurement=measurement,
    )


def describe_trace(workload: "Workload") -> dict[str, Any]:
    """What a summary says of the trace that was replayed."""
    return {
        "name": workload.name,
        "format": workload.format,
        "num_requests": len(workload),
        "num_skipped": workload.num_skipped,
        "duration_s": workload.duration_s,
        "has_sharing": workload.has_sharing,
        "is_generated": workload.is_generated,
        "content_hash": workload.content_hash,
        "notes": list(workload.notes),
    }


def run_name(trace_name: str) -> str:
    """The trace's name without its folder, its endings and the word trace."""
    stem = Path(trace_name).name
    for ending in (".gz", ".zst", ".jsonl", ".json", ".csv", ".parquet"):
        stem = stem.removesuffix(ending)
    return stem.removesuffix("_trace") or stem
