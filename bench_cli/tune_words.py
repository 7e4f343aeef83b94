"""Why a knob is advised, in words: figures of the advised value beside the others."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench_cli.quantity import (
    format_count,
    format_duration,
    format_share,
    format_thousands,
)

if TYPE_CHECKING:
    from harness.tuning.evidence import Row

Figures = Mapping[str, float | None]


def shown(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def why(name: str, rows: "Sequence[Row]", headroom_gib: Mapping[float, float]) -> str:
    """What another value of the knob would change: the start's, or the most telling."""
    advised = next(row for row in rows if row.is_advised)
    others = [row for row in rows if not row.is_advised]
    if not others:
        return ""
    other = next((row for row in others if row.is_start), None) or _most_telling(others)
    if other.standing in _STANDINGS:
        return f"{shown(other.value)} {_STANDINGS[other.standing]}"
    parts = _PARTS.get(name, _latencies)(advised, other, headroom_gib)
    if not parts:
        return f"{shown(other.value)} does as well"
    chance = ", which may be chance" if other.standing == "better" else ""
    return f"{shown(other.value)} would give {', '.join(parts)}{chance}"


_STANDINGS = {
    "cannot start": "cannot start with the rest as it is",
    "not replayed": "is not replayed with the rest as it is, though vLLM has it",
    "not tried": "was not tried",
    "ends": "would end vLLM's engine",
}


def _most_telling(rows: "Sequence[Row]") -> "Row":
    """The one that is better and not advised, or worse, or does as well, or the first."""
    for standing in ("better", "worse", "as good"):
        for row in rows:
            if row.standing == standing:
                return row
    return rows[0]


def _memory(
    advised: "Row", other: "Row", headroom_gib: Mapping[float, float]
) -> list[str]:
    parts = []
    if advised.num_gpu_blocks and other.num_gpu_blocks:
        more = other.num_gpu_blocks - advised.num_gpu_blocks
        parts.append(f"{more:+,} blocks")
    if other.value in headroom_gib:
        parts.append(f"{headroom_gib[other.value]:.1f} GiB left before OOM")
    return parts + _latencies(advised, other, headroom_gib)


def _hits(advised: "Row", other: "Row", _: Mapping[float, float]) -> list[str]:
    parts = []
    points = _points(advised.figures, other.figures, "hit_rate")
    if points is not None:
        parts.append(f"hits {points}")
    points = _points(advised.figures, other.figures, "fragmentation")
    if points is not None:
        parts.append(f"fragmentation {points}")
    return parts + _latencies(advised, other, _)


def _caching(advised: "Row", other: "Row", _: Mapping[float, float]) -> list[str]:
    change = _relative(advised.figures, other.figures, "prefill_tokens")
    parts = [] if change is None else [f"prefill tokens {change}"]
    return parts + _latencies(advised, other, _)


def _waiting(advised: "Row", other: "Row", _: Mapping[float, float]) -> list[str]:
    first, second = (row.figures["preemptions"] for row in (advised, other))
    parts = []
    if first is not None and second is not None and first != second:
        parts.append(f"{format_count(int(second))} preemptions for {int(first):,}")
    return parts + _latencies(advised, other, _)


def _latencies(advised: "Row", other: "Row", _: Mapping[float, float]) -> list[str]:
    parts = []
    for name, label in (
        ("ttft_mean", "TTFT"),
        ("tpot_mean", "TPOT"),
        ("output_token_per_s", "tokens/s"),
    ):
        change = _relative(advised.figures, other.figures, name)
        if change is not None:
            parts.append(f"{label} {change}")
    points = _points(advised.figures, other.figures, "goodput_fraction")
    return [*parts, f"inside the SLO {points}"] if points is not None else parts


_PARTS = {
    "gpu_memory_utilization": _memory,
    "block_size": _hits,
    "kv_offloading_size": _hits,
    "enable_prefix_caching": _caching,
    "watermark": _waiting,
    "swap_space": _waiting,
}


def known_of(name: str, advised: Any, facts: Mapping[str, Any]) -> list[str]:
    """What is known of a knob besides the replays around its value, in words."""
    make = _KNOWN.get(name)
    return [] if make is None or not facts else make(advised, facts)


def _known_utilization(advised: Any, facts: Mapping[str, Any]) -> list[str]:
    parts = [f"{facts['blocks_per_point']:,.0f} blocks a point"]
    left = {each["value"]: each["gib"] for each in facts["headroom_gib"]}
    if advised in left:
        parts.append(f"{shown(advised)} leaves {left[advised]:.1f} GiB before OOM")
    least = facts.get("least_keeping_slo")
    if least is not None:
        of_which = "" if facts["step"] else " of those given"
        parts.append(f"{shown(least)} is the least{of_which} that keeps the SLO")
    elif facts.get("keeps_slo") is False:
        parts.append(
            f"the SLO is missed with {shown(advised)}, and it is as low as puts no more"
            " requests outside"
        )
    return [", ".join(parts)]


def _known_swap(_: Any, facts: Mapping[str, Any]) -> list[str]:
    seen, worst = facts["seen_gib"], facts["worst_gib"]
    if not worst:
        return ["no request has several samples, so none is swapped out"]
    bound = f"no order of these requests needs more than {worst:.1f} GiB"
    if seen is None:
        return [bound]
    return [f"at most {seen:.1f} GiB were swapped out here, and {bound}"]


