"""The document of a search: what ``blockbench tune --json`` prints."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_cli.serve_limit import flags_not_checked, limits_of
from bench_cli.serve_line import serve_line, serve_yaml
from bench_cli.tune_words import why
from harness.tuning.evidence import figures_of
from harness.tuning.headroom import LEAST_LIFETIMES
from profiles.serve_option import OPTIONS, why_not

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.config import EngineConfig
    from harness.tuning.check import Check
    from harness.tuning.evidence import Row
    from harness.tuning.question import Answer
    from harness.tuning.trial import Trial
    from results.comparison.verdict import MetricResult

Document = dict[str, Any]

YAML_NAME = "serve.yaml"
"""Of the file for ``--config``, where nobody named one."""


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
        "objective": asked.engine.objective.name.value,
        "config": answer.knobs,
        "changes": {
            name: {"from": answer.question.start[name], "to": value}
            for name, value in answer.knobs.items()
            if value != answer.question.start[name]
        },
        "current": _side(answer.question.start, answer.start),
        "default": _side(answer.question.default, answer.default),
        "advised": figures_of(answer.advice.trial),
        "trouble": _trouble(answer.advice.trial),
        "gain": {
            "over_current": gain_document(answer.over_start),
            "over_default": gain_document(answer.over_default),
        },
        "over_limits": _over_limits(asked, answer),
        "evidence": {
            name: _evidence(asked, answer, name) | {"facts": _facts(asked, name, facts)}
            for name in answer.question.space.choices
        },
        "withdrawn": answer.withdrawn,
        "ties": answer.advice.ties,
        "robustness": [_check(check) for check in answer.checks],
        "headroom": _headroom(asked, answer),
        "replicas": answer.replicas and asked.num_replicas * answer.replicas,
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


def commands(
    asked: "Asked", answer: "Answer", yaml_path: Path
) -> tuple[str, str | None, str | None]:
    """The line, a file for ``--config``, and the line that reads it, if there can be one.

    Only options that are not the version's own defaults stand there, and those only that
    the version has; what is kept of a present command stays as it was.
    """
    from harness.errors import UsageError

    model, kwargs = model_and_rest(asked)
    changed = changed_options(asked, answer)
    line = serve_line(model, changed, **kwargs)
    try:
        file = serve_yaml(model, changed, **kwargs, path=str(yaml_path))
    except UsageError:
        return line, None, None
    return line, file.text, file.line


def check_yaml(asked: "Asked", path: Path) -> None:
    """Refuse a file for ``--config`` that cannot be, before what takes long.

    Raises:
        UsageError: This version, or this command, cannot read it; or the file is there.
    """
    from harness.errors import UsageError

    model, kwargs = model_and_rest(asked)
    serve_yaml(model, {}, **kwargs, path=str(path))
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path} is there already; choose another file with --yaml")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")


def write_yaml(path: Path, text: str) -> None:
    """Write the file for ``--config``.

    Raises:
        UsageError: It cannot be written.
    """
    from bench_cli.output_file import write_whole
    from harness.errors import UsageError

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; give --yaml another"
        ) from error


def model_and_rest(asked: "Asked") -> tuple[str, dict[str, Any]]:
    """Model, and what else of a command is no knob."""
    current = asked.current
    model = asked.start.model if current is None else current.model
    return model, {
        "version": asked.start.vllm_version,
        "policy": asked.start.policy,
        "kept": () if current is None else current.kept,
        "environment": () if current is None else current.environment,
    }


def changed_options(asked: "Asked", answer: "Answer") -> dict[str, Any]:
    """Values of advised options that are not what the version has by itself."""
    return options_of(asked, answer.knobs, answer.advice.trial)


def options_of(
    asked: "Asked", knobs: Mapping[str, Any], trial: "Trial"
) -> dict[str, Any]:
    """Values of a setting's options that are not what the version has by itself.

    Args:
        asked: What else of the engine is as it is.
        knobs: The setting.
        trial: Its replay, of any requests.
    """
    version, policy = asked.start.vllm_version, asked.start.policy
    found = dict(asked.fixed)
    for name in ("model", "gpu", "engine", "policy", "vllm_version"):
        found.pop(name, None)
    found = {n: v for n, v in found.items() if not _is_plain(n, v)}
    if asked.start.source_of_num_gpu_blocks == "override":
        del found["kv_cache_gib"]
        assert trial.run is not None, "it was replayed to its end"
        found["num_gpu_blocks_override"] = trial.run.info.config["num_gpu_blocks"]
    default = asked.default
    for name, value in knobs.items():
        if default is None or value != _of(default, name):
            found[name] = value
    return {
        name: value
        for name, value in found.items()
        if name in OPTIONS and not why_not(OPTIONS[name], value, version, policy)
    }


def _is_plain(name: str, value: Any) -> bool:
    return (name, value) in (("tensor_parallel_size", 1), ("enforce_eager", False))


def _of(config: "EngineConfig", name: str) -> Any:
    from bench_cli.tune_space import value_of

    return value_of(config, name)


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
    }


def unknowns(asked: "Asked", answer: "Answer") -> list[str]:
    """What the advice does not know."""
    from harness.tuning.load import LoadKind, kind_of_load

    config = asked.start
    found = [*asked.notes, *(note for note in config.notes)]
    if answer.question.curve is None:
        found.append(
            "the trace does not say which prompts begin alike, so nothing is advised"
            " about prefix caching and what depends on hits"
        )
    engine = asked.engine
    if kind_of_load(engine.workload, engine.max_concurrency) is LoadKind.NONE:
        found.append(
            "all requests come at once, which is as much load as there can be: nothing"
            " is said of higher loads; --request-rate or --max-concurrency has them"
        )
    part = answer.stretch
    if part is not None:
        found.append(
            f"settings were compared on {part.stop - part.start:,} requests from number"
            f" {part.start:,} on, which are like the whole trace; the gain is of"
            + (" it all" if answer.is_whole else " these alone, as it was stopped")
        )
    error = config.step_time_error
    if error is None:
        found.append(
            "step times of such a model on this GPU were never compared with a server's:"
            " blockbench calibrate with figures of yours"
        )
    else:
        found.append(
            f"step times are off by {100 * error.fraction:.0f} % of TPOT, in the median"
        )
    if config.source_of_num_gpu_blocks == "estimated":
        found.append(
            "the number of blocks is an estimate; vLLM prints its own at start"
            " (--num-gpu-blocks-override)"
        )
    for name in ("kv_offloading_size", "swap_space"):
        if answer.knobs.get(name):
            found.append(f"whether the host has the memory of {name} to spare")
    if asked.current is not None:
        kept = asked.current.kept
        found += limits_of(kept)
        if flags := flags_not_checked(kept):
            version = f"whether vLLM {config.vllm_version} has"
            found.append(f"{version} {', '.join(flags)}: kept in the line as given")
    return found
