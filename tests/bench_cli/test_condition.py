"""Tests for :mod:`bench_cli.condition`: what ``--fail-if`` takes, and what it says."""

from typing import Any

import pytest

from bench_cli.condition import describe_judgement, parse_condition, parse_conditions
from harness.errors import UsageError
from results.comparison.gate import Judgement, Of, judge_condition
from results.comparison.metric import metric_named
from results.comparison.verdict import Evidence, MetricResult, Verdict


@pytest.mark.parametrize(
    ("text", "of", "is_above", "limit"),
    [
        ("ttft_p99>+10%", Of.RELATIVE_CHANGE, True, 0.1),
        ("ttft_p99>+50ms", Of.CHANGE, True, 0.05),
        ("ttft_p99>2s", Of.VALUE, True, 2.0),
        ("e2e_p99.9<-1.5min", Of.CHANGE, False, -90.0),
        ("queue_max>3us", Of.VALUE, True, 3e-6),
        ("hit_rate<-2pp", Of.CHANGE, False, -0.02),
        ("hit_rate<-5%", Of.RELATIVE_CHANGE, False, -0.05),
        ("hit_rate<30%", Of.VALUE, False, 0.3),
        ("hit_rate<0.3", Of.VALUE, False, 0.3),
        ("hit_rate<-0.02", Of.CHANGE, False, -0.02),
        ("preemptions>+3", Of.CHANGE, True, 3.0),
        ("preemptions>100", Of.VALUE, True, 100.0),
        ("output_token_per_s<-5%", Of.RELATIVE_CHANGE, False, -0.05),
        (" ttft_p99 > + 10 % ", Of.RELATIVE_CHANGE, True, 0.1),
    ],
)
def test_sign_and_unit_say_what_is_limited(
    text: str, of: Of, is_above: bool, limit: float
) -> None:
    """With a sign it is a change, in percent one of the figure; without, the figure."""
    condition = parse_condition(text)

    assert (condition.of, condition.is_above) == (of, is_above)
    assert condition.limit == pytest.approx(limit, abs=0)
    assert condition.text == text.replace(" ", "")
    assert condition.metric == metric_named(condition.text.split(">")[0].split("<")[0])


