"""Tests for :mod:`results.comparison.gate`."""

import math
from collections.abc import Callable

import pytest

from results.comparison.gate import Condition, Judgement, Of, judge_condition
from results.comparison.metric import metric_named
from results.comparison.verdict import Evidence, MetricResult, Verdict

MakeResult = Callable[..., MetricResult]


def condition(name: str, of: Of, sign: str, limit: float) -> Condition:
    """What must not happen: more (``>``) or less (``<``) than the limit."""
    metric = metric_named(name)
    assert metric is not None
    return Condition(
        text=f"{name}{sign}{limit}",
        metric=metric,
        of=of,
        is_above=sign == ">",
        limit=limit,
    )


def judged(of: Of, sign: str, limit: float, result: MetricResult) -> Judgement:
    """What became of a condition on the result's metric."""
    return judge_condition(condition(result.metric.name, of, sign, limit), "arm", result)


@pytest.mark.parametrize(
    ("of", "sign", "limit", "failed", "looked_at"),
    [
        (Of.VALUE, ">", 11.0, True, 12.0),
        (Of.VALUE, ">", 12.0, False, 12.0),
        (Of.VALUE, "<", 12.0, False, 12.0),
        (Of.VALUE, "<", 12.5, True, 12.0),
        (Of.CHANGE, ">", 1.5, True, 2.0),
        (Of.CHANGE, ">", 2.0, False, 2.0),
        (Of.CHANGE, "<", -1.0, False, 2.0),
        (Of.RELATIVE_CHANGE, ">", 0.19, True, 0.2),
        (Of.RELATIVE_CHANGE, ">", 0.21, False, 0.2),
        (Of.RELATIVE_CHANGE, "<", -0.1, False, 0.2),
    ],
)
def test_a_condition_fails_beyond_its_limit(
    make_result: MakeResult,
    of: Of,
    sign: str,
    limit: float,
    failed: bool,
    looked_at: float,
) -> None:
    """From 10 to 12: the figure, its change or its share is on the wrong side, or not."""
    found = judged(of, sign, limit, make_result("ttft_mean", 10.0, 12.0))

    assert found.failed is failed
    assert found.value == looked_at
    assert (found.arm, found.is_chance) == ("arm", False)


@pytest.mark.parametrize(
    ("of", "limit"), [(Of.CHANGE, -1.5), (Of.RELATIVE_CHANGE, -0.15)]
)
def test_the_sign_is_that_of_the_change(
    make_result: MakeResult, of: Of, limit: float
) -> None:
    """A fall fails what forbids falls, whichever way is better for the metric."""
    for name in ("output_token_per_s", "ttft_mean"):
        fall, rise = make_result(name, 10.0, 8.0), make_result(name, 10.0, 12.0)

        assert judged(of, "<", limit, fall).failed
        assert not judged(of, "<", limit, rise).failed
        assert not judged(of, ">", -limit, fall).failed
        assert judged(of, ">", -limit, rise).failed


def test_a_share_of_nothing_is_infinite(make_result: MakeResult) -> None:
    """From 0 to anything is more than any percent; from 0 to 0 is no change."""
    rise, none = make_result("preemptions", 0, 3), make_result("preemptions", 0, 0)

    beyond = judged(Of.RELATIVE_CHANGE, ">", 10.0, rise)
    assert (beyond.failed, beyond.value) == (True, math.inf)
    within = judged(Of.RELATIVE_CHANGE, ">", 0.0, none)
    assert (within.failed, within.value) == (False, 0.0)
    assert not judged(Of.RELATIVE_CHANGE, "<", -0.1, rise).failed
    assert judged(Of.CHANGE, ">", 2, rise).failed


@pytest.mark.parametrize("of", list(Of))
@pytest.mark.parametrize("sign", ["<", ">"])
def test_what_has_no_figure_fails(make_result: MakeResult, of: Of, sign: str) -> None:
    """Of a figure that is missing, or an arm that never ran, nobody can tell."""
    missing = judged(of, sign, 0.0, make_result("ttft_p99", 1.0, None))
    never_ran = judge_condition(condition("ttft_p99", of, sign, 0.0), "arm", None)

    for found in (missing, never_ran):
        assert (found.failed, found.value, found.is_chance) == (True, None, False)


def test_a_figure_needs_no_baseline(make_result: MakeResult) -> None:
    """A limit of the arm's own figure holds where the baseline has none."""
    result = make_result("ttft_p99", None, 2.0)

    assert not judged(Of.VALUE, ">", 3.0, result).failed
    assert judged(Of.VALUE, ">", 1.0, result).failed
    assert judged(Of.CHANGE, ">", 3.0, result).value is None


def test_chance_in_repeats_does_not_fail(make_result: MakeResult) -> None:
    """A change that repeats do not support is said to be chance; a real one fails."""
    chance, real = (
        make_result("ttft_p99", 10.0, 12.0, verdict, Evidence.REPEATS)
        for verdict in (Verdict.SAME, Verdict.WORSE)
    )

    for of, limit in ((Of.CHANGE, 1.0), (Of.RELATIVE_CHANGE, 0.1)):
        spared = judged(of, ">", limit, chance)
        assert (spared.failed, spared.is_chance) == (False, True)
        failed = judged(of, ">", limit, real)
        assert (failed.failed, failed.is_chance) == (True, False)
    assert not judged(Of.CHANGE, ">", 3.0, chance).is_chance


def test_a_figure_counts_whatever_its_change_is_worth(make_result: MakeResult) -> None:
    """Chance or not, a mean above its own limit fails."""
    chance = make_result("ttft_p99", 10.0, 12.0, Verdict.SAME, Evidence.REPEATS)

    found = judged(Of.VALUE, ">", 11.0, chance)

    assert (found.failed, found.is_chance) == (True, False)


@pytest.mark.parametrize("evidence", [Evidence.EXACT, Evidence.REQUESTS, Evidence.SINGLE])
def test_other_changes_count_as_they_are(
    make_result: MakeResult, evidence: Evidence
) -> None:
    """A simulated change is exact: small ones fail too, whatever the verdict on them."""
    result = make_result("ttft_p99", 10.0, 12.0, Verdict.SAME, evidence)

    assert judged(Of.RELATIVE_CHANGE, ">", 0.1, result).failed


@pytest.mark.parametrize(
    ("name", "sign", "of", "expected"),
    [
        ("output_token_per_s", ">", Of.RELATIVE_CHANGE, True),
        ("output_token_per_s", "<", Of.RELATIVE_CHANGE, False),
        ("ttft_p99", "<", Of.CHANGE, True),
        ("ttft_p99", ">", Of.CHANGE, False),
        ("ttft_p99", "<", Of.VALUE, False),
        ("output_token_per_s", ">", Of.VALUE, False),
    ],
)
def test_forbidding_a_change_to_the_better_is_noticed(
    name: str, sign: str, of: Of, expected: bool
) -> None:
    """More throughput or less latency is hardly what must not happen."""
    assert condition(name, of, sign, 0.1).forbids_improvement is expected
