"""What is said of an arm as a whole: better, worse, and why in a sentence."""

from collections.abc import Iterable, Sequence

from results.comparison.arm import Arm, differing_knobs
from results.comparison.verdict import (
    LEAST_CHANGE,
    MetricResult,
    Verdict,
    describe_change,
)
from results.measured import if_measured

HEADLINES = (
    "finished",
    "goodput_fraction",
    "ttft_p50",
    "ttft_mean",
    "ttft_p99",
    "e2e_p50",
    "e2e_mean",
    "e2e_p99",
    "tpot_p50",
    "tpot_mean",
    "tpot_p99",
    "output_token_per_s",
)
"""Outcomes in the order in which people ask for them."""

MOST_NAMED = 2

DEFAULTS_OF_CACHING = ("enable_chunked_prefill", "max_num_batched_tokens")
"""Knobs whose default hung on prefix caching. Source: vLLM 0.6.3 ``arg_utils.py``."""


def verdict_of_arm(
    base: Arm, arm: Arm, results: Sequence[MetricResult]
) -> tuple[Verdict, str]:
    """The verdict on an arm that has run, and the reason as a sentence.

    Outcomes decide. Statistics of one latency count once, and an arm that loses requests
    is never better.
    """
    if cut := [side.name for side in (base, arm) if side.is_cut_short]:
        return Verdict.NOT_TESTED, f"{' and '.join(cut)} did not come to its end"
    if base.trouble or arm.trouble:
        return _of_trouble(base, arm)
    if blind := _blind_to_hits(base, arm):
        return Verdict.NOT_TESTED, blind
    verdict = _of_outcomes(results)
    causes = _causes(base, arm, results)
    return verdict, "; ".join([*causes, *_effects(results, verdict)])


def _of_trouble(base: Arm, arm: Arm) -> tuple[Verdict, str]:
    """Of arms of which one at least would not have lasted."""
    if base.trouble and arm.trouble:
        return Verdict.NOT_TESTED, f"neither lasts: {arm.trouble}"
    if arm.trouble:
        return Verdict.WORSE, f"{arm.name} does not last: {arm.trouble}"
    return Verdict.BETTER, f"{base.name} does not last: {base.trouble}"


def _blind_to_hits(base: Arm, arm: Arm) -> str:
    """Why caching cannot be judged on a trace that does not tell what it finds."""
    trace = base.run.info.trace
    is_known = trace["has_sharing"] or trace.get("is_observed")
    if is_known or not _is_switched(base, arm):
        return ""
    return (
        "the trace does not say which prompts begin alike, so what prefix caching would"
        " find is not known"
    )


def _caching(arm: Arm) -> bool | None:
    """Whether prefix caching is on; None where nobody says it of a real engine."""
    return if_measured(lambda: arm.run.info.is_caching)


def _is_switched(base: Arm, arm: Arm) -> bool:
    """One has prefix caching on, the other off."""
    return {_caching(base), _caching(arm)} == {True, False}


def _of_outcomes(results: Sequence[MetricResult]) -> Verdict:
    by_outcome: dict[str, set[Verdict]] = {}
    for result in results:
        if result.metric.outcome:
            by_outcome.setdefault(result.metric.outcome, set()).add(result.verdict)
    said = {_one(verdicts) for verdicts in by_outcome.values()}
    if Verdict.WORSE in by_outcome.get("finished", ()):
        return Verdict.MIXED if Verdict.BETTER in said else Verdict.WORSE
    return _one(said)


def _one(verdicts: Iterable[Verdict]) -> Verdict:
    """What several verdicts come to."""
    said = set(verdicts) - {Verdict.NOT_TESTED}
    if Verdict.MIXED in said or {Verdict.BETTER, Verdict.WORSE} <= said:
        return Verdict.MIXED
    for verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.SAME):
        if verdict in said:
            return verdict
    return Verdict.NOT_TESTED


def _causes(base: Arm, arm: Arm, results: Sequence[MetricResult]) -> list[str]:
    """What changed underneath: hits, prefill tokens, preemptions, swaps."""
    by_name = {result.metric.name: result for result in results}
    found = [_hits(base, arm, by_name), _followers(base, arm), _copies(by_name)]
    preempted = by_name.get("preemptions")
    if preempted is not None and preempted.is_judged:
        found.append(f"preemptions {_from_to(preempted)}")
    return [cause for cause in found if cause]


