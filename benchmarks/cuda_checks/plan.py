"""Checks one after another, each with a time of its own, all of them within one limit.

A check that fails, hangs or has a bug ends itself and no other.
"""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Figures = dict[str, Any]

LEAST_S = 0.5
"""With less time than this a check is not begun."""


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


class CheckFailedError(Exception):
    """What was checked is not so; the message says what is."""


class CheckSkippedError(Exception):
    """It cannot be checked here; the message says why."""


class TimeIsUpError(BaseException):
    """The time of a check is over; passes through whoever handles mere errors."""


@dataclass(slots=True)
class Turn:
    """A check's go: what time it has, and what it has seen so far.

    Attributes:
        limit_s: Wall time from its beginning to its end.
        figures: What it has measured; kept however it ends.
    """

    limit_s: float
    figures: Figures = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def used_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        """Until it is ended."""
        return self.limit_s - self.used_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at.

    Attributes:
        name: A word for scripts.
        title: What is so if it passes.
        run: Looks, and raises ``CheckFailedError`` or ``CheckSkippedError``.
        limit_s: The most time that it may take.
        least_s: Kept free for it by those before it.
        why_not: Why it cannot run here; nothing where it can.
    """

    name: str
    title: str
    run: Callable[[Turn], None]
    limit_s: float
    least_s: float
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a check ended, and what it has seen until then."""

    name: str
    title: str
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    figures: Figures = field(default_factory=dict)
    traceback: str = ""

    @property
    def is_bad(self) -> bool:
        """Somebody has to look at it."""
        return self.verdict in (Verdict.FAILED, Verdict.TIMED_OUT)


def run_plan(
    checks: Sequence[Check],
    *,
    total_s: float,
    on_result: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run all checks in their order, whatever becomes of each.

    Ctrl-C ends the check that runs, and those after it are not begun.

    Args:
        checks: What to look at, the most important first.
        total_s: Wall time for all of them together.
        on_result: Called with each result as it comes.
    """
    deadline_s = time.monotonic() + total_s
    results: list[Result] = []
    is_interrupted = False
    for place, check in enumerate(checks):
        left_s = deadline_s - time.monotonic()
        limit_s = time_for(check, checks[place + 1 :], left_s)
        why_not = "interrupted" if is_interrupted else check.why_not
        try:
            result = run_check(check, limit_s, why_not)
        except KeyboardInterrupt:
            is_interrupted = True
            result = _result(check, Verdict.FAILED, "interrupted")
        results.append(result)
        on_result(result)
    return results


def time_for(check: Check, later: Sequence[Check], left_s: float) -> float:
    """Seconds that a check gets: what those after it leave, and no more than it may."""
    reserved_s = sum(other.least_s for other in later if not other.why_not)
    return min(check.limit_s, left_s, max(left_s - reserved_s, check.least_s))


def run_check(check: Check, limit_s: float, why_not: str = "") -> Result:
    """Run one check, for so long and no longer.

    Raises:
        KeyboardInterrupt: Somebody stopped it.
    """
    if not why_not and limit_s < LEAST_S:
        why_not = "no time was left for it"
    if why_not:
        return _result(check, Verdict.SKIPPED, why_not)
    turn = Turn(limit_s)
    verdict, reason, trace = Verdict.PASSED, "", ""
    try:
        with alarm(limit_s):
            check.run(turn)
    except TimeIsUpError:
        verdict, reason = Verdict.TIMED_OUT, f"not done in {limit_s:.0f} s"
    except CheckFailedError as error:
        verdict, reason = Verdict.FAILED, str(error)
    except CheckSkippedError as error:
        verdict, reason = Verdict.SKIPPED, str(error)
    except Exception as error:  # one check's bug is no other's: the file has it
        verdict, reason = Verdict.FAILED, f"{type(error).__name__}: {error}"
        trace = traceback.format_exc(limit=-6)
    return _result(check, verdict, reason, turn, trace)


def _result(
    check: Check,
    verdict: Verdict,
    reason: str,
    turn: Turn | None = None,
    trace: str = "",
) -> Result:
    return Result(
        name=check.name,
        title=check.title,
        verdict=verdict,
        reason=reason,
        seconds=turn.used_s if turn else 0.0,
        limit_s=turn.limit_s if turn else 0.0,
        figures=turn.figures if turn else {},
        traceback=trace,
    )


@contextmanager
def alarm(after_s: float) -> Iterator[None]:
    """Raise ``TimeIsUpError`` in this thread, the main one, once the time is over."""

    def ring(*_: object) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(after_s, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
