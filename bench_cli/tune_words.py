"""Why a knob is advised, in words: figures of the advised value beside the others."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_count, format_duration, format_share

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
    if other.standing in ("cannot start", "not tried", "ends"):
        return f"{shown(other.value)} {_STANDINGS[other.standing]}"
    parts = _PARTS.get(name, _latencies)(advised, other, headroom_gib)
    return (
        f"{shown(other.value)} would give {', '.join(parts)}"
        if parts
        else (f"{shown(other.value)} does as well")
    )


_STANDINGS = {
    "cannot start": "cannot start with the rest as it is",
    "not tried": "was not tried",
    "ends": "would end vLLM's engine",
}


def _most_telling(rows: "Sequence[Row]") -> "Row":
    """The one that differs for the worse, or does as well, or the first."""
    for standing in ("worse", "as good"):
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
        points = 100 * (other.value - advised.value)
        per_point = f" ({more / points:,.0f} a point)" if points else ""
        parts.append(f"{more:+,} blocks{per_point}")
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


def _relative(base: Figures, other: Figures, name: str) -> str | None:
    first, second = base.get(name), other.get(name)
    if not first or second is None or abs(second / first - 1) < 0.005:
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
