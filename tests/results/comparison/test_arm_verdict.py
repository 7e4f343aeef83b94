"""Tests for :mod:`results.comparison.arm_verdict`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.comparison.arm import Arm
from results.comparison.arm_verdict import HEADLINES, verdict_of_arm
from results.comparison.metric import METRICS
from results.comparison.verdict import MetricResult, Verdict
from results.run_info import Ending, Outcome

BETTER, WORSE, SAME = Verdict.BETTER, Verdict.WORSE, Verdict.SAME
MIXED, NOT_TESTED = Verdict.MIXED, Verdict.NOT_TESTED

MakeArm = Callable[..., Arm]
MakeResult = Callable[..., MetricResult]
Say = Callable[..., tuple[Verdict, str]]

CACHING = {"enable_prefix_caching": True}
STUCK = Outcome(ending=Ending.STUCK, holders="1 waiting")
DIED = Outcome(ending=Ending.DIED, message="assert False")


@pytest.fixture
def say(make_arm: MakeArm, make_result: MakeResult) -> Say:
    """Return what is said of an arm with these values, each ``(base, value[, verdict])``.

    ``base`` and ``arm`` hold what is otherwise in one of them.
    """

    def verdict(
        base: dict[str, Any] | None = None,
        arm: dict[str, Any] | None = None,
        **values: Any,
    ) -> tuple[Verdict, str]:
        results = [make_result(name, *each) for name, each in values.items()]
        sides = make_arm("base", **(base or {})), make_arm("arm", **(arm or {}))
        return verdict_of_arm(*sides, results)

    return verdict


def test_headlines_are_outcomes() -> None:
    """What is named first is a metric, and one that decides."""
    outcomes = {metric.name for metric in METRICS if metric.outcome}

    assert set(HEADLINES) <= outcomes


# -- the verdict -------------------------------------------------------------------------


def test_one_better_outcome_and_no_worse_is_better(say: Say) -> None:
    """What moved is named, and that nothing was lost for it."""
    found = say(ttft_p50=(2.0, 1.5), tpot_p50=(0.05, 0.05), finished=(9, 9))

    assert found == (BETTER, "TTFT p50 falls 25 %; nothing lost")


def test_one_worse_outcome_and_no_better_is_worse(say: Say) -> None:
    """What moved is named; there is nothing to add."""
    found = say(output_token_per_s=(100.0, 70.0), tpot_p50=(0.05, 0.05))

    assert found == (WORSE, "output tokens/s falls 30 %")


def test_outcomes_both_ways_are_mixed(say: Say) -> None:
    """What got better stands before what got worse."""
    found = say(tpot_p50=(0.05, 0.06), ttft_p50=(2.0, 1.5))

    assert found == (MIXED, "TTFT p50 falls 25 %; TPOT p50 rises 20 %")


def test_statistics_of_one_latency_can_disagree(say: Say) -> None:
    """A faster median with a slower tail is mixed."""
    found = say(ttft_p50=(2.0, 1.5), ttft_p99=(5.0, 6.0), e2e_p50=(9.0, 9.0))

    assert found == (MIXED, "TTFT p50 falls 25 %; TTFT p99 rises 20 %")


def test_no_outcome_that_moved_is_no_difference(say: Say) -> None:
    """Causes alone decide nothing, however far they moved."""
    verdict, reason = say(ttft_p50=(2.0, 2.01), peak_usage=(0.5, 0.9))

    assert (verdict, reason) == (SAME, "no outcome differs by more than chance or 1 %")


def test_outcomes_none_of_which_was_tested_say_nothing(say: Say) -> None:
    """Not tested is not the same as equal."""
    found = say(
        ttft_p50=(2.0, 1.0, NOT_TESTED),
        finished=(9, 8, NOT_TESTED),
        peak_usage=(0.5, 0.9),
    )

    assert found == (NOT_TESTED, "no outcome could be tested")


def test_what_was_not_tested_does_not_hide_what_was(say: Say) -> None:
    """One outcome that moved decides, and those not tested are named beside it.

    Throughput is not among them: it is not tested wherever both keep up.
    """
    verdict, reason = say(
        ttft_p50=(2.0, 1.5),
        ttft_p99=(9.0, 1.0, NOT_TESTED),
        tpot_p50=(0.05, 0.06, NOT_TESTED),
        e2e_p50=(5.0, 6.0, NOT_TESTED),
        request_per_s=(5.0, 6.0, NOT_TESTED),
    )

    assert verdict is BETTER
    assert reason == "TTFT p50 falls 25 %; nothing lost, TPOT, E2E not tested"


def test_a_lost_request_is_worse(say: Say) -> None:
    """One that did not finish makes an arm worse, and outweighs mixed latencies."""
    alone, reason = say(finished=(1000, 999), ttft_p50=(2.0, 2.0))
    beside_mixed, _ = say(finished=(1000, 999), ttft_p50=(2.0, 1.5), ttft_p99=(5.0, 6.0))

    assert (alone, reason) == (WORSE, "finished falls 0.1 %")
    assert beside_mixed is WORSE


def test_two_outcomes_are_named_one_of_each_kind(say: Say) -> None:
    """People ask for finished and goodput first; a latency has one line, not four."""
    values = {"tpot_p50": (2.0, 1.0), "ttft_p99": (2.0, 1.0), "ttft_mean": (4.0, 3.0)}

    _, latencies = say(**values)
    _, all_three = say(**values, goodput_fraction=(0.5, 0.6))

    assert latencies == "TTFT mean falls 25 %; TPOT p50 falls 50 %; nothing lost"
    assert all_three == (
        "inside the SLO rises 10.0 points; TTFT mean falls 25 %; nothing lost"
    )


# -- engines that end, traces that say little --------------------------------------------


def test_an_engine_that_ends_is_worse_than_one_that_lasts(say: Say) -> None:
    """However fast it was; and the other way round it is the arm that is better."""
    ended, lasted = {"outcome": DIED}, {"ttft_p50": (2.0, 1.0)}

    arm_ends, base_ends = say(arm=ended, **lasted), say(base=ended, **lasted)

    message = "does not last: vLLM's engine would end here: assert False"
    assert arm_ends == (WORSE, f"arm {message}")
    assert base_ends == (BETTER, f"base {message}")


def test_two_engines_that_end_are_not_compared(say: Say) -> None:
    """Where neither lasts, neither is better."""
    verdict, reason = say(
        base={"outcome": DIED}, arm={"outcome": STUCK}, ttft_p50=(2.0, 1.0)
    )

    assert verdict is NOT_TESTED
    assert reason.startswith("neither lasts: nothing could progress: 1 waiting")


def test_caching_is_not_judged_on_a_trace_without_sharing(say: Say) -> None:
    """It says not which prompts begin alike, so what caching is worth is not known."""
    silent = {"trace": {"has_sharing": False}}
    values = {"ttft_p50": (2.0, 1.0)}

    switched = say(base=silent, arm=silent | {"config": CACHING}, **values)
    same = say(base=silent, arm=silent, **values)

    assert switched[0] is NOT_TESTED
    assert "does not say which prompts begin alike" in switched[1]
    assert same[0] is BETTER


# -- causes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "said"),
    [
        ((None, 300), "hits save 30 % of prefill tokens"),
        ((100, 300), "more hits save 20 % of prefill tokens"),
        ((300, 215), "hits that are lost add 8.5 % to prefill tokens"),
        ((300, 305), "hits are as before"),
    ],
)
def test_hits_are_told_by_what_they_save(
    say: Say, make_result: MakeResult, hits: tuple[float | None, float], said: str
) -> None:
    """They are a share of the prompt tokens that the baseline computed."""
    known = hits[0] or 0.0, hits[1]

    _, reason = say(hit_tokens=known, prefill_tokens=(1000, 1000 + known[0] - known[1]))

    assert reason.split("; ")[0] == said


def test_fewer_tokens_after_preemptions_are_no_hits(say: Say) -> None:
    """Prefill tokens that fall because nothing is recomputed are not put down to hits."""
    _, reason = say(
        hit_tokens=(300, 300), prefill_tokens=(1000, 700), preemptions=(50, 0)
    )

    assert reason.startswith("hits are as before; preemptions fall from 50 to 0; ")


def test_caching_that_finds_nothing_is_said_so(say: Say) -> None:
    """Where it was switched on it saves nothing; where it was on, there are no hits."""
    values = {"hit_tokens": (0, 0), "prefill_tokens": (9, 9), "evictions": (0, 1234)}
    on = {"config": CACHING}

    assert say(arm=on, **values)[1].startswith(
        "prefix caching saves nothing, and evicts 1,234 blocks; "
    )
    assert say(base=on, arm=on, **values)[1].startswith(
        "no hits, and evicts 1,234 blocks; "
    )
    none_evicted = say(arm=on, **(values | {"evictions": (0, 0)}))[1]
    assert none_evicted.startswith("prefix caching saves nothing; ")
    assert "caching" not in say(**values)[1]


def test_swaps_and_preemptions_are_told_where_they_moved(say: Say) -> None:
    """From how many to how many, blocks before preemptions."""
    _, moved = say(swap_out_blocks=(0, 1500), preemptions=(200, 50))
    _, still = say(swap_out_blocks=(1500, 1500), preemptions=(200, 200))

    assert moved.startswith(
        "blocks swapped out rise from 0 to 1,500; preemptions fall from 200 to 50; "
    )
    assert still == "no outcome could be tested"
