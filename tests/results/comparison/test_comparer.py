"""Tests for :mod:`results.comparison.compare` and the arms that it sets side by side."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from results.comparison.arm import Arm, ArmRun, differing_knobs
from results.comparison.compare import Comparer
from results.comparison.interval import CONFIDENCE
from results.comparison.metric import METRICS, metric_named
from results.comparison.verdict import Evidence, MetricResult, Verdict
from results.record import RequestRecord
from results.run_info import Ending, Outcome

BETTER, WORSE, SAME = Verdict.BETTER, Verdict.WORSE, Verdict.SAME
NOT_TESTED = Verdict.NOT_TESTED

Serve = Callable[..., list[RequestRecord]]
MakeRun = Callable[..., ArmRun]
MakeArm = Callable[..., Arm]

FAST = list(np.random.default_rng(3).uniform(0.5, 1.5, 600))
SLOW = [1.3 * seconds for seconds in FAST]
CLOSED = {"max_concurrency": 8}
DIED = Outcome(ending=Ending.DIED, kind="vllm_assertion", message="assert False")


def result(base: Arm, arm: Arm, name: str) -> MetricResult:
    """One metric of an arm beside the baseline."""
    metric = metric_named(name)
    assert metric is not None
    return Comparer(base).result(arm, metric)


def why(base: Arm, arm: Arm, name: str) -> tuple[Verdict, str]:
    """The verdict on a metric, and its reason."""
    found = result(base, arm, name)
    return found.verdict, found.reason


@pytest.fixture
def pair(serve: Serve, make_arm: MakeArm) -> Callable[..., tuple[Arm, Arm]]:
    """Return a maker of a baseline and an arm that is a third slower.

    ``base`` and ``arm`` hold what one of them has otherwise, other names both.
    """

    def make(
        base: dict[str, Any] | None = None, arm: dict[str, Any] | None = None, **both: Any
    ) -> tuple[Arm, Arm]:
        return (
            make_arm("base", **{"requests": serve(FAST), **both, **(base or {})}),
            make_arm("arm", **{"requests": serve(SLOW), **both, **(arm or {})}),
        )

    return make


Pair = Callable[..., tuple[Arm, Arm]]


# -- what differences rest on ------------------------------------------------------------


def test_latencies_of_the_same_requests_have_an_interval(pair: Pair) -> None:
    """All that is slower by 30 % is found so, between bounds that leave out 0."""
    found = result(*pair(), "ttft_p90")

    assert found.evidence is Evidence.REQUESTS
    assert found.verdict is WORSE
    assert found.reason == "+30 %"
    assert found.relative == pytest.approx(0.3)
    assert found.interval is not None
    assert found.difference is not None
    assert 0 < found.interval[0] <= found.difference <= found.interval[1]


def test_figures_of_simulated_runs_are_exact(pair: Pair) -> None:
    """What is no statistic over requests has no interval, and stands as it is."""
    base, arm = pair(
        base={"summary": {"kv_cache": {"peak_usage": 0.50}}},
        arm={"summary": {"kv_cache": {"peak_usage": 0.52}}},
    )

    found = result(base, arm, "peak_usage")

    assert (found.evidence, found.interval) == (Evidence.EXACT, None)
    assert (found.verdict, found.reason) == (WORSE, "+2.0 points")


def test_the_same_run_differs_in_nothing(pair: Pair) -> None:
    """Beside itself, no metric of a run is better or worse, and each is known exactly."""
    base, _ = pair(config=CLOSED, slo={"ttft_s": 1.0})

    results = Comparer(base).compare(base)

    assert {r.verdict for r in results} == {SAME}
    assert {r.difference for r in results} == {0.0}
    assert {r.reason for r in results} == {"the same in both"}
    assert {"goodput_fraction", "ttft_p99"} <= {r.metric.name for r in results}


def test_few_requests_have_no_interval(serve: Serve, make_arm: MakeArm) -> None:
    """Nine requests say nothing of others: their median is compared as it is."""
    base = make_arm("base", requests=serve([1.0] * 9))

    small, large = (
        result(base, make_arm(requests=serve([seconds] * 9)), "ttft_p50")
        for seconds in (1.04, 1.06)
    )

    assert (large.evidence, large.interval, large.verdict) == (
        Evidence.EXACT,
        None,
        WORSE,
    )
    assert small.verdict is SAME
    ten = make_arm("ten", requests=serve([1.0] * 10))
    assert result(ten, ten, "ttft_p50").evidence is Evidence.REQUESTS


def test_statistics_do_not_depend_on_what_was_asked_before(pair: Pair) -> None:
    """An interval is the same whether it was drawn alone or with all others."""
    base, arm = pair()
    among = {r.metric.name: r.interval for r in Comparer(base).compare(arm)}

    for name in ("ttft_mean", "ttft_p99", "e2e_p50", "preemptions"):
        assert result(base, arm, name).interval == among[name]


def runs_of(
    make_run: MakeRun, serve: Serve, ttft_s: Sequence[float], **changes: Any
) -> list[ArmRun]:
    """Measured runs, each of 20 requests with this TTFT."""
    changes = {"source": "measured", **changes}
    return [make_run(serve([seconds] * 20), **changes) for seconds in ttft_s]


def test_measured_repeats_have_the_interval_of_welch(
    make_run: MakeRun, make_arm: MakeArm, serve: Serve
) -> None:
    """Means over repeats are compared, and what they spread tells chance from it."""
    x, y = [1.0, 1.1, 1.05], [1.5, 1.4, 1.45, 1.6]
    base = make_arm("base", runs=runs_of(make_run, serve, x))
    arm = make_arm("arm", runs=runs_of(make_run, serve, y))

    found = result(base, arm, "ttft_mean")

    test = stats.ttest_ind(y, x, equal_var=False).confidence_interval(CONFIDENCE)
    assert found.evidence is Evidence.REPEATS
    assert found.values == pytest.approx((np.mean(x), np.mean(y)))
    assert found.interval == pytest.approx(tuple(test))
    assert found.verdict is WORSE


def test_what_repeats_do_not_support_is_no_difference(
    make_run: MakeRun, make_arm: MakeArm, serve: Serve
) -> None:
    """20 % between means is chance where runs of one side are as far apart."""
    base = make_arm("base", runs=runs_of(make_run, serve, [1.0, 1.3, 0.8]))
    arm = make_arm("arm", runs=runs_of(make_run, serve, [1.2, 1.5, 1.02]))

    verdict, reason = why(base, arm, "ttft_mean")

    assert verdict is SAME
    assert reason.startswith("+20 %; below ")


@pytest.mark.parametrize("source", ["simulated", "measured"])
def test_a_share_is_nowhere_below_nothing_or_above_all(
    make_run: MakeRun, make_arm: MakeArm, serve: Serve, source: str
) -> None:
    """40 % inside may rise by 60 points: of other requests, and of other repeats."""
    late = [[2.0] * most + [0.5] * (20 - most) for most in (15, 12, 9)]
    slo = {"ttft_s": 1.0}
    if source == "simulated":
        sides = [[late[1]], [[0.5] * 20]]
    else:
        sides = [late, [[0.5] * 20, [0.5] * 19 + [2.0], [0.5] * 20]]
    base, arm = (
        make_arm(
            runs=[make_run(serve(ttft_s), source=source, slo=slo) for ttft_s in side]
        )
        for side in sides
    )

    found = result(base, arm, "goodput_fraction")

    assert found.difference == pytest.approx(0.6, abs=0.02)
    assert found.interval is not None
    assert -0.4 <= found.interval[0] < 0.5
    assert found.interval[1] == pytest.approx(0.6)


def test_a_simulated_run_is_as_good_as_many(
    make_run: MakeRun, make_arm: MakeArm, serve: Serve
) -> None:
    """Beside measured repeats, it adds nothing to what the difference may be."""
    y = [1.5, 1.4, 1.45, 1.6]
    base = make_arm("base", requests=serve([1.0] * 20))
    arm = make_arm("arm", runs=runs_of(make_run, serve, y))

    found = result(base, arm, "ttft_mean")

    test = stats.ttest_1samp(y, 1.0).confidence_interval(CONFIDENCE)
    assert found.evidence is Evidence.REPEATS
    assert found.interval == pytest.approx((test.low - 1.0, test.high - 1.0))


def test_a_repeat_without_a_figure_leaves_none(
    make_run: MakeRun, make_arm: MakeArm, serve: Serve
) -> None:
    """The mean over repeats is not that of those which happen to have the metric."""
    x = [1.0, 1.1]
    base = make_arm("base", runs=runs_of(make_run, serve, x))
    runs = [*runs_of(make_run, serve, x), make_run(serve([None] * 20), source="measured")]

    found = result(base, make_arm("arm", runs=runs), "ttft_mean")

    assert found.values[0] == pytest.approx(1.05)
    assert found.values[1] is None
    assert (found.difference, found.evidence) == (None, None)
    assert (found.verdict, found.reason) == (NOT_TESTED, "n/a in arm")


# -- what is not tested ------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"trace": {"content_hash": "b"}},
        {"trace": {"content_hash": "a", "num_skipped": 1}},
        {"trace": {"content_hash": "a", "num_requests": 700}},
        {"trace": {"content_hash": "a"}, "config": {"slice": "0:600"}},
    ],
    ids=["content", "skipped", "number", "slice"],
)
def test_other_requests_say_nothing_of_an_arm(pair: Pair, other: dict[str, Any]) -> None:
    """Another file, or another part of it, is compared and not judged, for any metric."""
    base, arm = pair(base={"trace": {"content_hash": "a"}}, arm=other)

    results = Comparer(base).compare(arm)

    assert {(r.verdict, r.reason) for r in results} == {(NOT_TESTED, "other requests")}
    found = result(base, arm, "ttft_mean")
    assert found.difference == pytest.approx(0.3 * np.mean(FAST))
    assert (found.evidence, found.interval) == (Evidence.EXACT, None)


def test_the_same_file_at_another_pace_has_the_same_requests(pair: Pair) -> None:
    """When requests come is a knob: latencies are compared request by request."""
    base, arm = pair(base={"config": {"speedup": 1.0}}, arm={"config": {"speedup": 2.0}})

    assert result(base, arm, "ttft_mean").evidence is Evidence.REQUESTS


@pytest.mark.parametrize("side", ["base", "arm"])
def test_an_engine_that_ends_is_judged_by_what_it_finished(pair: Pair, side: str) -> None:
    """Its latencies are those of the requests that were lucky; lost ones count."""
    base, arm = pair(
        **{side: {"outcome": DIED, "summary": {"counts": {"finished": 500}}}}
    )

    expected = {"base": BETTER, "arm": WORSE}[side]
    assert why(base, arm, "ttft_mean") == (NOT_TESTED, f"{side} does not last")
    assert result(base, arm, "finished").verdict is expected


def test_both_engines_that_end_are_named(pair: Pair) -> None:
    """Two that do not last are said both."""
    base, arm = pair(outcome=DIED)

    assert why(base, arm, "ttft_mean") == (NOT_TESTED, "base and arm do not last")


@pytest.mark.parametrize("side", ["base", "arm"])
def test_one_measured_run_tells_nothing_of_others(pair: Pair, side: str) -> None:
    """On either side it leaves a difference without bounds, and without a verdict."""
    base, arm = pair(**{side: {"source": "measured"}})

    found = result(base, arm, "ttft_mean")

    assert (found.evidence, found.interval) == (Evidence.SINGLE, None)
    assert (found.verdict, found.reason) == (
        NOT_TESTED,
        "one measured run does not tell what others would show",
    )


@pytest.mark.parametrize("knob", ["block_size", "block_bytes"])
def test_blocks_of_another_size_are_not_counted_against_each_other(
    pair: Pair, knob: str
) -> None:
    """Twice the blocks of half the size are the same memory; shares go on."""
    summary = {"counts": {"swap_out_blocks": 10}, "kv_cache": {"peak_usage": 0.5}}
    more = {"counts": {"swap_out_blocks": 20}, "kv_cache": {"peak_usage": 0.8}}
    changed = {"summary": more, "config": {knob: 8}}
    base, arm = pair(base={"summary": summary}, arm=changed)

    assert why(base, arm, "swap_out_blocks") == (NOT_TESTED, "blocks of another size")
    assert result(base, arm, "peak_usage").verdict is WORSE
    assert result(base, pair(arm={"summary": more})[1], "swap_out_blocks").is_judged


RATES: dict[str, Any] = {"summary": {"throughput": {"request_per_s": 10.0}}}
LOWER: dict[str, Any] = {"summary": {"throughput": {"request_per_s": 8.0}}}


def test_throughput_of_another_load_is_not_the_engines(pair: Pair) -> None:
    """Who sends more gets more: rates are not judged, latencies are."""
    base, arm = pair(
        base={**RATES, "config": {"max_concurrency": 8}},
        arm={**LOWER, "config": {"max_concurrency": 4}},
    )

    assert why(base, arm, "request_per_s") == (NOT_TESTED, "another load")
    assert result(base, arm, "ttft_mean").is_judged


@pytest.mark.parametrize(
    ("steady", "is_judged"),
    [
        ((True, True), False),
        ((None, True), False),
        ((True, False), True),
        ((False, False), True),
    ],
)
def test_throughput_of_two_that_keep_up_is_the_traces(
    pair: Pair, steady: tuple[bool | None, bool], is_judged: bool
) -> None:
    """Where a queue grows in one of them, the engine decides how much is served."""
    base, arm = pair(
        base={"summary": {**RATES["summary"], "steady": steady[0]}},
        arm={"summary": {**LOWER["summary"], "steady": steady[1]}},
    )

    found = result(base, arm, "request_per_s")

    assert found.is_judged is is_judged
    assert found.reason == ("-20 %" if is_judged else "both serve what arrives")


@pytest.mark.parametrize("both", [{"config": CLOSED}, {"trace": {"duration_s": 0.0}}])
def test_throughput_is_judged_where_no_trace_sets_it(
    pair: Pair, both: dict[str, Any]
) -> None:
    """In a closed loop, and where all come at once, the engine decides."""
    base, arm = pair(base=RATES, arm=LOWER, **both)

    assert result(base, arm, "request_per_s").verdict is WORSE


def test_a_percentile_needs_requests_beyond_it(serve: Serve, make_arm: MakeArm) -> None:
    """Of 300 requests three lie beyond p99: too few. Medians and means need none."""
    base, arm = (
        make_arm(name, requests=serve(ttft_s[:300]))
        for name, ttft_s in (("base", FAST), ("arm", SLOW))
    )

    assert why(base, arm, "ttft_p99") == (NOT_TESTED, "too few requests beyond it: 3")
    assert why(base, arm, "ttft_max") == (NOT_TESTED, "too few requests beyond it: 1")
    for name in ("ttft_p90", "ttft_p50", "ttft_mean"):
        assert result(base, arm, name).verdict is WORSE


def test_latencies_of_other_finishers_are_not_tested(
    serve: Serve, make_arm: MakeArm
) -> None:
    """Of 600 requests, 6 that finished in one only are 1 %, and 7 are too many."""
    base = make_arm("base", requests=serve(FAST))
    few, many = (
        make_arm("arm", requests=serve([None] * num_lost + SLOW[num_lost:]))
        for num_lost in (6, 7)
    )

    assert result(base, few, "ttft_mean").verdict is WORSE
    assert result(base, few, "finished").verdict is WORSE
    expected = (NOT_TESTED, "1% of the requests finished in one only")
    assert why(base, many, "ttft_mean") == expected
    assert why(base, many, "queue_p50") == expected
    assert result(base, many, "prefill_tokens").verdict is not NOT_TESTED


# -- values that one has not -------------------------------------------------------------


def test_what_neither_has_is_left_out(pair: Pair) -> None:
    """Without caching on either side no hits are listed; prefill tokens are."""
    base, arm = pair()

    names = [r.metric.name for r in Comparer(base).compare(arm)]

    assert "hit_tokens" not in names
    assert "goodput_fraction" not in names
    assert "prefill_tokens" in names
    assert names == [m.name for m in METRICS if m.name in names]


def test_what_cannot_be_there_is_zero(pair: Pair) -> None:
    """No cache has no hits: those of the other side are all gained, or lost."""
    hits = {"summary": {"prefix_cache": {"hit_tokens": 640}}}
    base, arm = pair(arm=hits)

    gained, lost = result(base, arm, "hit_tokens"), result(arm, base, "hit_tokens")

    assert gained.values == (None, 640.0)
    assert (gained.difference, gained.verdict) == (640.0, BETTER)
    assert (lost.difference, lost.verdict) == (-640.0, WORSE)
    assert result(base, base, "hit_tokens").difference is None


def test_what_is_not_known_on_one_side_is_not_tested(pair: Pair) -> None:
    """Evictions without caching are none to speak of: the side without them is named."""
    base, arm = pair(arm={"summary": {"counts": {"evictions": 5}}})

    found = result(base, arm, "evictions")

    assert found.values == (None, 5.0)
    assert (found.difference, found.interval, found.evidence) == (None, None, None)
    assert (found.verdict, found.reason) == (NOT_TESTED, "n/a in base")
    assert result(arm, base, "evictions").reason == "n/a in base"
    assert result(base, base, "evictions").reason == "n/a in base and base"


# -- what is set otherwise ---------------------------------------------------------------


def test_what_follows_from_knobs_is_no_difference_of_its_own(make_arm: MakeArm) -> None:
    """More memory makes more blocks; blocks count only where nothing else was set."""
    base = make_arm("base")
    more = {"num_gpu_blocks": 20, "notes": ["more"]}

    follows = make_arm(config={"gpu_memory_utilization": 0.95, **more})
    alone = make_arm(config=more)
    unheard_of = make_arm(config={"swap_space": None, "new": 1})

    assert differing_knobs(base, follows) == ["gpu_memory_utilization"]
    assert differing_knobs(base, alone) == ["num_gpu_blocks"]
    assert differing_knobs(base, unheard_of) == ["new", "swap_space"]
    assert differing_knobs(base, base) == []