def _hits(base: Arm, arm: Arm, by_name: dict[str, MetricResult]) -> str:
    hits = by_name.get("hit_tokens")
    if hits is None or hits.difference is None:
        return ""
    had, has = (value or 0.0 for value in hits.values)
    if not (had or has):
        return _no_hits(base, arm, by_name)
    prefill = by_name.get("prefill_tokens")
    if not hits.difference:
        return "hits are as before"
    if prefill is None or not prefill.values[0]:
        return f"{'more' if hits.difference > 0 else 'fewer'} hits"
    share = hits.difference / prefill.values[0]
    if abs(share) < LEAST_CHANGE:
        return "hits are as before"
    if share < 0:
        return f"hits that are lost add {_percent(-share)} to prefill tokens"
    return f"{'more hits' if had else 'hits'} save {_percent(share)} of prefill tokens"


def _no_hits(base: Arm, arm: Arm, by_name: dict[str, MetricResult]) -> str:
    evictions = by_name.get("evictions")
    if not _caching(arm) or evictions is None:
        return ""
    num_evicted = evictions.values[1] or 0
    what = f", and evicts {num_evicted:,.0f} blocks" if num_evicted else ""
    does = "prefix caching saves nothing" if not _caching(base) else "no hits"
    return f"{does}{what}"


def _followers(base: Arm, arm: Arm) -> str:
    """What vLLM's defaults switch when prefix caching is; else empty."""
    if not _is_switched(base, arm):
        return ""
    others = [n for n in differing_knobs(base, arm) if n in DEFAULTS_OF_CACHING]
    return f"vLLM changes {' and '.join(others)} with it" if others else ""


def _copies(by_name: dict[str, MetricResult]) -> str:
    swapped = by_name.get("swap_out_blocks")
    if swapped is None or not swapped.is_judged:
        return ""
    return f"blocks swapped out {_from_to(swapped)}"


def _from_to(result: MetricResult) -> str:
    base, value = (number or 0.0 for number in result.values)
    return f"{'fall' if value < base else 'rise'} from {base:,.0f} to {value:,.0f}"


def _percent(share: float) -> str:
    return f"{share * 100:.{1 if share < 0.0995 else 0}f} %"


def _effects(results: Sequence[MetricResult], verdict: Verdict) -> list[str]:
    """Outcomes that moved, and whether any got worse."""
    better = _named(results, Verdict.BETTER)
    worse = _named(results, Verdict.WORSE)
    if not better and not worse:
        if verdict is Verdict.NOT_TESTED:
            return ["no outcome could be tested"]
        return ["no outcome differs by more than chance or 1 %"]
    if worse:
        return [*better, *worse]
    return [*better, _nothing_lost(results)]


def _named(results: Sequence[MetricResult], verdict: Verdict) -> list[str]:
    """The first outcomes with this verdict, one of each kind."""
    order = {name: place for place, name in enumerate(HEADLINES)}
    judged = [r for r in results if r.metric.outcome and r.verdict is verdict]
    judged.sort(key=lambda result: order.get(result.metric.name, len(order)))
    found: dict[str, str] = {}
    for result in judged:
        found.setdefault(result.metric.outcome, _moved(result))
    return list(found.values())[:MOST_NAMED]


def _moved(result: MetricResult) -> str:
    assert result.difference is not None, "what was judged has a difference"
    does = "falls" if result.difference < 0 else "rises"
    change = describe_change(result.metric, result.values[0] or 0.0, result.difference)
    return f"{result.metric.label} {does} {change.lstrip('+-')}"


def _nothing_lost(results: Sequence[MetricResult]) -> str:
    """That no outcome got worse, and which could not be tested."""
    outcomes: dict[str, set[Verdict]] = {}
    for result in results:
        if result.metric.outcome:
            outcomes.setdefault(result.metric.outcome, set()).add(result.verdict)
    untested = [name for name, said in outcomes.items() if said == {Verdict.NOT_TESTED}]
    named = ", ".join(name for name in untested if name != "throughput")
    return f"nothing lost, {named} not tested" if named else "nothing lost"