def test_several_conditions_stand_between_commas() -> None:
    """Commas and repeated options come to the same list, in order."""
    texts = [c.text for c in parse_conditions(["ttft_p99>2s, e2e_p50>+1%", "finished<9"])]

    assert texts == ["ttft_p99>2s", "e2e_p50>+1%", "finished<9"]
    assert parse_conditions([]) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p99", "--fail-if cannot read 'ttft_p99'"),
        ("", "--fail-if cannot read ''"),
        ("ttft_p99>", "cannot read"),
        ("ttft_p99=2s", "cannot read"),
        ("ttft_p99>=2s", "cannot read"),
        ("TTFT_p99>2s", "cannot read"),
        ("ttft_p99>nan", "cannot read"),
        ("nothing>1", "there is no metric 'nothing'; there are finished, "),
        ("ttft_p101>1s", "there is no metric 'ttft_p101'"),
        ("itl_p33>1s", "any percentile of ttft, tpot, e2e and queue"),
        ("ttft_p99>10", "ttft_p99 is a time; write ttft_p99>+10%, ttft_p99>+50ms"),
        ("ttft_p99>10%", "ttft_p99 is a time"),
        ("ttft_p99>+10pp", "ttft_p99 is a time"),
        ("finished>10%", "finished is a number; write finished>+10%, finished>+3"),
        ("finished<-2pp", "finished is a number"),
        ("finished<2s", "finished is a number"),
        ("hit_rate<2s", "hit_rate is a share; write hit_rate<-5%, hit_rate<-2pp"),
        ("ttft_p99>+9parsec", "--fail-if ttft_p99>+9parsec: '9parsec' has unknown unit"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(text: str, words: str) -> None:
    """The error has what was written, or what could be."""
    with pytest.raises(UsageError) as caught:
        parse_conditions([f"finished<9,{text}"])

    assert words in str(caught.value)


def test_comma_at_the_end_is_refused() -> None:
    """Half a condition may have been lost behind it."""
    with pytest.raises(UsageError, match="cannot read ''"):
        parse_conditions(["ttft_p99>2s,"])


@pytest.mark.parametrize(
    ("text", "is_slip"),
    [
        ("ttft_p99<-10%", True),
        ("ttft_p99>+10%", False),
        ("ttft_p99<1s", False),
        ("hit_rate>+2pp", True),
        ("hit_rate<-2pp", False),
    ],
)
def test_conditions_against_improvement_are_known(text: str, is_slip: bool) -> None:
    """A change to the better is seldom what must not be; a figure may be anything."""
    assert parse_condition(text).forbids_improvement is is_slip


def judged(text: str, base: float | None, value: float | None, **more: Any) -> Judgement:
    """What becomes of a condition where the figures are these."""
    condition = parse_condition(text)
    known = None if base is None or value is None else value - base
    fields = {"evidence": Evidence.EXACT, "verdict": Verdict.SAME, "reason": "no reason"}
    result = MetricResult(
        metric=condition.metric,
        values=(base, value),
        difference=known,
        interval=None,
        **{**fields, **more},
    )
    return judge_condition(condition, "on", result)


@pytest.mark.parametrize(
    ("text", "base", "value", "failed", "words"),
    [
        ("ttft_p99>+10%", 1.0, 1.2, True, "1.0 s -> 1.2 s, +20.0 %"),
        ("ttft_p99>+10%", 1.0, 1.05, False, "1.0 s -> 1.1 s, +5.0 %"),
        ("ttft_p99>+10%", 1.0, 0.5, False, "1.0 s -> 500 ms, -50.0 %"),
        ("ttft_p99>+50ms", 0.2, 0.3, True, "200 ms -> 300 ms, +100 ms"),
        ("ttft_p99>+50ms", 0.3, 0.2, False, "300 ms -> 200 ms, -100 ms"),
        ("ttft_p99>2s", 1.0, 2.5, True, "1.0 s -> 2.5 s"),
        ("hit_rate<-2pp", 0.5, 0.45, True, "50 % -> 45 %, -5.0 points"),
        ("hit_rate<-2pp", 0.5, 0.49, False, "50 % -> 49 %, -1.0 points"),
        ("hit_rate<30%", 0.5, 0.25, True, "50 % -> 25 %"),
        ("preemptions>+10%", 0.0, 4.0, True, "0 -> 4, from 0"),
        ("preemptions>+10%", 0.0, 0.0, False, "0 -> 0, +0.0 %"),
        ("preemptions>+3", 1.0, 9.0, True, "1 -> 9, +8"),
        ("output_token_per_s<-5%", 100.0, 90.0, True, "100 -> 90.0, -10.0 %"),
    ],
)
def test_judgement_says_by_how_much(
    text: str, base: float, value: float, failed: bool, words: str
) -> None:
    """The message has condition, arm, both figures and the change that was looked at."""
    judgement = judged(text, base, value)

    assert judgement.failed is failed
    assert describe_judgement(judgement) == f"{text} (on): {words}"


def test_change_that_is_chance_is_called_so() -> None:
    """Measured repeats that do not support a change do not fail it."""
    of_repeats = {"evidence": Evidence.REPEATS, "reason": "+20 %; below 30 % is chance"}

    chance = judged("ttft_p99>+10%", 1.0, 1.2, **of_repeats)
    real = judged("ttft_p99>+10%", 1.0, 1.2, **of_repeats, verdict=Verdict.WORSE)

    assert not chance.failed
    assert describe_judgement(chance).endswith(
        "+20.0 %; that is chance: +20 %; below 30 % is chance"
    )
    assert real.failed


def test_figure_that_is_missing_fails() -> None:
    """Nobody can tell that a condition holds where there is nothing to look at."""
    lacking = judged("hit_rate<-2pp", None, 0.5, reason="n/a in off")
    absent = judge_condition(parse_condition("ttft_p99>2s"), "on", None)

    assert lacking.failed
    assert absent.failed
    assert describe_judgement(lacking) == (
        "hit_rate<-2pp (on): cannot be judged: n/a in off"
    )
    assert describe_judgement(absent) == (
        "ttft_p99>2s (on): cannot be judged, as it could not start"
    )
