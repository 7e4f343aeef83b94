"""Tests for :mod:`harness.tuning.objective`: what a loss is, and the least it can be."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay import replay
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import (
    BEYOND,
    CLOSENESS,
    ENDED,
    LOST_S,
    MISSED,
    Objective,
    RunningLoss,
)
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.comparison.metric import metric_named
from results.comparison.verdict import LEAST_SHARE, is_small
from results.goodput import Condition, Slo
from results.record import RequestRecord, RequestStatus

MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]
MakeTrial = Callable[..., Trial]

SLO = Slo(ttft_s=0.2, tpot_s=0.008)
GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=SLO)


def record(ttft_s: float, tpot_s: float = 0.0, tokens: int = 11) -> RequestRecord:
    """A request that finished with these latencies."""
    first = round(ttft_s * 1e9)
    return RequestRecord(
        request_id=0,
        arrival_ns=0,
        queued_ns=0,
        num_prompt_tokens=1,
        max_sample_tokens=tokens,
        first_token_ns=first,
        finished_ns=first + round(tpot_s * 1e9) * (tokens - 1),
        status=RequestStatus.FINISHED,
    )


@pytest.mark.parametrize("name", ObjectiveName)
@pytest.mark.parametrize(
    "load", ["easy", "crowded", "closed loop", "too long at the end"]
)
def test_a_running_loss_only_grows_and_ends_as_the_loss(
    make_workload: MakeWorkload, make_engine: MakeEngine, name: ObjectiveName, load: str
) -> None:
    """At any moment it is at most what the run comes to, which it is at the end."""
    workload = make_workload(output=1 if load == "easy" else 40, gap_s=0.01)
    if load == "too long at the end":
        late = make_workload(1, prompt=6000, prefix=4000)
        rows = [*(workload.request(i) for i in range(40)), late.request(0)]
        rows[-1] = replace(rows[-1], request_id=40, arrival_ns=90 * 10**9)
        workload = Workload.from_requests(rows)
    objective = Objective(name=name, slo=SLO)
    engine = make_engine(workload, objective, num_gpu_blocks_override=300)
    engine.max_concurrency = 3 if load == "closed loop" else None
    (trial,) = engine.evaluate([{}])
    config = engine.config({})
    assert config is not None
    running, seen = RunningLoss(objective, workload), [0.0]

    def on_left(record: RequestRecord) -> None:
        running.add(record)
        seen.append(running.least)

    replay(workload, config, on_left=on_left, max_concurrency=engine.max_concurrency)

    assert trial is not None
    assert len(seen) == 1 + len(workload)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(trial.loss, rel=1e-12)


def test_losses_are_what_the_summary_says(
    make_workload: MakeWorkload, make_engine: MakeEngine
) -> None:
    """Means of latencies, seconds a token, and one less goodput but for the closeness."""
    for name in ObjectiveName:
        engine = make_engine(make_workload(gap_s=0.01), Objective(name=name, slo=SLO))
        (trial,) = engine.evaluate([{}])
        assert trial is not None
        assert trial.run is not None
        summary = trial.run.summary
        wanted = {
            "ttft": summary["latency_s"]["ttft"]["mean"],
            "tpot": np.nansum(trial.run.samples.values["tpot"]) / 40,
            "throughput": 1 / summary["throughput"]["output_token_per_s"],
            "goodput": 1 - summary["goodput"]["fraction"],
        }
        slack = 2 * CLOSENESS if name is ObjectiveName.GOODPUT else 1e-12
        assert 0 < summary["goodput"]["fraction"] < 1
        assert wanted[name] <= trial.loss * (1 + 1e-12)
        assert trial.loss <= wanted[name] + slack


def test_a_limit_that_is_met_exactly_is_met() -> None:
    """As goodput counts it; a nanosecond more is outside."""
    objective = replace(GOODPUT, slo=Slo(ttft_s=0.25, tpot_s=0.0078125))

    inside = objective.of_request(record(0.25, 0.0078125))

    assert inside == pytest.approx(CLOSENESS)
    assert objective.of_request(record(0.25 + 1e-9)) == pytest.approx(1 + CLOSENESS)
    assert objective.of_request(record(0.1, 0.0079)) > 1 + CLOSENESS


def test_the_further_outside_its_limits_the_more_a_request_counts() -> None:
    """Twice its limit, four times, never at all: no more than that a failure does."""
    objective = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=0.25))

    losses = [objective.of_request(record(0.25 * times)) for times in (1, 2, 4, 1e6)]

    more = [(loss - 1 - CLOSENESS) / BEYOND for loss in losses[1:]]
    assert more == pytest.approx([0.5, 0.75, 1.0], abs=1e-5)
    assert losses[0] == CLOSENESS
    failed = replace(record(0.1), status=RequestStatus.FAILED)
    assert objective.of_request(failed) == 1 + CLOSENESS + BEYOND


def test_an_output_of_one_token_meets_every_tpot_limit() -> None:
    """It has no time per token after the first."""
    alone = Objective(name=ObjectiveName.GOODPUT, slo=Slo(tpot_s=1e-9))

    assert alone.of_request(record(5.0, tokens=1)) == 0


def test_a_request_that_does_not_finish_costs_more_than_any_wait() -> None:
    """So that no setting does better by turning requests away."""
    lost = replace(record(0.1), status=RequestStatus.REJECTED, first_token_ns=None)
    for name in ("ttft", "tpot", "throughput"):
        objective = Objective(name=ObjectiveName(name))
        assert objective.of_request(lost) == LOST_S
        assert objective.of_request(record(3600.0, 10.0)) < LOST_S
    assert GOODPUT.of_request(lost) >= GOODPUT.of_request(record(1e6))


def test_conditions_outweigh_requests(make_trial: MakeTrial) -> None:
    """A run that misses one is worse than any that misses none, the more the further."""
    slo = Slo(conditions=(Condition(metric="ttft", statistic="p99", limit_s=1.0),))
    objective = Objective(name=ObjectiveName.TTFT, slo=slo)
    missed = [
        objective.of_conditions(run)
        for value in (0.5, 1.0, 1.001, 2.0, 1e9)
        if (run := make_trial(missed=[(value, 1.0)]).run) is not None
    ]

    assert missed[:2] == [0, 0]
    assert MISSED <= missed[2] < missed[3] < missed[4] < 2 * MISSED
    assert LOST_S < MISSED
    assert 100 * MISSED < ENDED


@given(
    best_out=st.integers(0, 1000),
    other_out=st.integers(0, 1000),
    close=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    far=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_no_goodput_above_the_bound_is_a_tie(
    best_out: int,
    other_out: int,
    close: tuple[float, float],
    far: tuple[float, float],
) -> None:
    """However close to their limits those inside come, and however far those outside."""
    losses = [
        (out * (1 + CLOSENESS + BEYOND * beyond) + (1000 - out) * CLOSENESS * closeness)
        / 1000
        for out, closeness, beyond in zip((best_out, other_out), close, far, strict=True)
    ]
    if losses[1] > GOODPUT.no_tie_above(losses[0]):
        assert (other_out - best_out) / 1000 >= LEAST_SHARE


@given(best=st.floats(1e-3, 1e3), share=st.floats(0, 0.1))
def test_no_latency_above_the_bound_is_a_tie(best: float, share: float) -> None:
    """Seen from either of the two, the change counts; and a tie is not above it."""
    objective = Objective(name=ObjectiveName.TTFT)
    metric = metric_named("ttft_mean")
    assert metric is not None
    other = best * (1 + share)
    if other > objective.no_tie_above(best):
        assert not is_small(metric, other, best - other, is_bare=False)
        assert not is_small(metric, best, other - best, is_bare=False)
