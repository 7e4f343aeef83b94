"""Tests for :mod:`results.goodput`."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.columns import Columns
from results.goodput import Condition, Slo, count_good, judge_conditions
from results.record import RequestRecord, RequestStatus, StepRecord

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

S = 1_000_000_000


def num_good(slo: Slo, *requests: RequestRecord) -> int:
    """Return how many of the requests stayed inside."""
    return count_good(Columns.of(RequestRecord, requests), slo)


def judged(
    limits: dict[str, float],
    requests: list[RequestRecord],
    steps: list[StepRecord] | None = None,
) -> list[dict[str, Any]]:
    """Return what became of the conditions that stand in a document."""
    return judge_conditions(
        Columns.of(RequestRecord, requests),
        Columns.of(StepRecord, steps or []),
        Slo.from_dict(limits),
    )


# -- single requests -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 1),
        (Slo(ttft_s=2.0, tpot_s=0.5, itl_s=0.5, e2e_s=4.0), 1),
        (Slo(ttft_s=1.9), 0),
        (Slo(tpot_s=0.4), 0),
        (Slo(itl_s=0.4), 0),
        (Slo(e2e_s=3.9), 0),
        (Slo(ttft_s=9.0, e2e_s=3.9), 0),
    ],
)
def test_a_request_is_good_within_all_limits(
    make_request: MakeRequest, slo: Slo, good: int
) -> None:
    """A limit met exactly is met; one limit missed is enough to fail."""
    assert num_good(slo, make_request()) == good


def test_one_token_meets_every_tpot_limit(make_request: MakeRequest) -> None:
    """A one-token output has a TPOT of 0 for vLLM, so no limit fails it."""
    single = make_request(num_output_tokens=1, max_sample_tokens=1)

    assert num_good(Slo(tpot_s=1e-9), single) == 1


@pytest.mark.parametrize(
    "status", [s for s in RequestStatus if s is not RequestStatus.FINISHED]
)
def test_a_request_that_did_not_finish_is_never_good(
    make_request: MakeRequest, status: RequestStatus
) -> None:
    """Being refused at once is not being served fast."""
    assert num_good(Slo(), make_request(status=status)) == 0


def test_conditions_fail_no_single_request(make_request: MakeRequest) -> None:
    """Where only the whole run is limited, every finished request counts as inside."""
    rejected = make_request(status=RequestStatus.REJECTED)

    assert num_good(Slo.from_dict({"ttft_p99_s": 1e-9}), make_request(), rejected) == 1


TIMES = st.tuples(*[st.integers(0, 4 * S)] * 4).map(sorted)
LIMIT = st.none() | st.integers(0, 4 * S).map(lambda ns: ns / S)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(
        st.tuples(TIMES, st.integers(1, 5), st.sampled_from(RequestStatus)), max_size=12
    ),
    limits=st.tuples(LIMIT, LIMIT, LIMIT, LIMIT),
)
def test_good_requests_are_those_of_a_loop(
    make_request: MakeRequest,
    drawn: list[tuple[list[int], int, RequestStatus]],
    limits: tuple[float | None, ...],
) -> None:
    """Looking at one request after another finds as many within the limits."""
    ttft_s, tpot_s, itl_s, e2e_s = limits
    requests, good = [], 0
    for (arrival, scheduled, first, finished), num_tokens, status in drawn:
        requests.append(
            make_request(
                arrival_ns=arrival,
                first_scheduled_ns=scheduled,
                first_token_ns=first,
                finished_ns=finished,
                num_output_tokens=num_tokens,
                max_sample_tokens=num_tokens,
                status=status,
            )
        )
        ttft, e2e = (first - arrival) / S, (finished - arrival) / S
        tpot = (e2e - ttft) / (num_tokens - 1) if num_tokens > 1 else 0
        pairs = zip((ttft, tpot, tpot, e2e), limits, strict=True)
        inside = all(value <= limit for value, limit in pairs if limit is not None)
        good += inside and status is RequestStatus.FINISHED

    slo = Slo(ttft_s=ttft_s, tpot_s=tpot_s, itl_s=itl_s, e2e_s=e2e_s)
    assert num_good(slo, *requests) == good


# -- in documents --------------------------------------------------------------------


NAMES = st.builds(
    lambda metric, statistic: f"{metric}_{statistic}_s",
    st.sampled_from(["ttft", "tpot", "itl", "e2e", "queue"]),
    st.sampled_from(["mean", "max", "p0", "p50", "p99", "p99.9", "p99.99", "p100"]),
) | st.sampled_from(["ttft_s", "tpot_s", "itl_s", "e2e_s"])


@given(st.dictionaries(NAMES, st.floats(1e-9, 1e9), max_size=8))
def test_limits_come_back_from_a_document(limits: dict[str, float]) -> None:
    """What run.json holds gives the SLO that was written, conditions in their order."""
    slo = Slo.from_dict(limits)

    again = Slo.from_dict(json.loads(json.dumps(slo.to_dict())))

    assert slo.to_dict() == limits
    assert again == slo
    names = [name for name in limits if name.count("_") == 2]
    assert [f"{condition.name}_s" for condition in again.conditions] == names


def test_a_fraction_of_a_percentile_keeps_its_name() -> None:
    """p99.9 is written as it was given."""
    slo = Slo(
        ttft_s=2.0,
        conditions=(Condition(metric="queue", statistic="p99.9", limit_s=5.0),),
    )

    assert slo.to_dict() == {"ttft_s": 2.0, "queue_p99.9_s": 5.0}
    assert Slo.from_dict(slo.to_dict()) == slo


def test_no_limits_are_an_empty_document() -> None:
    """An SLO without limits has nothing to write, and limits nothing when read."""
    assert Slo().to_dict() == {}
    assert Slo.from_dict({}) == Slo()
    assert list(Slo.from_dict({"ttft_p99_s": 1.0}).limits()) == []


# -- the whole run -------------------------------------------------------------------


def test_a_condition_is_met_up_to_its_limit(make_request: MakeRequest) -> None:
    """TTFTs of 1, 2 and 3 s: a mean of exactly 2 s is met, a maximum of 3 s is not."""
    requests = [make_request(first_token_ns=k * S) for k in (3, 1, 2)]
    limits = {"ttft_mean_s": 2.0, "ttft_max_s": 2.9, "ttft_p50_s": 2.5}

    assert judged(limits, requests) == [
        {"name": "ttft_mean", "limit_s": 2.0, "value_s": 2.0, "met": True},
        {"name": "ttft_max", "limit_s": 2.9, "value_s": 3.0, "met": False},
        {"name": "ttft_p50", "limit_s": 2.5, "value_s": 2.0, "met": True},
    ]


@pytest.mark.parametrize(
    ("metric", "value_s"),
    [("ttft", 2.0), ("tpot", 0.5), ("e2e", 4.0), ("queue", 1.0), ("itl", 3.0)],
)
def test_every_metric_can_be_limited(
    make_request: MakeRequest, make_step: MakeStep, metric: str, value_s: float
) -> None:
    """A condition looks at the metric that it names; ITL is that of all tokens."""
    step = make_step(gap_ns=[2 * S, 4 * S], gap_count=[1, 1])

    (condition,) = judged({f"{metric}_mean_s": 9.0}, [make_request()], [step])

    assert condition["value_s"] == value_s


def test_itl_counts_each_token(make_step: MakeStep) -> None:
    """Of 999 gaps of 1 s and one of 9 s, p99.9 lies between the two; p99 does not."""
    step = make_step(gap_ns=[1 * S, 9 * S], gap_count=[999, 1])

    p999, p99 = judged({"itl_p99.9_s": 1.5, "itl_p99_s": 1.5}, [], [step])

    theirs = np.percentile([1.0] * 999 + [9.0], 99.9)
    assert (p999["value_s"], p999["met"]) == (pytest.approx(theirs), True)
    assert 1.0 < p999["value_s"] < 1.5
    assert (p99["value_s"], p99["met"]) == (1.0, True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens_ns=st.lists(st.integers(0, 9 * S), min_size=1, max_size=20),
    percentage=st.sampled_from(["1", "50", "95", "99.9"]),
    limit_s=st.floats(1e-3, 9),
)
def test_conditions_are_judged_by_numpys_percentile(
    make_request: MakeRequest, tokens_ns: list[int], percentage: str, limit_s: float
) -> None:
    """A value is the percentile of the finished requests, and met if not above."""
    requests = [make_request(first_token_ns=ns) for ns in tokens_ns]
    refused = make_request(first_token_ns=99 * S, status=RequestStatus.ABORTED)

    (condition,) = judged({f"ttft_p{percentage}_s": limit_s}, [refused, *requests])

    value = np.percentile([ns / S for ns in tokens_ns], float(percentage))
    assert condition["value_s"] == value
    assert condition["met"] is bool(value <= limit_s)


def test_a_condition_without_samples_is_not_judged(make_request: MakeRequest) -> None:
    """Where nothing finished, no condition was met and none was missed."""
    rejected = make_request(status=RequestStatus.REJECTED)
    single = make_request(max_sample_tokens=1)
    nothing = {"limit_s": 1.0, "value_s": None, "met": None}

    limits = dict.fromkeys(("ttft_p99_s", "itl_max_s"), 1.0)
    assert judged(limits, [rejected]) == [
        {"name": "ttft_p99"} | nothing,
        {"name": "itl_max"} | nothing,
    ]
    assert judged({"tpot_mean_s": 1.0}, [single]) == [{"name": "tpot_mean"} | nothing]
    assert judged({"e2e_p50_s": 1.0}, []) == [{"name": "e2e_p50"} | nothing]


def test_limits_of_single_requests_are_no_conditions(make_request: MakeRequest) -> None:
    """Only what names a statistic is judged over the run."""
    assert judged({"ttft_s": 1.0}, [make_request()]) == []
