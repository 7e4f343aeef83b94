"""What a person sees of how a run was measured: facts, care and notes, in a few lines."""

from typing import Any

from bench_cli.console import Screen, join
from bench_cli.quantity import (
    format_duration,
    format_number_of,
    format_thousands,
)

Document = dict[str, Any]


def print_measurement(screen: Screen, measurement: Document) -> None:
    """Print what the engine said of itself, how the run was made, and its notes."""
    for line in (facts_line(measurement["facts"]), care_line(measurement)):
        if line:
            screen.aside(line)
    for note in measurement["notes"]:
        screen.aside(note)


def facts_line(facts: Document) -> str:
    """What was resolved at start, in the engine's own words."""
    version, tokens = facts.get("vllm_version"), facts.get("kv_cache_tokens")
    blocks, memory = facts.get("num_gpu_blocks"), facts.get("gpu_memory_gib")
    gpu = facts.get("gpu")
    content = join(
        f"vLLM {version}" if version else "",
        format_number_of(blocks, "block") if blocks else "",
        f"{format_thousands(tokens)} tokens" if tokens else "",
        f"attention {facts['attention_backend']}"
        if facts.get("attention_backend")
        else "",
        f"{gpu}{f', {memory:.0f} GiB' if memory else ''}"
        if gpu
        else facts.get("device", ""),
    )
    return f"measured: {content}" if content else ""


def care_line(measurement: Document) -> str:
    """How late the client was, whether the cache was cold, and what came before."""
    late, num_warmup = measurement["lateness_s"], measurement["warmup_requests"]
    cold = {
        True: "cold cache, verified",
        False: "cache NOT cold",
        None: "cache state n/a",
    }
    return join(
        cold[measurement["is_cold"]],
        f"warm-up of {format_number_of(num_warmup, 'request')}" if num_warmup else "",
        _lateness(late) if late else "client lateness n/a",
    )


def _lateness(late: Document) -> str:
    p50, p99, most = (format_duration(late[name]) for name in ("p50", "p99", "max"))
    return f"client {p50} late in the median (p99 {p99}, max {most})"
