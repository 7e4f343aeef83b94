"""More load than one engine takes: at which load settings are compared instead.

Where a queue only grows, requests that come first are served, whatever the setting, and
the rest is not: how many are inside the SLO says how long the trace is, and a setting
that starves the engine looks good. What counts there is how much load a setting takes,
since that is by how many replicas the load has to be shared.
"""

from dataclasses import replace

from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.load import LoadKind
from harness.tuning.question import Answer


def load_at_limits(answer: Answer, engine: TrialEngine) -> float | None:
    """The lowest load, of those tried, at which what is advised misses the SLO.

    None where settings are well compared as they are: today's load is kept, or no load
    is, or something else than the SLO is wanted, as of a GPU that others share.
    """
    found = answer.headroom
    if found is None or answer.question.is_shared:
        return None
    if engine.objective.name is not ObjectiveName.GOODPUT:
        return None
    is_less = found.kind is LoadKind.RATE and 0 < found.load < 1
    return found.first_failing if is_less else None


def better_of(today: Answer, less: Answer) -> Answer:
    """Of answers for today's load and for a lower one, the one that takes more.

    The headroom of the second is one of its load, and becomes one of today's.
    """
    assert today.headroom is not None, "it is why the other one was looked for"
    assert less.headroom is not None, "there is an SLO"
    found = less.headroom.times(less.load)
    if found.load < today.headroom.load:
        return today
    return replace(less, headroom=found, today=today.start)
