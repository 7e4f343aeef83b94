"""More load than one engine takes: at which load settings are compared instead.

Where a queue only grows, requests that come first are served, whatever the setting, and
the rest is not: how many are inside the SLO says how long the trace is, and a setting
that starves the engine looks good. What counts there is how much load a setting takes,
since that is by how many replicas the load has to be shared.
"""

from dataclasses import replace

from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.load import LoadKind, kind_of_load
from harness.tuning.question import Answer, Question


def may_be_too_much(question: Question, engine: TrialEngine) -> bool:
    """Whether it is goodput of an open loop that is wanted, of a GPU that nobody shares.

    A GPU is shared at today's load.
    """
    kind = kind_of_load(engine.workload, engine.max_concurrency)
    is_goodput = engine.objective.name is ObjectiveName.GOODPUT
    return is_goodput and kind is LoadKind.RATE and not question.is_shared


def load_at_limits(answer: Answer, engine: TrialEngine) -> float | None:
    """The lowest load, of those tried, at which what is advised misses the SLO.

    None where settings are well compared as they are: today's load is kept, or no load
    is, or something else is wanted.
    """
    found = answer.headroom
    if found is None or not may_be_too_much(answer.question, engine):
        return None
    return found.first_failing if 0 < found.load < 1 else None


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
