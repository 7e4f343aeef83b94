"""Requests that no setting of ``blockbench tune`` serves, and what would take them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial

Document = dict[str, Any]

_CODES = (
    "prompt_too_long",
    "too_long_for_a_step",
    "exceeds_kv_capacity",
    "watermark_band",
    "swap_in_never",
)
"""Of the findings that say why requests were refused, or dismissed for their size."""


def refused_document(answer: "Answer") -> Document | None:
    """How many requests are refused, now and as advised, and why; None where none is."""
    sides = {"current": answer.start, "advised": answer.advice.trial}
    counts = {side: _num_refused(trial) for side, trial in sides.items()}
    if not any(counts.values()):
        return None
    told = sides["advised" if counts["advised"] else "current"]
    assert told.run is not None, "its requests were counted"
    return {
        **counts,
        "num_requests": sum(told.run.summary["counts"][n] for n in _ENDS),
        "reasons": [
            {name: finding[name] for name in ("code", "message", "advice")}
            for finding in told.run.summary["findings"]
            if finding["code"] in _CODES
        ],
    }


_ENDS = ("finished", "rejected", "aborted", "failed")


def _num_refused(trial: "Trial") -> int | None:
    """None of a trial that was given up."""
    if trial.run is None:
        return None
    counts = trial.run.summary["counts"]
    return int(counts["rejected"] + counts["aborted"])


def refused_words(refused: Document) -> str:
    """The same in words."""
    now, advised = refused["current"], refused["advised"]
    count = f"{now:,} of {refused['num_requests']:,} requests"
    if advised is not None and advised != now:
        count += f" now, {advised:,} with what is advised"
    reasons = [f"{each['message']}: {each['advice']}" for each in refused["reasons"]]
    return "\n".join([count, *reasons])
