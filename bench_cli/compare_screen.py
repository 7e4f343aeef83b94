"""The screen and the tables of ``blockbench compare``."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench_cli.arm_settings import settings_of
from bench_cli.condition import describe_judgement
from bench_cli.quantity import (
    format_duration,
    format_figure,
)
from bench_cli.run_screen import config_line, step_times_line, trace_line
from bench_cli.tables import Row, TableStyle, render_table
from results.comparison.interval import CONFIDENCE

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from results.comparison.arm import Arm
    from results.comparison.chain import Chain, Split
    from results.comparison.comparison import ArmResult, Comparison
    from results.comparison.gate import Judgement
    from results.comparison.verdict import MetricResult

SHOWN = (
    "finished",
    "goodput_fraction",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "itl_p99",
    "e2e_p50",
    "e2e_p99",
    "output_token_per_s",
)
"""Outcomes on the screen; tables and ``--json`` have all."""

SHOWN_CAUSES = (
    "hit_rate",
    "offload_hit_tokens",
    "prefill_tokens",
    "queue_mean",
    "mean_usage",
    "preemptions",
    "recomputed_tokens",
    "swap_out_blocks",
    "copy_on_write",
    "evictions",
)
"""Causes on the screen, where one of the arms has any."""

SHOWN_OF_MANY = (
    "finished",
    "goodput_fraction",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "e2e_p50",
    "output_token_per_s",
    "hit_rate",
    "preemptions",
)
"""Columns where there are several arms."""

HEADERS = (
    "arm",
    "metric",
    "unit",
    "baseline",
    "value",
    "difference",
    "relative",
    "low",
    "high",
    "verdict",
    "reason",
)

MANY = 5
"""Metrics that are counted, not named."""

_BETWEEN_WORDS = " =-"

_SIGNS = {"better": " +", "worse": " -"}
_STYLES = {"better": "green", "worse": "red", "mixed": "yellow"}


def print_comparison(
    comparison: "Comparison",
    judgements: "Sequence[Judgement] | None",
    notes: Sequence[str],
    style: TableStyle,
) -> None:
    """Print the screen, or one table with a row for each metric of each arm."""
    from bench_cli.console import Screen

    screen = Screen()
    if style is not TableStyle.RICH:
        print(render_table(HEADERS, _rows(comparison), style))
        _print_rest(Screen(stderr=True), comparison, judgements, notes)
        return
    _print_head(screen, comparison)
    if len(comparison.arms) == 1 and comparison.arms[0].metrics:
        _print_pair(screen, comparison, comparison.arms[0])
    elif comparison.arms:
        _print_many(screen, comparison)
    _print_rest(screen, comparison, judgements, notes)


def _print_head(screen: "Screen", comparison: "Comparison") -> None:
    base = comparison.baseline
    info = base.run.info
    sources = {r.arm.run.info.source for r in comparison.arms if r.arm.runs}
    source = info.source if sources <= {info.source} else "simulated and measured"
    screen.spread(trace_line({"trace": dict(info.trace)}), source)
    screen.line(f"{base.name}: {config_line(dict(base.config))}")


def _print_pair(screen: "Screen", comparison: "Comparison", result: "ArmResult") -> None:
    """One arm beside the baseline: a row a metric."""
    by_name = {each.metric.name: each for each in result.metrics}
    shown = [by_name[name] for name in SHOWN if name in by_name]
    causes = [by_name[name] for name in SHOWN_CAUSES if name in by_name]
    shown += [cause for cause in causes if any(cause.values)]
    screen.table(
        (
            *_heads(comparison.baseline.name, result.arm.name),
            "verdict",
            f"difference ({CONFIDENCE:.0%} interval)",
        ),
        [_pair_row(each) for each in shown if not _is_idle(each)],
    )
    reasons: dict[str, list[str]] = {}
    for each in shown:
        if each.verdict.value == "not tested" and None not in each.values:
            reasons.setdefault(each.reason, []).append(each.metric.label)
    for reason, labels in reasons.items():
        which = ", ".join(labels) if len(labels) < MANY else f"{len(labels)} of them"
        screen.aside(f"not tested: {which}: {reason}")
    if reasons:
        screen.line()


def _heads(*names: str) -> tuple[str, ...]:
    """What the names begin with, and what is left of each: ``block_size``, 16 and 32."""
    shared = os.path.commonprefix(names)  # noqa: RUF071 - names, not paths
    end = max(shared.rfind(mark) for mark in _BETWEEN_WORDS) + 1
    rests = [name[end:] for name in names]
    if not end or not all(rests):
        return "", *names
    return shared[:end].rstrip(_BETWEEN_WORDS), *rests


def _is_idle(result: "MetricResult") -> bool:
    """All requests finished in both: nothing to tell."""
    return result.metric.name == "finished" and result.values[0] == result.values[1]


def _pair_row(result: "MetricResult") -> list[str]:
    metric = result.metric
    return [
        metric.label,
        *(format_figure(value, metric.unit) for value in result.values),
        result.verdict.value,
        _difference(result),
    ]


def _difference(result: "MetricResult") -> str:
    """The change, and between which bounds it may lie; empty where it tells nothing."""
    if result.difference is None or result.verdict.value == "not tested":
        return ""
    of_share, scale = result.metric.unit == "share", 100.0
    if not of_share:
        base = result.values[0]
        if not base:
            return f"{result.difference:+,.4g}"
        scale = 100 / abs(base)
    unit = "points" if of_share else "%"
    change = f"{_number(result.difference * scale)} {unit}"
    if result.interval is None or result.interval[0] == result.interval[1]:
        return change
    low, high = (_number(bound * scale) for bound in result.interval)
    return f"{change}  ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:+.{1 if abs(value) < 9.95 else 0}f}"


def _print_many(screen: "Screen", comparison: "Comparison") -> None:
    """Several arms: a row each."""
    arms = [result for result in comparison.arms if result.metrics]
    if not arms:
        return
    names = [name for name in SHOWN_OF_MANY if _tells(name, arms)]
    by_name = {each.metric.name: each for each in arms[0].metrics}
    base = [
        format_figure(by_name[name].values[0], by_name[name].metric.unit)
        for name in names
    ]
    rows = [[comparison.baseline.name, "baseline", *base]]
    rows += [[r.arm.name, r.verdict.value, *_cells(r, names)] for r in arms]
    screen.table(("", "verdict", *(by_name[n].metric.label for n in names)), rows)
    screen.aside(f"+ better and - worse than {comparison.baseline.name}, beyond chance")
    screen.line()


def _tells(name: str, arms: Sequence["ArmResult"]) -> bool:
    """Whether an arm has the metric, and lost requests are told only if some were."""
    found = [each for r in arms for each in r.metrics if each.metric.name == name]
    if name == "finished":
        return any(each.values[0] != each.values[1] for each in found)
    return len(found) == len(arms) and any(any(each.values) for each in found)


def _cells(result: "ArmResult", names: Sequence[str]) -> list[str]:
    by_name = {each.metric.name: each for each in result.metrics}
    return [
        format_figure(by_name[name].values[1], by_name[name].metric.unit)
        + _SIGNS.get(by_name[name].verdict.value, "")
        for name in names
    ]


def _print_rest(
    screen: "Screen",
    comparison: "Comparison",
    judgements: "Sequence[Judgement] | None",
    notes: Sequence[str],
) -> None:
    """What is said of each arm, how it comes about, and what became of conditions."""
    base = comparison.baseline
    for result in comparison.arms:
        verdict, arm = result.verdict.value, result.arm
        screen.line(f"{arm.name}: {verdict}; {result.reason}", _STYLES.get(verdict, ""))
        if settings := settings_of(base, result):
            screen.aside(settings)
        for cause in [*_causes(result), *_findings(base, arm)]:
            screen.aside(cause)
    if base.is_simulated:
        screen.aside(step_times_line(base.config.get("step_time_error")))
    for note in notes:
        screen.aside(note)
    if saved := _saved(comparison):
        screen.aside(saved)
    for judgement in judgements or ():
        sign, style = ("x", "bold red") if judgement.failed else ("-", "")
        screen.line(f"{sign} {describe_judgement(judgement)}", style)


def _findings(base: "Arm", arm: "Arm") -> list[str]:
    """Codes of what is found in one of the two only; ``show`` explains them."""
    if not arm.runs:
        return []
    first, second = (
        dict.fromkeys(finding["code"] for finding in each.run.summary["findings"])
        for each in (base, arm)
    )
    parts = {
        "gone": [code for code in first if code not in second],
        "new": [code for code in second if code not in first],
    }
    named = [f"{what}: {', '.join(codes)}" for what, codes in parts.items() if codes]
    return [f"findings {'; '.join(named)}"] if named else []


def _saved(comparison: "Comparison") -> str:
    """Where the arms lie that were replayed now."""
    arms = [comparison.baseline, *(result.arm for result in comparison.arms)]
    names = [arm.run.folder for arm in arms if arm.runs and not arm.run.created_at]
    if not names:
        return ""
    shown = f"saved {names[0]}"
    if len(names) > 1:
        shown += f" and {len(names) - 1} more"
    return f"{shown}; blockbench list, show NAME"


def _causes(result: "ArmResult") -> list[str]:
    found = [_chain(chain, result.is_cause_known) for chain in result.chains]
    if found and not result.is_cause_known:
        knobs = " and ".join(result.differs)
        found.append(f"{knobs} may act on each of these by itself")
    if result.split is not None and result.verdict.value != "no difference found":
        found.append(_split(result.split))
    return found


def _chain(chain: "Chain", is_cause_known: bool) -> str:
    """Links with an arrow where one follows from the other, and what did not follow."""
    links = [f"{link.metric.label} {_moved(link)}" for link in chain.links]
    text = (" -> " if is_cause_known else ", ").join(links)
    if chain.broken_by is not None:
        text += f"; {chain.broken_by.metric.label} did not follow"
    return text


def _moved(link: "MetricResult") -> str:
    if link.relative is None or link.metric.unit == "share":
        base, value = (format_figure(v or 0.0, link.metric.unit) for v in link.values)
        return f"{base} to {value}"
    return f"{_number(link.relative * 100)} %"


def _split(split: "Split") -> str:
    total = split.queue_s + split.prefill_s + split.decode_s
    parts = {"queue": split.queue_s, "prefill": split.prefill_s, "decode": split.decode_s}
    named = ", ".join(f"{_signed(seconds)} {name}" for name, seconds in parts.items())
    return f"E2E mean {_signed(total)}: {named}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def _rows(comparison: "Comparison") -> list[Row]:
    return [
        (
            result.arm.name,
            each.metric.name,
            each.metric.unit,
            *each.values,
            each.difference,
            each.relative,
            *(each.interval or (None, None)),
            each.verdict.value,
            each.reason,
        )
        for result in comparison.arms
        for each in result.metrics
    ]
