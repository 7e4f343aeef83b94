"""The document of a search: what ``blockbench tune --json`` prints."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_number_of
from bench_cli.tune_line import YAML_NAME, commands
from bench_cli.tune_refused import refused_document
from bench_cli.tune_unknown import unknowns
from bench_cli.tune_words import why
from harness.tuning.choice import ObjectiveName
from harness.tuning.evidence import figures_of
from harness.tuning.headroom import LEAST_LIFETIMES

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.tuning.check import Check
    from harness.tuning.decisive import Decisive
    from harness.tuning.evidence import Row
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial
    from results.comparison.verdict import MetricResult

Document = dict[str, Any]


def tune_document(
    asked: "Asked",
    answer: "Answer",
    facts: Mapping[str, Document],
    jobs: int,
    wall_s: float,
    yaml_path: Path | None = None,
) -> Document:
    """The whole document; None stands for what was not asked, or not found out."""
    command, yaml, with_yaml = commands(asked, answer, yaml_path or Path(YAML_NAME))
    return {
        "schema_version": 1,
        "kind": "tune",
        "source": "simulated",
        "complete": not answer.was_stopped,
        "command": command,
        "yaml": yaml,
        "command_with_yaml": with_yaml,
        "keep": answer.is_kept,
        "keep_reason": _keep_reason(asked, answer),
        "objective": asked.engine.objective.name.value,
        "config": answer.knobs,
        "changes": {
            name: {"from": answer.question.start[name], "to": value}
            for name, value in answer.knobs.items()
            if value != answer.question.start[name]
        },
        "current": _side(answer.question.start, answer.start),
        "current_today": figures_of(answer.today or answer.start),
        "default": _side(answer.question.default, answer.default),
        "advised": figures_of(answer.advice.trial),
        "trouble": _trouble(answer.advice.trial),
        "gain": {
            "over_current": gain_document(answer.over_start),
            "over_default": gain_document(answer.over_default),
        },
        "decided_by": {
            "over_current": _decided_by(asked, answer, answer.start),
            "over_default": _decided_by(asked, answer, answer.default),
        },
        "over_limits": _over_limits(asked, answer),
        "refused": refused_document(answer),
        "evidence": {
            name: _evidence(asked, answer, name) | {"facts": _facts(asked, name, facts)}
            for name in answer.question.space.choices
        },
        "withdrawn": answer.withdrawn,
        "ties": answer.advice.ties,
        "robustness": [_check(check) for check in answer.checks],
        "headroom": _headroom(asked, answer),
        "replicas": answer.replicas and answer.replicas.fewest,
        "most_replicas_tried": answer.replicas and answer.replicas.most_tried,
        "searched": _searched(asked, answer),
        "unknowns": unknowns(asked, answer),
        "verification": None,
        "vllm_version": asked.start.vllm_version,
        "policy": asked.start.policy,
        "trials": answer.num_trials,
        "replays": asked.engine.tally.num_replays,
        "replay_s": asked.engine.tally.wall_s,
        "jobs": jobs,
        "wall_s": wall_s,
    }


def _keep_reason(asked: "Asked", answer: "Answer") -> str | None:
    """Why the present settings are kept; None where others are advised."""
    if not answer.is_kept:
        return None
    tried = format_number_of(answer.num_trials, "setting")
    if trouble := _trouble(answer.advice.trial):
        return f"none of {tried} lasts: {trouble}"
    if answer.withdrawn is not None:
        return "what does better here does worse elsewhere"
    if answer.load < 1:
        return f"of {tried} none takes more load; it takes replicas"
    if _is_all_inside(asked, answer):
        return (
            f"every request is inside the SLO, and {tried} cannot do better"
            " (--objective ttft or tpot looks for what is faster)"
        )
    return f"of {tried} none does better beyond chance, by what counts"


def _is_all_inside(asked: "Asked", answer: "Answer") -> bool:
    """Whether goodput is sought where it is all that it can be."""
    objective, run = asked.engine.objective, answer.start.run
    if objective.name is not ObjectiveName.GOODPUT or run is None:
        return False
    is_met = objective.of_conditions(run) == 0
    return is_met and bool(run.summary["goodput"]["fraction"] == 1)


def _side(knobs: Mapping[str, Any], trial: "Trial | None") -> Document:
    return {
        "knobs": dict(knobs),
        "figures": figures_of(trial),
        "trouble": _trouble(trial),
    }


def _trouble(trial: "Trial | None") -> str | None:
    """Why vLLM's engine would not last; None where it would, or was not tried."""
    return (trial.run.trouble or None) if trial is not None and trial.run else None


