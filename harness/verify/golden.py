"""Replay a recorded scenario and compare every row."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine import Engine
from harness.errors import TraceError
from harness.executors.scripted import ScriptedExecutor
from harness.schedulers.batch import Batch, Scheduler
from harness.schedulers.build import build_scheduler_v0, build_scheduler_v1
from harness.verify.rows_v0 import Row, RowRecorderV0
from harness.verify.rows_v1 import RowRecorderV1
from harness.verify.scenario import Scenario, StepArrivals, read_rows, read_scenario
from results.run_info import Ending, Outcome

STUCK_AFTER_CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """Whether our rows are the recorded ones.

    Attributes:
        identical: Every key of every recorded row agrees.
        steps: Rows compared, up to the first that differs.
        first_divergence: ``None``, or for a recording ``{"step", "stepping",
            "differences"}`` where ``differences`` lists ``{"key", "ours", "recorded"}``.
            For a trace ``step`` counts calls, ``theirs`` stands for ``recorded``, and
            besides there are ``time_s``, ``rows_before``, and under ``ours`` and
            ``theirs`` the queues, and the blocks of the requests concerned.
        against: What ours were compared with.
        preemptions: Preemptions in the rows that agree, to show what was put to the test.
    """

    identical: bool
    steps: int
    first_divergence: dict[str, Any] | None
    against: str
    preemptions: int = 0


def verify_scenario(scenario: Path, rows: Path) -> VerifyResult:
    """Replay a scenario one step at a time and with repeated steps; compare all rows.

    Raises:
        TraceError: A file is not what it should be.
        UsageError: The scenario's policy is neither v0 nor v1.
    """
    parsed = read_scenario(scenario)
    recorded = list(read_rows(rows, parsed.policy))
    if not recorded:
        raise TraceError(rows, "holds no rows", "give the recording of that scenario")
    for stepping in ("one step at a time", "repeated steps"):
        ours = replay_rows(
            parsed, can_repeat=stepping == "repeated steps", max_rows=len(recorded) + 1
        )
        divergence = _first_divergence(ours, recorded)
        if divergence is not None:
            position, found = divergence
            return VerifyResult(
                identical=False,
                steps=position,
                first_divergence=found | {"stepping": stepping},
                against=rows.name,
                preemptions=sum(map(num_preempted, recorded[:position])),
            )
    return VerifyResult(
        identical=True,
        steps=len(recorded),
        first_divergence=None,
        against=rows.name,
        preemptions=sum(map(num_preempted, recorded)),
    )


def num_preempted(row: Row) -> int:
    """Requests preempted in a row's call: v0 counts them, v1 names them."""
    preempted = row.get("preempted", 0)
    return len(preempted) if isinstance(preempted, list) else int(preempted)


def replay_rows(
    scenario: Scenario, *, can_repeat: bool, max_rows: int | None = None
) -> list[Row]:
    """The rows our scheduler makes of a scenario, an ``error`` row last if it ends so.

    With ``max_rows`` the replay stops once it has that many: a policy that went astray
    may never end.
    """
    is_ahead = bool(scenario.knobs.get("async_scheduling"))
    scheduler, recorder = _observed_scheduler(scenario)
    executor = ScriptedExecutor(scenario.transfer_steps, is_ahead=is_ahead)
    if all(request.arrival_ns > 0 for request in scenario.requests):
        recorder.scheduled(Batch(), 0)  # recordings begin with a call at step 0
    engine = Engine(
        StepArrivals(scenario.requests),
        scheduler,
        executor,
        recorder,
        num_in_flight=1 + is_ahead,
        can_repeat=can_repeat,
        stuck_after=STUCK_AFTER_CALLS,
        after_turn=lambda: max_rows is None or len(recorder.rows) < max_rows,
    )
    outcome = engine.run()
    rows = recorder.rows + _error_rows(outcome, recorder.rows, executor.now_ns)
    return _with_last_calls(rows) if is_ahead else rows


def _observed_scheduler(
    scenario: Scenario,
) -> tuple[Scheduler, RowRecorderV0 | RowRecorderV1]:
    """A scheduler that gives up where vLLM's does, and who writes down its rows."""
    if scenario.policy == "v0":
        old = build_scheduler_v0(**scenario.knobs, dies_like_vllm=True)
        return old, RowRecorderV0(old)
    scheduler = build_scheduler_v1(**scenario.knobs, waits_like_vllm=True)
    return scheduler, RowRecorderV1(scheduler)


def _with_last_calls(rows: list[Row]) -> list[Row]:
    """Add the call that recordings make, with calls ahead, before time jumps or ends.

    It finds nothing to do, as the one before it did.
    """
    complete = rows[:1]  # nothing has run before the first call
    for row, after in zip(rows[1:], [*rows[2:], None], strict=True):
        complete.append(row)
        is_idle = not (row.get("scheduled", True) or row["running"] or row["waiting"])
        if is_idle and (after is None or after["step"] > row["step"] + 1):
            complete.append(row | {"step": row["step"] + 1})
    return complete


def _error_rows(outcome: Outcome, rows: list[Row], now: int) -> list[Row]:
    if outcome.ending is Ending.DIED:
        return [{"step": now, "error": outcome.kind}]
    if outcome.ending is Ending.STUCK:
        return [{"step": rows[-1]["step"], "error": "stuck"}]
    return []


def _first_divergence(
    ours: list[Row], recorded: list[Row]
) -> tuple[int, dict[str, Any]] | None:
    for position, theirs in enumerate(recorded):
        mine = ours[position] if position < len(ours) else {}
        different = [key for key in theirs if mine.get(key) != theirs[key]]
        if different:
            return position, {
                "step": theirs["step"],
                "differences": [
                    {"key": key, "ours": mine.get(key), "recorded": theirs[key]}
                    for key in different
                ],
            }
    if len(ours) > len(recorded):
        extra = ours[len(recorded)]
        found = [{"key": "step", "ours": extra["step"], "recorded": None}]
        return len(recorded), {"step": extra["step"], "differences": found}
    return None
