"""The document of a comparison: what ``blockbench compare --json`` prints."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench_cli.condition import describe_judgement

if TYPE_CHECKING:
    from results.comparison.arm import Arm
    from results.comparison.chain import Chain
    from results.comparison.comparison import ArmResult, Comparison
    from results.comparison.gate import Judgement
    from results.comparison.verdict import MetricResult

Document = dict[str, Any]


def compare_document(
    comparison: "Comparison",
    judgements: "Sequence[Judgement] | None",
    notes: Sequence[str],
    wall_s: float,
) -> Document:
    """The whole document; None stands for what does not apply or was not tested.

    Args:
        comparison: What was found.
        judgements: What became of conditions; None where there were none.
        notes: What a reader should know besides.
        wall_s: Seconds that it took, the arms' runs included.
    """
    from results.comparison.interval import CONFIDENCE

    base = comparison.baseline
    arms = [base, *(result.arm for result in comparison.arms)]
    sources = {arm.run.info.source for arm in arms if arm.runs}
    return {
        "schema_version": 1,
        "kind": "compare",
        "source": sources.pop() if len(sources) == 1 else "mixed",
        "trace": base.run.summary["trace"],
        "baseline": base.name,
        "confidence": CONFIDENCE,
        "arms": [
            _arm(base) | {"differs": [], "verdict": None, "reason": None},
            *(_result(result) for result in comparison.arms),
        ],
        "metrics": [
            _metric(metric, result.arm.name, base.name)
            for result in comparison.arms
            for metric in result.metrics
        ],
        "chains": [
            _chain(chain, result) for result in comparison.arms for chain in result.chains
        ],
        "gate": None if judgements is None else _gate(judgements),
        "notes": list(notes),
        "wall_s": wall_s,
    }


def _arm(arm: "Arm") -> Document:
    return {
        "name": arm.name,
        "config": dict(arm.config) or None,
        "summary": dict(arm.run.summary) if arm.runs else None,
        "num_runs": len(arm.runs),
        "folders": [run.folder for run in arm.runs if run.folder],
        "error": arm.error or None,
    }


def _result(result: "ArmResult") -> Document:
    split = result.split
    return _arm(result.arm) | {
        "differs": list(result.differs),
        "verdict": result.verdict.value,
        "reason": result.reason,
        "e2e_split_s": None
        if split is None
        else {
            "queue": split.queue_s,
            "prefill": split.prefill_s,
            "decode": split.decode_s,
        },
    }


def _metric(result: "MetricResult", arm: str, baseline: str) -> Document:
    return {
        "name": result.metric.name,
        "unit": result.metric.unit,
        "arm": arm,
        "baseline": baseline,
        "values": list(result.values),
        "difference": result.difference,
        "relative": result.relative,
        "interval": None if result.interval is None else list(result.interval),
        "evidence": None if result.evidence is None else result.evidence.value,
        "verdict": result.verdict.value,
        "reason": result.reason,
    }


def _chain(chain: "Chain", result: "ArmResult") -> Document:
    broken_by = chain.broken_by
    return {
        "arm": result.arm.name,
        "metrics": [link.metric.name for link in chain.links],
        "relative": [link.relative for link in chain.links],
        "broken_by": None if broken_by is None else broken_by.metric.name,
        "is_cause_known": result.is_cause_known,
    }


def _gate(judgements: "Sequence[Judgement]") -> Document:
    return {
        "failed": any(judgement.failed for judgement in judgements),
        "conditions": [_judgement(judgement) for judgement in judgements],
    }


def _judgement(judgement: "Judgement") -> Document:
    value = judgement.value
    return {
        "condition": judgement.condition.text,
        "arm": judgement.arm,
        "metric": judgement.condition.metric.name,
        "limit": judgement.condition.limit,
        "value": value if value is not None and math.isfinite(value) else None,
        "failed": judgement.failed,
        "message": describe_judgement(judgement),
    }
