"""What keeps stored runs from being compared, and what should be known besides."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from results.comparison.arm import Arm, has_same_requests


class Hindrance(StrEnum):
    """Why a comparison would say something else than it seems to."""

    TRACE = "trace"
    HARDWARE = "hardware"
    MODEL = "model"
    UNFINISHED = "unfinished"


HARDWARE = ("gpu", "tensor_parallel_size", "pipeline_parallel_size")
MODEL = ("model",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A hindrance between two arms, in words."""

    hindrance: Hindrance
    message: str


def hindrances(base: Arm, arm: Arm) -> list[Refusal]:
    """What differs between two arms besides knobs."""
    found = []
    if not has_same_requests(base, arm):
        found.append(Refusal(hindrance=Hindrance.TRACE, message=_traces(base, arm)))
    for hindrance, names in (
        (Hindrance.HARDWARE, HARDWARE),
        (Hindrance.MODEL, MODEL),
    ):
        others = [n for n in names if base.config.get(n, 1) != arm.config.get(n, 1)]
        if others:
            message = "; ".join(_of_knob(base, arm, name) for name in others)
            found.append(Refusal(hindrance=hindrance, message=message))
    for each in (base, arm):
        for run in each.runs:
            if run.is_cut_short:
                message = f"{each.name} was {run.info.outcome.ending}"
                found.append(Refusal(hindrance=Hindrance.UNFINISHED, message=message))
    return found


def _traces(base: Arm, arm: Arm) -> str:
    first, second = (_trace(each) for each in (base, arm))
    if first == second:
        return f"{base.name} and {arm.name} replayed files of other content"
    return f"{base.name} replayed {first}, {arm.name} {second}"


def _trace(arm: Arm) -> str:
    trace = arm.run.info.trace
    part = arm.config.get("slice")
    shown = f" ({part})" if part else ""
    return f"{trace['num_requests']:,} requests of {trace['name']}{shown}"


def _of_knob(base: Arm, arm: Arm, name: str) -> str:
    values = [each.config.get(name, 1) for each in (base, arm)]
    return f"{name} is {values[0]} in {base.name}, {values[1]} in {arm.name}"


def drift_note(base: Arm, arm: Arm) -> str:
    """That measured repeats did not alternate, where they did not; else empty."""
    written = [[run.created_at for run in each.runs] for each in (base, arm)]
    if any(len(side) < 2 or not all(side) for side in written):
        return ""
    first, second = (
        [datetime.fromisoformat(at).astimezone() for at in side] for side in written
    )
    if max(first) < min(second) or max(second) < min(first):
        return (
            f"all runs of {base.name} and of {arm.name} were made one after the other:"
            " what drifted meanwhile counts as difference; alternate them"
        )
    return ""


def version_note(arms: Sequence[Arm]) -> str:
    """That another blockbench made some of the runs; else empty."""
    versions = {run.blockbench for arm in arms for run in arm.runs if run.blockbench}
    if len(versions) < 2:
        return ""
    named = ", ".join(sorted(versions))
    return f"the runs are of blockbench {named}: what it changed counts as difference"