def _over_limits(asked: "Asked", answer: "Answer") -> Document | None:
    """How often the median request has its limits, now and with what is advised."""
    from harness.tuning.advice import over_limits

    objective = asked.engine.objective
    found = {
        side: over_limits(objective, trial)
        for side, trial in (("current", answer.start), ("advised", answer.advice.trial))
    }
    if found["current"] is None:
        return None
    return {
        s: v if v is not None and math.isfinite(v) else None for s, v in found.items()
    }


def _decided_by(
    asked: "Asked", answer: "Answer", base: "Trial | None"
) -> Document | None:
    """What goes before the metric of a gain; None where nothing does."""
    from harness.tuning.decisive import decisive

    if base is None:
        return None
    objective = asked.engine.objective
    return _decisive_document(decisive(objective, base, answer.advice.trial))


def _decisive_document(found: "Decisive | None") -> Document | None:
    """A figure that decided; null where a request never finishes."""
    if found is None:
        return None
    values = [value if math.isfinite(value) else None for value in found.values]
    return {"name": found.name, "values": values}


def gain_document(result: "MetricResult | None") -> Document | None:
    """A metric beside another setting's, as a document has it."""
    if result is None:
        return None
    return {
        "metric": result.metric.name,
        "values": list(result.values),
        "difference": result.difference,
        "relative": result.relative,
        "interval": None if result.interval is None else list(result.interval),
        "verdict": result.verdict.value,
        "reason": result.reason,
    }


def _evidence(asked: "Asked", answer: "Answer", name: str) -> Document:
    rows = answer.evidence.get(name, [])
    ruled_out = answer.screened.ruled_out.get(name)
    return {
        "advised": answer.knobs[name],
        "current": answer.question.start[name],
        "default": answer.question.default[name],
        "why": ruled_out or (why(name, rows, asked.headroom_gib) if rows else None),
        "rows": [_row(row) for row in rows],
    }


def _facts(asked: "Asked", name: str, facts: Mapping[str, Document]) -> Document:
    """What is known of a knob, and of utilizations what each leaves before OOM."""
    if name != "gpu_memory_utilization":
        return facts[name]
    left = [{"value": u, "gib": gib} for u, gib in asked.headroom_gib.items()]
    return facts[name] | {"headroom_gib": left}


def _row(row: "Row") -> Document:
    return {
        "value": row.value,
        "standing": row.standing,
        "num_gpu_blocks": row.num_gpu_blocks,
        **row.figures,
    }


def _check(check: "Check") -> Document:
    return {
        "name": check.name,
        "values": list(check.values),
        "holds": check.holds,
        "is_harmful": check.is_harmful,
        "decided_by": _decisive_document(check.decided_by),
    }


def _headroom(asked: "Asked", answer: "Answer") -> Document | None:
    """None also where a load cannot grow, as all requests come at once.

    A load that is kept for too short a time to tell is no headroom; it is said apart.
    """
    from harness.tuning.load import LoadKind

    found = answer.headroom
    if found is None or found.kind is LoadKind.NONE:
        return None
    today, load = asked.engine.max_concurrency, found.lasting
    is_brief = load != found.load
    return {
        "kind": found.kind.value,
        "load": load,
        "first_failing": found.first_failing,
        "kept_briefly": found.load if is_brief else None,
        "reason": _TOO_SHORT if is_brief else None,
        "max_concurrency": None if load is None else today and round(today * load),
        "share_inside_slo": found.share,
    }


_TOO_SHORT = (
    f"its requests come for less than {LEAST_LIFETIMES} times as long as one takes, or"
    " queues still grow when the trace ends: too short to tell; take a longer trace"
)
"""Of a load: why it is no headroom though the SLO is kept."""


def _searched(asked: "Asked", answer: "Answer") -> Document:
    """Which requests the search, its evidence, its checks and its loads are of."""
    total = len(asked.engine.workload)
    part = answer.stretch or slice(0, total)
    return {
        "first_request": part.start,
        "num_requests": part.stop - part.start,
        "num_in_trace": total,
        "load": answer.load,
    }
