"""Arms, runs and results for the tests of this folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from results.columns import Columns
from results.comparison.arm import Arm, ArmRun
from results.comparison.metric import metric_named
from results.comparison.verdict import Evidence, MetricResult, Verdict, judge
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import RunInfo

Serve = Callable[..., list[RequestRecord]]
MakeRun = Callable[..., ArmRun]
MakeArm = Callable[..., Arm]
MakeResult = Callable[..., MetricResult]

S = 1_000_000_000


@pytest.fixture
def serve(make_request: Callable[..., RequestRecord]) -> Serve:
    """Return a maker of requests, one a second, from the seconds to their first token.

    Half of these they wait in the queue. None stands for a request that never finishes;
    others decode 4 tokens after the first, in ``decode_s``.
    """

    def make(
        ttft_s: Sequence[float | None], decode_s: float = 2.0
    ) -> list[RequestRecord]:
        return [
            _served(make_request, number, seconds, decode_s)
            for number, seconds in enumerate(ttft_s)
        ]

    return make


def _served(
    make_request: Callable[..., RequestRecord],
    number: int,
    ttft_s: float | None,
    decode_s: float,
) -> RequestRecord:
    arrival = number * S
    came = {"request_id": number, "arrival_ns": arrival}
    if ttft_s is None:
        times: dict[str, Any] = dict.fromkeys(
            ("first_scheduled_ns", "first_token_ns", "finished_ns")
        )
        return make_request(**came, **times, status=RequestStatus.FAILED)
    return make_request(
        **came,
        first_scheduled_ns=arrival + round(ttft_s / 2 * S),
        first_token_ns=arrival + round(ttft_s * S),
        finished_ns=arrival + round((ttft_s + decode_s) * S),
    )


@pytest.fixture
def make_run(make_info: Callable[..., RunInfo]) -> MakeRun:
    """Return a maker of runs from their rows; what ``summary`` holds goes into theirs."""

    def make(
        requests: Sequence[RequestRecord] = (),
        *,
        summary: Mapping[str, Any] | None = None,
        trace: Mapping[str, Any] | None = None,
        created_at: str = "",
        blockbench: str = "",
        **changes: Any,
    ) -> ArmRun:
        known = {"num_requests": len(requests), **(trace or {})}
        run = ArmRun.of(
            make_info(trace=known, **changes),
            Columns.of(RequestRecord, requests),
            Columns.of(StepRecord, []),
            created_at=created_at,
            blockbench=blockbench,
        )
        return replace(run, summary=_merged(run.summary, summary or {}))

    return make


def _merged(into: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(into)
    for key, change in changes.items():
        is_part = isinstance(change, Mapping)
        merged[key] = _merged(merged.get(key) or {}, change) if is_part else change
    return merged


@pytest.fixture
def make_arm(make_run: MakeRun) -> MakeArm:
    """Return a maker of arms, of the runs given or of one with the changes."""

    def make(
        name: str = "arm", *, runs: Sequence[ArmRun] | None = None, **changes: Any
    ) -> Arm:
        runs = [make_run(**changes)] if runs is None else runs
        return Arm(name=name, config=runs[0].info.config, runs=runs)

    return make


@pytest.fixture
def make_result() -> MakeResult:
    """Return a maker of a metric's result from its two values, judged as exact."""

    def make(
        name: str,
        base: float | None,
        value: float | None,
        verdict: Verdict | None = None,
        evidence: Evidence = Evidence.EXACT,
    ) -> MetricResult:
        metric = metric_named(name)
        assert metric is not None
        difference = None if base is None or value is None else value - base
        reason = "n/a"
        found = Verdict.NOT_TESTED
        if base is not None and difference is not None:
            found, reason = judge(metric, base, difference, None)
        return MetricResult(
            metric=metric,
            values=(base, value),
            difference=difference,
            interval=None,
            evidence=None if difference is None else evidence,
            verdict=verdict or found,
            reason=reason,
        )

    return make
