"""What the advice of ``blockbench tune`` does not know, in sentences."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench_cli.serve_limit import flags_not_checked, limits_of

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.config import EngineConfig
    from harness.tuning.question import Answer


def unknowns(asked: "Asked", answer: "Answer") -> list[str]:
    """What the advice does not know: of trace, engine, host and present command."""
    return [
        *asked.notes,
        *asked.start.notes,
        *_of_trace(asked, answer),
        *_of_engine(asked.start),
        *_of_memory(asked, answer),
        *_of_types(answer),
        *_of_host(answer),
        *_of_command(asked),
    ]


def _of_trace(asked: "Asked", answer: "Answer") -> Iterator[str]:
    from harness.tuning.load import LoadKind, kind_of_load

    if answer.question.curve is None:
        yield (
            "the trace does not say which prompts begin alike, so nothing is advised"
            " about prefix caching and what depends on hits"
        )
    engine = asked.engine
    if kind_of_load(engine.workload, engine.max_concurrency) is LoadKind.NONE:
        yield (
            "all requests come at once, which is as much load as there can be: nothing"
            " is said of higher loads; --request-rate or --max-concurrency has them"
        )
    part = answer.stretch
    if part is not None:
        yield (
            f"settings were compared on {part.stop - part.start:,} requests from number"
            f" {part.start:,} on, which are like the whole trace; the gain is of"
            + (" it all" if answer.is_whole else " these alone, as it was stopped")
        )


def _of_engine(config: "EngineConfig") -> Iterator[str]:
    error = config.step_time_error
    if error is None:
        yield (
            "step times of such a model on this GPU were never compared with a server's:"
            " blockbench calibrate with figures of yours"
        )
    else:
        yield f"step times are off by {100 * error.fraction:.0f} % of TPOT, in the median"
    if config.source_of_num_gpu_blocks == "estimated":
        yield (
            "the number of blocks is an estimate; vLLM prints its own at start"
            " (--num-gpu-blocks-override)"
        )


def _of_memory(asked: "Asked", answer: "Answer") -> Iterator[str]:
    """Whether a utilization above the version's own leaves enough to last."""
    name = "gpu_memory_utilization"
    value, left = answer.knobs.get(name), asked.headroom_gib
    safest = answer.question.safest_utilization
    if value is None or value not in left:
        return
    if value <= max(safest, answer.question.default[name]):
        return
    text = (
        f"whether utilization {value:g} lasts under load: it leaves {left[value]:.1f} GiB"
        " before OOM, and the pool's estimate may be more than that too high"
    )
    if safest:
        text += f"; {safest:g} leaves {left[safest]:.1f} GiB"
    if name in answer.screened.ruled_out:
        text += ", and memory is not short"
    yield text


def _of_types(answer: "Answer") -> Iterator[str]:
    """Whether answers stay as good; of a type that is there already nothing."""
    dtype = answer.knobs.get("kv_cache_dtype")
    if dtype in (None, "auto", answer.question.start.get("kv_cache_dtype")):
        return
    yield (
        f"what kv_cache_dtype {dtype} does to the answers: keys and values are rounded"
        " more, which no replay shows; compare them on prompts of yours before"
    )


def _of_host(answer: "Answer") -> Iterator[str]:
    for name in ("kv_offloading_size", "swap_space"):
        if answer.knobs.get(name):
            yield f"whether the host has the memory of {name} to spare"


def _of_command(asked: "Asked") -> Iterator[str]:
    """What a present command has that is not modelled."""
    if asked.current is None:
        return
    kept = asked.current.kept
    yield from limits_of(kept)
    if flags := flags_not_checked(kept):
        version = asked.start.vllm_version
        yield f"whether vLLM {version} has {', '.join(flags)}: kept in the line as given"
