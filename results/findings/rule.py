"""Rules one by one, so that one that cannot tell does not silence the others."""

from collections.abc import Callable
from functools import partial

from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.measured import if_measured

Rule = Callable[[RunView], list[Finding]]


def findings_of(run: RunView, *rules: Rule) -> list[Finding]:
    """What the rules find, in their order; nothing of those that lack a measurement."""
    found = []
    for rule in rules:
        found += if_measured(partial(rule, run)) or []
    return found
