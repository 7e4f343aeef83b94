"""What one replay and one pass over the trace rule out before a search begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.analysis.miss_ratio import HitCurve
from harness.tuning.space import Space
from harness.tuning.trial import Trial

FEW_HITS = 0.01
"""Of prompt tokens: what is less changes no latency."""

FULL = 0.9
"""Of the pool, if all that is in the engine at once held its blocks; other sizes of a
block leave more slots empty."""


SAMPLES_IN_PARTS = (
    "beside prompts in parts, a request of several samples may take more than a step has"
    " left, which ends vLLM's engine"
)
"""Why v0 is to compute no prompts in parts where requests ask for several samples: it
does not cut these, and asserts that a step keeps its limits. Source: docs/v0.md."""


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
    trial: Trial,
    curve: HitCurve | None,
    safest_utilization: float,
    *,
    is_shared: bool = False,
    has_samples: bool = False,
) -> Screened:
    """Rule out knobs, and values, that can change nothing here.

    A start that ends vLLM's engine shows nothing of what another setting would do.

    Args:
        space: All that the engine accepts.
        trial: The start, replayed to its end.
        curve: What caches of each size would find; None where the trace does not say.
        safest_utilization: Above it a start, or the first long prompt, may run out of
            memory.
        is_shared: Memory that is left over is of use to others.
        has_samples: Some requests ask for several.
    """
    assert trial.run is not None, "the start is replayed to its end"
    found = Screened(space)
    start = trial.run.info.config
    found.keep_at_most(
        "gpu_memory_utilization", max(safest_utilization, start["gpu_memory_utilization"])
    )
    _screen_hits(found, trial, curve)
    if has_samples and not start["enable_chunked_prefill"]:
        found.leave("enable_chunked_prefill", SAMPLES_IN_PARTS)
    if not trial.run.trouble:
        is_short = _is_memory_short(found, trial)
        if not is_short:
            _screen_memory(found, trial, is_shared=is_shared)
        _screen_batches(found, trial, is_short=is_short)
    return found


def _screen_hits(found: Screened, trial: Trial, curve: HitCurve | None) -> None:
    assert trial.run is not None, "the start is replayed to its end"
    if not (trial.run.info.config["enable_prefix_caching"] or _may_cache(found)):
        found.leave("kv_offloading_size", "it needs prefix caching, which stays off")
    cached = ("enable_prefix_caching", "kv_offloading_size")
    if curve is None:
        for name in cached:
            found.leave(name, "the trace does not say which prompts begin alike")
        return
    share = curve.max_hit_tokens / max(1, curve.total_prompt_tokens)
    if share >= FEW_HITS:
        return
    reason = f"{100 * share:.1f} % of prompt tokens were seen before, at most"
    found.leave("enable_prefix_caching", reason)
    if not (trial.run.trouble or trial.run.summary["counts"]["preemptions"]):
        found.leave("kv_offloading_size", reason)  # else it spares computing again


def _may_cache(found: Screened) -> bool:
    return True in found.space.choices.get("enable_prefix_caching", ())


def _is_memory_short(found: Screened, trial: Trial) -> bool:
    """Whether more memory could help, at these limits of a batch or at larger ones."""
    assert trial.run is not None, "the start is replayed to its end"
    assert trial.needs is not None, "the start is replayed to its end"
    waste, counts = trial.run.summary["waste"], trial.run.summary["counts"]
    if counts["preemptions"] or waste["head_of_line_s"] or waste["regretted_evictions"]:
        return True
    if _may_cache(found) and not trial.run.info.config["enable_prefix_caching"]:
        return True  # what a cache would hold has not been seen
    return trial.needs.share_of_blocks >= FULL


def _screen_memory(found: Screened, trial: Trial, *, is_shared: bool) -> None:
    """Memory that is not short helps nobody when there is more of it."""
    assert trial.needs is not None, "the start is replayed to its end"
    share = trial.needs.share_of_blocks
    reason = f"memory is not short: at most {100 * share:.0f} % of the blocks are needed"
    if not is_shared:
        found.leave("gpu_memory_utilization", reason)
    for name in ("swap_space", "kv_offloading_size"):
        found.leave(name, reason)
    found.leave("watermark", "nobody was preempted")


def _screen_batches(found: Screened, trial: Trial, *, is_short: bool) -> None:
    """Limits that no batch came near need no larger values.

    Where memory is short batches may grow with it: then they are to be twice as far.
    """
    assert trial.run is not None, "the start is replayed to its end"
    assert trial.needs is not None, "the start is replayed to its end"
    start = trial.run.info.config
    margin = 2 if is_short else 1
    for name, enough in (
        ("max_num_seqs", margin * trial.needs.seqs),
        ("max_num_batched_tokens", margin * trial.needs.batched_tokens),
    ):
        if enough < start[name]:
            found.keep_below(name, enough, start[name])
