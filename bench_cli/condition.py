"""Conditions as people write them, and what became of them in words."""

import math
import re
from typing import TYPE_CHECKING

from bench_cli.quantity import format_figure, parse_duration
from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.comparison.gate import Condition, Judgement
    from results.comparison.metric import Metric

EXAMPLES = "ttft_p99>+10%, output_token_per_s<-5%, hit_rate<-2pp, e2e_p99>12s"

_CONDITION = re.compile(
    r"\s*(?P<name>[a-z][a-z0-9_.]*)\s*(?P<than>[<>])\s*(?P<sign>[+-]?)\s*"
    r"(?P<limit>(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ%]*))\s*"
)


def parse_conditions(texts: "Sequence[str]") -> "list[Condition]":
    """Conditions of any number of ``--fail-if``, several in one divided by commas.

    Raises:
        UsageError: One of them cannot be read.
    """
    return [parse_condition(part) for text in texts for part in text.split(",")]


def parse_condition(text: str) -> "Condition":
    """Read a condition.

    With a sign the limit is a change from the baseline: ``+10%`` of its figure,
    ``+50ms``, ``-2pp`` (points of a share). Without one it is a limit of the figure
    itself. The sign is that of the change, whichever way is better.

    Raises:
        UsageError: It cannot be read, or its limit is not of the metric's kind.
    """
    from results.comparison.gate import Condition, Of
    from results.comparison.metric import METRICS, metric_named

    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-if cannot read {text.strip()!r}; write a metric, > or <, and a"
            f" limit, in quotes, as > means something to the shell: {EXAMPLES}"
        )
    metric = metric_named(match["name"])
    if metric is None:
        raise UsageError(
            f"--fail-if: there is no metric {match['name']!r}; there are"
            f" {', '.join(known.name for known in METRICS)}, and any percentile of ttft,"
            " tpot, e2e and queue"
        )
    limit = _limit(match, metric)
    of = Of.VALUE
    if match["sign"]:
        of = Of.RELATIVE_CHANGE if match["unit"] == "%" else Of.CHANGE
    return Condition(
        text=re.sub(r"\s", "", text),
        metric=metric,
        of=of,
        is_above=match["than"] == ">",
        limit=-limit if match["sign"] == "-" else limit,
    )


def _limit(match: re.Match[str], metric: "Metric") -> float:
    """The number without its sign, in the metric's unit or as a share."""
    number, unit, has_sign = float(match["number"]), match["unit"], bool(match["sign"])
    is_share = metric.unit == "share"
    if (unit == "%" and (has_sign or is_share)) or (unit == "pp" and is_share):
        return number / 100
    if metric.unit == "s" and unit not in ("", "%", "pp"):
        return _duration(match)
    if unit == "" and metric.unit != "s":
        return number
    raise UsageError(f"--fail-if cannot judge {match[0].strip()!r}: {_kind(metric)}")


def _duration(match: re.Match[str]) -> float:
    try:
        return parse_duration(match["limit"])
    except UsageError as error:
        raise UsageError(f"--fail-if {match[0].strip()}: {error}") from error


def _kind(metric: "Metric") -> str:
    name = metric.name
    if metric.unit == "s":
        return f"{name} is a time; write {name}>+10%, {name}>+50ms or {name}>2s"
    if metric.unit == "share":
        return f"{name} is a share; write {name}<-5%, {name}<-2pp or {name}<30%"
    return f"{name} is a number; write {name}>+10%, {name}>+3 or {name}>100"


def describe_judgement(judgement: "Judgement") -> str:
    """What was seen in the arm, and what was allowed."""
    condition, result = judgement.condition, judgement.result
    what = f"{condition.text} ({judgement.arm})"
    if result is None:
        return f"{what}: cannot be judged, as it could not start"
    if judgement.value is None:
        return f"{what}: cannot be judged: {result.reason}"
    base, value = (format_figure(v, condition.metric.unit) for v in result.values)
    seen = f"{what}: {base} -> {value}"
    if condition.of.value != "value":
        seen += f", {_change(judgement.value, condition)}"
    if judgement.is_chance:
        return f"{seen}; that is chance: {result.reason}"
    return seen


def _change(value: float, condition: "Condition") -> str:
    if math.isinf(value):
        return "from 0"
    if condition.of.value == "relative change":
        return f"{value * 100:+.1f} %"
    if condition.metric.unit == "share":
        return f"{value * 100:+.1f} points"
    sign = "+" if value >= 0 else "-"
    return f"{sign}{format_figure(abs(value), condition.metric.unit)}"
