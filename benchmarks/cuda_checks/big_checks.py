"""Checks on a model of real size: how many blocks there are, and how long steps take."""

from pathlib import Path
from statistics import median
from typing import Any

from cuda_checks.flags import KNOBS, SMALL, base_version, words_of
from cuda_checks.machine import free_share
from cuda_checks.model import BIG, TINY, big_model_for, write_model
from cuda_checks.plan import CheckFailedError, CheckSkippedError, Turn
from cuda_checks.session import Leg, Session, Words
from harness.traces import open_trace
from profiles.gpu import is_bundled
from results.measured import LATE_S

MOST_POOL_ERROR = 0.1
"""Of the number of blocks, as a share of what was measured."""

NUM_RESIDUALS = 60
TURNS: dict[str, float] = {"turns": 2, "think_time": 0.5}
LOAD: dict[str, float] = {
    "num_requests": 120,
    "input_len": 512,
    "output_len": 96,
    "range_ratio": 0.8,
    "prefix_len": 512,
    "num_prefixes": 4,
    "request_rate": 12,
    "burstiness": 0.3,
}
"""Some twelve seconds, in bursts, so that batches of many sizes are timed."""

LOAD_OF_CPU: dict[str, float] = {
    "num_requests": 40,
    "input_len": 100,
    "output_len": 48,
    "prefix_len": 200,
    "request_rate": 8,
}
SHARE_OF_VLLM = 0.92
"""What vLLM takes of a GPU by itself, in the versions that take most."""

LEAST_FOUND = 0.9
"""Of later turns; some may come when their blocks are gone."""


def timed_leg(session: Session, turn: Turn) -> Leg:
    """Requests at their times, with vLLM's own defaults wherever it has any."""
    return session.once("timed", lambda: _big_leg(session, turn))


def _big_leg(session: Session, turn: Turn) -> Leg:
    if not session.is_cuda:
        model = write_model(session.folder / "tiny", TINY)
        trace = session.trace("timed", **LOAD_OF_CPU, **TURNS)
        small: Words = (*SMALL, "--num-gpu-blocks-override", 256)
        return session.measure(turn, "timed", trace, model, *small)
    name = big_model_for(session.machine.gpu_memory_bytes)
    model = write_model(session.folder / name, BIG[name])
    trace = session.trace("timed", **LOAD, **TURNS)
    flags: Words = ("--max-model-len", 8_192, "--max-num-seqs", 64)
    share = free_share()
    if share is not None and share < SHARE_OF_VLLM + 0.01:  # somebody else is there
        flags += ("--gpu-memory-utilization", round(share - 0.02, 2))
    return session.measure(turn, "timed", trace, model, *flags)


def known_gpu(leg: Leg) -> str:
    """The GPU by the name of its profile.

    Raises:
        CheckSkippedError: There is no profile of it.
    """
    name = str(leg.facts["gpu"])
    if not is_bundled(name):
        raise CheckSkippedError(f"blockbench has no profile of {name}; send it in")
    return name


def pool_size(session: Session, turn: Turn) -> None:
    """As many KV blocks as ``blockbench capacity`` says, within ``MOST_POOL_ERROR``."""
    leg = timed_leg(session, turn)
    facts = leg.facts
    turn.figures |= {
        "model": leg.config["model"],
        "facts": facts,
        "command_s": leg.done.seconds,
        "num_gpu_blocks": facts["num_gpu_blocks"],
        "nvidia_smi": leg.watched.document(),
    }
    gpu = known_gpu(leg)
    knobs = {name: facts[name] for name in (*KNOBS, "gpu_memory_utilization")}
    words = words_of(knobs)
    version = base_version(facts["vllm_version"])
    ours = session.document(
        *("capacity", "--model", leg.config["model"], "--gpu", gpu),
        *("--vllm-version", version, *words),
    )
    error = ours["num_gpu_blocks"] / facts["num_gpu_blocks"] - 1
    turn.figures |= {"capacity": ours, "relative_error": error}
    if abs(error) > MOST_POOL_ERROR:
        raise CheckFailedError(
            f"capacity says {ours['num_gpu_blocks']:,} blocks, vLLM has"
            f" {facts['num_gpu_blocks']:,}: {error:+.1%}"
        )


def timed(session: Session, turn: Turn) -> None:
    """All is served, and requests are sent when they are due."""
    leg = timed_leg(session, turn)
    summary = leg.run["summary"]
    late = leg.measurement["lateness_s"]
    turn.figures |= {
        "lateness_s": late,
        "counts": summary["counts"],
        "latency_s": summary["latency_s"],
        "recording_s": leg.facts.get("recording_s"),
        "replay_s": leg.run["wall_s"],
        "findings": [finding["code"] for finding in summary["findings"]],
    }
    if summary["counts"]["finished"] != len(leg.requests):
        raise CheckFailedError(f"{summary['counts']['finished']} requests finished")
    if session.is_cuda and late["p50"] > LATE_S:
        raise CheckFailedError(f"requests were sent {late['p50'] * 1e3:.1f} ms late")


def replayed_tokens(session: Session, turn: Turn) -> None:
    """Later turns find the trace's own outputs in the cache: so vLLM has said them."""
    leg = timed_leg(session, turn)
    is_on = leg.facts.get("enable_trace_replay")
    num_turns, num_found = turns_that_found_outputs(leg, session.folder / "timed.jsonl")
    turn.figures |= {
        "enable_trace_replay": is_on,
        "num_later_turns": num_turns,
        "num_found_outputs": num_found,
        "notes": leg.measurement["notes"],
    }
    if num_found < LEAST_FOUND * num_turns:
        raise CheckFailedError(
            f"{num_found} of {num_turns} turns found the output before"
        )
    if is_on is None:
        raise CheckSkippedError("this version cannot be told what to generate")
    if not is_on:
        reason = "vLLM does not take enable_trace_replay here"
        raise (CheckFailedError if session.is_cuda else CheckSkippedError)(reason)


def turns_that_found_outputs(leg: Leg, trace: Path) -> tuple[int, int]:
    """Later turns whose prompt before them ends a block short of an output's end or more.

    Returns:
        How many there are, and how many of them found a block with some of that output.
    """
    workload, size = open_trace(trace), leg.facts["block_size"]
    prompts, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    cached = leg.requests["num_cached_tokens"].tolist()
    found = [
        cached[turn] > prompts[before]
        for turn, before in enumerate(workload.parent.tolist())
        if before >= 0 and outputs[before] > size
    ]
    return len(found), sum(found)


def iteration_times(session: Session, turn: Turn) -> None:
    """Times of steps beside the model of them; figures alone, nothing to pass."""
    leg = timed_leg(session, turn)
    found = session.document(
        *("calibrate", "--from", "timed", "--model", leg.config["model"]),
        *("--gpu", known_gpu(leg), "-o", "timed.toml", "--force"),
    )
    rows = found["residuals"]
    turn.figures |= {
        "num_steps": len(rows),
        "error": found["cross_validation"],
        "decode_steps": errors_of([r for r in rows if "prompt" not in r["name"]]),
        "prefill_steps": errors_of([r for r in rows if "prompt" in r["name"]]),
        "coefficients": found["coefficients"],
        "sample": rows[:: max(1, len(rows) // NUM_RESIDUALS)],
    }


def errors_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Medians of times, and of how far off ours are; None without steps."""
    if not rows:
        return None
    errors = [row["uncalibrated"] for row in rows]
    return {
        "num_steps": len(rows),
        "measured_s_median": median(row["measured_s"] for row in rows),
        "error_median": median(errors),
        "absolute_error_median": median(map(abs, errors)),
    }