def _known_tier(advised: Any, facts: Mapping[str, Any]) -> list[str]:
    parts = [_worth(facts["stages"])] if facts["stages"] else []
    parts += _spared(advised, facts["recomputed"])
    parts.append(_crossover(facts))
    if copied := facts["traffic"]:
        parts.append(
            f"PCIe {format_duration(copied['load_s'])} of loads and"
            f" {format_duration(copied['store_s'])} of stores"
        )
    return parts


def _worth(stages: Sequence[Mapping[str, Any]]) -> str:
    """What a tier finds, part by part; those that find nothing are left out."""
    worth = [each for each in stages if each["hit_tokens"]]
    if not worth:
        most = shown(stages[-1]["size_gib"])
        return f"no tier up to {most} GiB is expected to find more than the GPU does"
    return (
        "hits of a tier: "
        + ", ".join(
            f"{shown(each['from_gib'])} to {shown(each['size_gib'])} GiB"
            f" {format_thousands(each['hit_tokens'])} tokens"
            f" ({format_duration(each['saved_s'])} of prefill)"
            for each in worth[:MOST_STAGES]
        )
        + (", …" if len(worth) > MOST_STAGES else "")
    )


def _spared(advised: Any, recomputed: Sequence[Mapping[str, Any]]) -> list[str]:
    """What preempted requests find in the tier that they would compute again."""
    tokens = {each["value"]: each["tokens"] for each in recomputed}
    without, with_tier = tokens.get(0.0), tokens.get(advised)
    if not advised or not without or with_tier is None or with_tier >= without:
        return []
    return [
        f"preempted requests compute {format_thousands(with_tier)} tokens again for"
        f" {format_thousands(without)} without it"
    ]


MOST_STAGES = 3
"""Parts of a tier that a screen shows; the document has all."""


def _crossover(facts: Mapping[str, Any]) -> str:
    tokens, of_prompt = facts["crossover_tokens"], facts["mean_prompt_tokens"]
    size = facts["block_size"]
    if of_prompt <= size:  # its last token is computed at any rate
        return f"prompts of {of_prompt:,} tokens have no whole block of {size} to load"
    if tokens is None:
        return f"prompts of {of_prompt:,} tokens are computed sooner than loaded"
    return f"loading is sooner than computing from {tokens:,} tokens on"


def _known_blocks(advised: Any, facts: Mapping[str, Any]) -> list[str]:
    costs = sorted(facts["costs"], key=lambda each: bool(each["value"] != advised))
    said = [
        (format_thousands(each["table_blocks"]), format_duration(each["copy_s"]))
        for each in costs
    ]
    if not said or costs[0]["value"] != advised:
        return []
    text = f"{said[0][0]} blocks to keep books of, {said[0][1]} of copies"
    others = [
        f"{shown(each['value'])}: {blocks}, {copy}"
        for each, (blocks, copy) in zip(costs[1:], said[1:], strict=True)
    ]
    return [f"{text} ({'; '.join(others)})" if others else text]


def _known_limit(_: Any, facts: Mapping[str, Any]) -> list[str]:
    found = []
    for each in facts["trade"]:
        pair = [(each["ttft_mean"], "TTFT"), (each["tpot_mean"], "TPOT")]
        if any(change is None for change, _ in pair):
            continue
        if any(abs(change) >= LEAST_SHOWN for change, _ in pair):
            words = ", ".join(f"{label} {100 * change:+.0f} %" for change, label in pair)
            found.append(f"{shown(each['value'])} trades {words}")
    return found


def _known_watermark(_: Any, facts: Mapping[str, Any]) -> list[str]:
    return [
        f"{shown(each['value'])}: {each['preemptions']:+,.0f} preemptions for"
        f" {_signed(each['queue_mean'])} of waiting"
        for each in facts["trade"]
        if each["preemptions"] and each["queue_mean"] is not None
    ]


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


LEAST_SHOWN = 0.005
"""Changes below are no change to a reader."""

_KNOWN = {
    "gpu_memory_utilization": _known_utilization,
    "swap_space": _known_swap,
    "kv_offloading_size": _known_tier,
    "block_size": _known_blocks,
    "max_num_seqs": _known_limit,
    "max_num_batched_tokens": _known_limit,
    "watermark": _known_watermark,
}


def _relative(base: Figures, other: Figures, name: str) -> str | None:
    first, second = base.get(name), other.get(name)
    if not first or second is None or abs(second / first - 1) < LEAST_SHOWN:
        return None
    return f"{100 * (second / first - 1):+.0f} %"


def _points(base: Figures, other: Figures, name: str) -> str | None:
    first, second = base.get(name), other.get(name)
    if first is None or second is None or abs(second - first) < 0.0005:
        return None
    return f"{100 * (second - first):+.1f} points"


def figure(name: str, value: float | None) -> str:
    """A figure of the objective as people read it."""
    if name == "goodput_fraction":
        return format_share(value)
    if name == "output_token_per_s":
        return f"{format_count(value)} tokens/s"
    return format_duration(value)


def decided(found: Mapping[str, Any]) -> str:
    """The figure that went before the objective's, of both sides."""
    name, values = found["name"], found["values"]
    if name == "finished":
        return f"{values[0]:,} -> {values[1]:,} requests finished"
    base, value = ("n/a" if v is None else f"{format_count(v)}x" for v in values)
    if name == "over_limits":
        return f"the median request at {base} -> {value} its limits"
    return f"{name} at {base} -> {value} its limit"
