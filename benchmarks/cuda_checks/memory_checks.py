"""Checks of memory: an offload tier beside the GPU, and a KV cache that fits nowhere."""

from pathlib import Path
from typing import Any

import results
from cuda_checks.flags import MODEST, SMALL, base_version, exact_trace, modest
from cuda_checks.machine import GIB, free_shm_bytes
from cuda_checks.model import DUMMY, TINY, WIDE, write_model
from cuda_checks.plan import CheckFailedError, Turn
from cuda_checks.session import CLOSING_S, Leg, Session, Words
from profiles.gpu import is_bundled
from results.errors import ResultsError

KV_TIMES_MEMORY = 8
TIER_BLOCKS = 256
TIERS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("wide", WIDE, 2.0),
    ("tiny", TINY, 0.05),
)
"""Models, and GiB of a tier that holds all of the trace; the second where /dev/shm has
the 64 MiB of a container that nobody gave more."""

LEAST_HOST_BYTES = 8 * GIB
FAILS_AS = ("vllm_out_of_memory", "vllm_did_not_start")
TOO_SLOW = "no start within"
"""An end that says nothing of memory."""


def offload_tier(session: Session, turn: Turn) -> None:
    """Blocks go to the host's memory and come back, as counted; sim's stand beside."""
    name, sizes, tier_gib = tier_for(free_shm_bytes())
    flags: Words = (
        *("--block-size", 32, "--max-model-len", 2_048, "--max-num-seqs", 16),
        *("--max-num-batched-tokens", 2_048, "--num-gpu-blocks-override", TIER_BLOCKS),
        *("--kv-offloading-size", tier_gib, "--enforce-eager", "--no-async-scheduling"),
    )
    shape = {"num_requests": 96, "turns": 2, "input_len": 400, "output_len": 32}
    trace = session.trace("offload", **shape, range_ratio=0.5)
    model = write_model(session.folder / name, sizes)
    passed = (*flags, "--warmup", 2, *MODEST)
    leg = session.measure(turn, "offload", trace, model, *passed)
    turn.figures |= {"vllm": tier_figures(leg), "facts": leg.facts, "tier_gib": tier_gib}
    turn.figures["nvidia_smi"] = leg.watched.document()
    turn.figures["notes"] = leg.measurement["notes"]
    version = base_version(leg.facts["vllm_version"])
    gpu = ("--gpu", leg.facts["gpu"]) if is_bundled(str(leg.facts["gpu"])) else ()
    ours = session.simulate(
        "offload-sim", trace, model, *flags, *gpu, "--vllm-version", version
    )
    turn.figures["sim"] = tier_figures(ours)
    seen = turn.figures["vllm"]
    if not (seen["offload_store_blocks"] and seen["offload_load_blocks"]):
        raise CheckFailedError(
            f"{seen['offload_store_blocks']} blocks were stored and"
            f" {seen['offload_load_blocks']} loaded"
        )


def tier_for(shm_bytes: int | None) -> tuple[str, dict[str, Any], float]:
    """The largest of ``TIERS`` that fits into so much of /dev/shm; else the least."""
    for tier in TIERS:
        if shm_bytes is None or tier[2] * GIB <= shm_bytes:
            return tier
    return TIERS[-1]


def tier_figures(leg: Leg) -> dict[str, Any]:
    """What went to the tier and came back."""
    counts = leg.run["summary"]["counts"]
    names = ("store_blocks", "load_blocks", "store_bytes", "load_bytes", "evictions")
    figures = {f"offload_{name}": counts.get(f"offload_{name}") for name in names}
    cached = leg.requests["num_offload_cached_tokens"].sum()
    figures["offload_cached_tokens"] = int(cached)
    measurement = leg.run.get("measurement")
    figures["counters"] = measurement["counters"] if measurement else None
    return figures | leg.totals()


def why_no_tier(session: Session) -> str:
    """The host's memory may be too small for it."""
    memory = session.machine.document()["host_memory_bytes"]
    if memory is not None and memory < LEAST_HOST_BYTES:
        return f"needs {LEAST_HOST_BYTES / GIB:g} GiB of host memory"
    return ""


def absurd_kv_cache(session: Session, turn: Turn) -> None:
    """A KV cache larger than all memory ends as a finding, with exit code 5."""
    memory = session.machine.gpu_memory_bytes
    gib = round(KV_TIMES_MEMORY * (memory or 512 * GIB) / GIB)
    trace, model = exact_trace(session), write_model(session.folder / "wide", WIDE)
    words = ("run", trace.name, "--engine", "vllm", "--model", model.name, *SMALL)
    more = ("--kv-cache-gib", gib, "--engine-args", DUMMY, *modest(session))
    waits = ("--start-timeout", f"{max(turn.left_s - CLOSING_S, 1):.0f}s")
    saved = ("-o", "absurd", "--json", "--force")
    of_cpu = {"VLLM_CPU_KVCACHE_SPACE": str(gib)}  # which does not read the flag
    done = session.blockbench(*words, *more, *waits, *saved, env=of_cpu)
    outcome = outcome_of(session.folder / "absurd")
    turn.figures |= {"kv_cache_gib": gib, "exit_code": done.code, "outcome": outcome}
    turn.figures["findings"] = [f["code"] for f in done.document().get("findings", [])]
    is_slow = TOO_SLOW in str(outcome.get("message"))
    if done.code != 5 or outcome.get("kind") not in FAILS_AS or is_slow:
        turn.figures["log"] = session.log_tail("absurd")
        raise CheckFailedError(f"not a finding: {done.complaint}")


def outcome_of(folder: Path) -> dict[str, Any]:
    """How a stored run ended; nothing where none was stored."""
    try:
        ended = results.load(folder).info.outcome
    except ResultsError:
        return {}
    return {"ending": ended.ending, "kind": ended.kind, "message": ended.message}
