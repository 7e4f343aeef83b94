"""What one replay and one pass over the trace rule out before a search begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.analysis.miss_ratio import HitCurve
from harness.tuning.space import Knobs, Space
from harness.tuning.trial import Trial

FEW_HITS = 0.01
"""Of prompt tokens: what is less changes no latency."""

FULL = 0.98
"""Of the pool, at its peak."""


@dataclass(slots=True)
class Screened:
    """A space without what cannot matter, and why.

    Attributes:
        space: What is left to search.
        ruled_out: Reason by knob, of those that stay as they are.
    """

    space: Space
    ruled_out: dict[str, str] = field(default_factory=dict)

    def leave(self, name: str, reason: str) -> None:
        """Leave a knob as it is at the start."""
        if name in self.space.choices:
            self.space = self.space.without(name)
            self.ruled_out[name] = reason

    def keep_below(self, name: str, most: int, start: Any) -> None:
        """Leave out values that no batch comes up to; the start's stands for them all."""
        values = self.space.choices.get(name, ())
        self._set(name, tuple(v for v in values if v < most or v == start))

    def keep_at_most(self, name: str, most: float) -> None:
        """Leave out values above this."""
        values = self.space.choices.get(name, ())
        self._set(name, tuple(value for value in values if value <= most))

    def _set(self, name: str, values: tuple[Any, ...]) -> None:
        if name not in self.space.choices:
            return
        choices: Mapping[str, tuple[Any, ...]] = {**self.space.choices, name: values}
        self.space = Space(choices)
        if len(values) < 2:
            self.leave(name, "no other value can start, or would change anything")


def screen(
    space: Space,
    start: Knobs,
    trial: Trial,
    curve: HitCurve | None,
    safest_utilization: float,
) -> Screened:
    """Rule out knobs, and values, that can change nothing here.

    Args:
        space: All that the engine accepts.
        start: What the search begins from.
        trial: The start, replayed to its end.
        curve: What caches of each size would find; None where the trace does not say.
        safest_utilization: Above it a start, or the first long prompt, may run out of
            memory.
    """
    found = Screened(space)
    if "gpu_memory_utilization" in start:
        most = max(safest_utilization, start["gpu_memory_utilization"])
        found.keep_at_most("gpu_memory_utilization", most)
    _screen_hits(found, start, trial, curve)
    _screen_memory(found, trial)
    _screen_batches(found, start, trial)
    return found


def _screen_hits(
    found: Screened, start: Knobs, trial: Trial, curve: HitCurve | None
) -> None:
    cached = ("enable_prefix_caching", "kv_offloading_size")
    if curve is None:
        for name in cached:
            found.leave(name, "the trace does not say which prompts begin alike")
        return
    share = curve.max_hit_tokens / max(1, curve.total_prompt_tokens)
    if share < FEW_HITS:
        for name in cached:
            found.leave(name, f"{share:.1%} of prompt tokens were seen before, at most")
        return
    assert trial.run is not None, "the start is replayed to its end"
    is_caching = start.get("enable_prefix_caching", True)
    if is_caching and not _figure(trial, "regretted_evictions"):
        found.leave("kv_offloading_size", "no evicted block was needed again")


def _screen_memory(found: Screened, trial: Trial) -> None:
    """Memory that is not short helps nobody when there is more of it."""
    assert trial.run is not None, "the start is replayed to its end"
    summary = trial.run.summary
    waits = _figure(trial, "head_of_line_s") or _figure(trial, "regretted_evictions")
    if summary["counts"]["preemptions"] or waits:
        return
    peak = summary["kv_cache"]["peak_usage"] or 0.0
    reason = f"memory is not short: at most {peak:.0%} of the blocks were in use"
    for name in ("gpu_memory_utilization", "swap_space"):
        found.leave(name, reason)
    found.leave("watermark", "nobody was preempted")


def _screen_batches(found: Screened, start: Knobs, trial: Trial) -> None:
    """Limits that no batch came near need no larger values."""
    assert trial.run is not None, "the start is replayed to its end"
    for name, most in (
        ("max_num_seqs", trial.most_running),
        ("max_num_batched_tokens", trial.most_tokens),
    ):
        if most < start.get(name, 0):
            found.keep_below(name, most, start[name])


def _figure(trial: Trial, name: str) -> float:
    assert trial.run is not None, "the start is replayed to its end"
    return trial.run.summary["waste"][name] or 0.0


def proposals(
    space: Space, start: Knobs, others: Sequence[Knobs]
) -> list[dict[str, Any]]:
    """What to try first: the settings that somebody has, then one step in each knob."""
    whole = [{**start, **other} for other in others]
    return [dict(start), *whole, *space.neighbours(start)]
