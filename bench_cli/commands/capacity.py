"""``blockbench capacity``: say how many KV blocks fit, and where the memory goes."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from bench_cli import engine_options, options
from bench_cli.capacity_screen import capacity_document, print_capacity
from bench_cli.document import deliver
from bench_cli.engine_flags import EngineFlags
from bench_cli.flags import Without, takes_flags
from bench_cli.tables import TableStyle

if TYPE_CHECKING:
    from bench_cli.variation import Variation
    from harness.config.knobs import GivenKnobs
    from harness.sizing import Sizer, Sizing
    from profiles.startup_log import StartupLog


@takes_flags
def capacity(
    *,
    flags: Annotated[
        EngineFlags,
        Without(
            "engine",
            "watermark",
            "long_prefill_token_threshold",
            "scheduler_reserve_full_isl",
            "scheduling_policy",
            "preemption_mode",
        ),
    ],
    pipeline_parallel_size: engine_options.PipelineParallelSize = 1,
    performance_mode: engine_options.PerformanceModeName = None,
    num_draft_layers: engine_options.NumDraftLayers = 0,
    host_memory_gib: options.HostMemoryGib = None,
    kv_tokens: options.KvTokens = None,
    from_log: options.FromLog = None,
    vary: options.Vary = None,
    as_json: options.AsJson = False,
    output: options.DocumentFile = None,
    table: options.Table = TableStyle.RICH,
) -> None:
    """Say how many KV blocks fit, and where the memory goes."""
    from bench_cli.variation import SIZE_KNOBS, parse_variation
    from harness.config.resolve import refuse_two_sources
    from harness.sizing import Sizer, refuse_beyond_host

    variation = None if vary is None else parse_variation(vary, SIZE_KNOBS)
    knobs = sizing_knobs(flags)
    knobs["pipeline_parallel_size"] = pipeline_parallel_size
    knobs["performance_mode"] = performance_mode.value if performance_mode else None
    knobs["num_draft_layers"] = num_draft_layers
    sizer = Sizer(
        model=flags.model,
        gpu=flags.gpu,
        policy=flags.policy.value if flags.policy else None,
        vllm_version=flags.vllm_version,
        log=None if from_log is None else read_log(from_log, knobs),
        dtype=flags.dtype,
        quantization=flags.quantization,
        kv_cache_dtype=flags.kv_cache_dtype,
    )
    refuse_two_sources(sizer.policy, knobs)
    sizing = size_first(sizer, knobs, variation)
    if host_memory_gib is not None:
        refuse_beyond_host(sizing, host_memory_gib)
    utilization = None
    if kv_tokens is not None:
        utilization = sizer.smallest_utilization(kv_tokens, **knobs)
    rows = []
    if variation is not None:
        rows = [
            size_one(sizer, {**knobs, variation.knob: value}, variation.knob, value)
            for value in variation.values
        ]
    document = capacity_document(sizing, utilization, rows)
    deliver(document, as_json=as_json, output=output)
    if not as_json:
        print_capacity(document, table)


def sizing_knobs(flags: EngineFlags) -> "GivenKnobs":
    """The knobs that do not say which model, GPU, version or policy is sized."""
    from harness.config.knobs import GivenKnobs

    knobs = flags.knobs()
    return cast(
        "GivenKnobs",
        {name: knobs[name] for name in GivenKnobs.__annotations__ if name in knobs},
    )


def read_log(path: Path, knobs: "GivenKnobs") -> "StartupLog":
    """What a server printed at its start; its utilization counts where none was given.

    Raises:
        UsageError: The number of blocks was given as well.
    """
    from harness.errors import UsageError
    from profiles.startup_log import read_startup_log

    for name in ("kv_cache_gib", "num_gpu_blocks_override"):
        if knobs.get(name) is not None:
            raise UsageError(
                f"--from-log and --{name.replace('_', '-')} both set the number of GPU"
                " blocks; give one of them"
            )
    log = read_startup_log(path)
    if knobs.get("gpu_memory_utilization") is None:
        knobs["gpu_memory_utilization"] = log.gpu_memory_utilization
    if knobs.get("block_size") is None:
        knobs["block_size"] = log.block_size
    return log


def size_first(
    sizer: "Sizer", knobs: "GivenKnobs", variation: "Variation | None"
) -> "Sizing":
    """Size with the knobs as given; where that fails, with the first value that does not.

    Raises:
        CapacityError: No block fits, with any value.
        ConfigError: vLLM would not start, with any value.
    """
    from harness.errors import ConfigError
    from profiles.errors import CapacityError

    try:
        return sizer.size(**knobs)
    except (CapacityError, ConfigError):
        if variation is None:
            raise
        for value in variation.values:
            changed: Any = {**knobs, variation.knob: value}
            with suppress(CapacityError, ConfigError):
                return sizer.size(**changed)
        raise


def size_one(
    sizer: "Sizer", knobs: dict[str, Any], knob: str, value: float
) -> dict[str, Any]:
    """One row of a variation; what does not fit says why."""
    from bench_cli.capacity_screen import sizing_figures
    from harness.errors import ConfigError
    from profiles.errors import CapacityError

    try:
        return {knob: value, **sizing_figures(sizer.size(**knobs)), "error": None}
    except (CapacityError, ConfigError) as error:
        return {knob: value, "error": str(error)}
