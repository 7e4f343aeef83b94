"""A scenario's decisions in the form of recorded rows."""

from collections import deque
from typing import Any

from harness.request import Request
from harness.verify.scenario import Scenario
from naive_v1.progress import Progress
from naive_v1.scheduler import NaiveScheduler, NaiveStep

Row = dict[str, Any]

STUCK_AFTER_CALLS = 8


def rows(scenario: Scenario, *, max_rows: int | None = None) -> list[Row]:
    """What each call decides, from step 0 until nothing is left to do.

    With ``max_rows`` it ends once it has that many: where requests of one priority want
    the same blocks, each may preempt the other for ever.

    Raises:
        ValueError: The scenario offloads blocks.
    """
    recording = _Recording(NaiveScheduler(**scenario.knobs), scenario.requests)
    return recording.play(max_rows)


class _Recording:
    """Plays requests through a scheduler whose steps last one tick each."""

    def __init__(self, scheduler: NaiveScheduler, requests: list[Request]) -> None:
        self._scheduler = scheduler
        self._arrivals = deque(sorted(requests, key=lambda r: r.arrival_ns))
        self._in_flight: deque[NaiveStep] = deque()
        self._has_news = False  # of a finish that no call has heard of
        self._num_idle_calls = 0
        self._now = 0
        self._rows: list[Row] = []

    def play(self, max_rows: int | None) -> list[Row]:
        """The rows, an ``error`` row last if nothing could go on."""
        while len(self._rows) != max_rows:
            self._rows.append(self._tick())
            self._scheduler.check_invariants()
            if self._is_stuck:
                return [*self._rows, {"step": self._now, "error": "stuck"}]
            if self._in_flight or self._has_news or self._scheduler.has_unfinished:
                self._now += 1
            elif self._arrivals:
                self._now = self._arrivals[0].arrival_ns
            else:
                break
        return self._rows

    @property
    def _is_stuck(self) -> bool:
        return self._num_idle_calls >= STUCK_AFTER_CALLS and not self._arrivals

    def _tick(self) -> Row:
        """One call, where there is reason for it, and the tokens of the step due."""
        while self._arrivals and self._arrivals[0].arrival_ns <= self._now:
            self._scheduler.add(self._arrivals.popleft())
        row = self._called()
        num_ahead = int(self._scheduler.async_scheduling and "blocks" in row)
        finished = []
        if len(self._in_flight) > num_ahead:
            finished = self._scheduler.commit(self._in_flight.popleft())
        self._has_news = bool(finished)
        row["finished"] = [request.request_id for request in finished]
        row["free_end"] = self._scheduler.manager.pool.num_free_blocks
        return row

    def _called(self) -> Row:
        """What the call of this tick decides, if there is one."""
        scheduler = self._scheduler
        has_call = self._has_news or scheduler.has_unfinished
        step = scheduler.schedule() if has_call else NaiveStep(0, 0)
        row: Row = {
            "step": self._now,
            "scheduled": [[_id(one), n] for one, n in step.scheduled.items()],
            "new": [[_id(one), n] for one, n in step.new.items()],
            "resumed": [[_id(one), n] for one, n in step.resumed.items()],
            "preempted": sorted(_id(one) for one in step.preempted),
        }
        if has_call:
            self._in_flight.append(step)
            self._num_idle_calls = 0 if step.scheduled else self._num_idle_calls + 1
            row |= {"blocks": _given_blocks(step), "copy_on_write": 0}
        return row | {
            "free": scheduler.manager.pool.num_free_blocks,
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
        }


def _given_blocks(step: NaiveStep) -> list[list[Any]]:
    """Whole tables of those admitted, blocks added to the others."""
    admitted = step.new.keys() | step.resumed.keys()
    grown = [one for one in step.scheduled if one not in admitted]
    return [
        [_id(one), [block.number for block in step.given_blocks[one]]]
        for one in (*step.new, *grown, *step.resumed)
        if step.given_blocks[one]
    ]


def _id(one: Progress) -> int:
    return one.request.request_id
