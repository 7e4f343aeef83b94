"""What ``tune --verify`` found: simulated beside measured, and whether they agree."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench_cli.engine_options import Engine
from bench_cli.tune_document import gain_document
from bench_cli.tune_verify_server import ServerSettings, other_side, side_of_server
from bench_cli.tune_verify_side import Side, differing, split_kept

if TYPE_CHECKING:
    from bench_cli.tune_verify_plan import Verification
    from results.comparison.arm import ArmRun
    from results.comparison.verdict import MetricResult

Document = dict[str, Any]

FIGURES = (
    "finished",
    *(f"{name}_{of}" for name in ("ttft", "tpot", "e2e") for of in ("mean", "p99")),
    "output_token_per_s",
    "goodput_fraction",
    "hit_rate",
    "preemptions",
)
BLOCKS = "num_gpu_blocks"


def not_started(reason: str) -> Document:
    """The finding of an engine to which no run came."""
    return {
        "code": "not_run",
        "severity": "error",
        "message": f"it was not run: {reason}",
        "advice": "",
    }


def verification_document(found: "Verification") -> Document:
    """The part of tune's document; None stands for what was not measured."""
    server = side_of_server(found) if found.server_runs else None
    gains = _gains(found)
    is_confirmed, reason = confirmation(found, gains["measured"])
    return {
        "engine": found.flags.engine.value,
        "not_run": found.not_run or None,
        "complete": not (found.not_run or found.was_stopped or found.code),
        "requests": {
            "first_request": found.part.start,
            "num_requests": len(found.workload),
            "num_in_trace": len(found.asked.engine.workload),
        },
        "hardware": hardware(found),
        "sides": {side.name: _side(side) for side in found.sides},
        "server": None if server is None else _server(found, server),
        "gain": {name: gain_document(each) for name, each in gains.items()},
        "is_confirmed": is_confirmed,
        "reason": reason,
        "findings": findings(found),
        "notes": notes(found),
        "wall_s": found.wall_s,
    }


def _side(side: Side) -> Document:
    config = side.runs[0].info.config if side.runs else {}
    return {
        "command": side.line,
        "num_runs": len(side.runs),
        "folders": list(side.folders),
        "figures": figures(side),
        "differs": differing(side.simulated.info.config, config),
    }


def figures(side: Side) -> Document:
    """Each figure simulated and measured: the mean of the runs, the least and the most.

    Those that neither has are left out.
    """
    from results.comparison.metric import metric_named

    found = {}
    for name in FIGURES:
        metric = metric_named(name)
        assert metric is not None, "each is a metric"
        ours, *theirs = (
            metric.value(run.summary, run.samples) for run in (side.simulated, *side.runs)
        )
        found[name] = _figure(metric.unit, ours, theirs)
    counts = [run.info.config[BLOCKS] for run in (side.simulated, *side.runs)]
    found[BLOCKS] = _figure("blocks", counts[0], counts[1:])
    return {
        name: figure
        for name, figure in found.items()
        if (figure["simulated"], figure["measured"]) != (None, None)
    }


def _figure(unit: str, simulated: Any, measured: list[Any]) -> Document:
    known = [value for value in measured if value is not None]
    return {
        "unit": unit,
        "simulated": simulated,
        "measured": sum(known) / len(known) if known else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
    }


# -- the gain --------------------------------------------------------------------------


def _gains(found: "Verification") -> "dict[str, MetricResult | None]":
    """The objective's metric of what is advised beside the present one, by source."""
    from harness.tuning.advice import gain, metric_of
    from results.comparison.compare import Comparer

    if len(found.sides) < 2:
        return {"simulated": None, "measured": None}
    base, other = found.sides
    objective = found.asked.engine.objective
    measured = None
    if base.runs and other.runs:
        metric = metric_of(objective)
        measured = Comparer(base.arm()).result(other.arm(), metric)
    return {"simulated": gain(objective, base.trial, other.trial), "measured": measured}


def confirmation(
    found: "Verification", measured: "MetricResult | None"
) -> tuple[bool | None, str]:
    """Whether what was measured confirms the advice, and why; None for neither."""
    is_confirmed, reason = _confirmation(found, measured)
    machine = hardware(found)
    if is_confirmed is not None and machine["is_same"] is False:
        reason = (
            f"{reason}; but that is {spoken(machine['measured'])} and not"
            f" {machine['simulated']}, so it neither confirms the advice nor refutes it"
        )
        return None, reason
    return is_confirmed, reason


def _confirmation(
    found: "Verification", measured: "MetricResult | None"
) -> tuple[bool | None, str]:
    from results.comparison.verdict import Verdict

    if found.not_run:
        return None, found.not_run
    if found.was_stopped:
        return None, "measuring was stopped"
    if len(found.sides) == 1:
        return None, "nothing is to be changed, so there is no gain"
    if found.flags.engine is Engine.SERVER:
        return None, "a server has one of the two settings only"
    base, other = found.sides
    if other.failure is not None:
        return False, "vLLM does not last with the advised settings"
    if base.failure is not None:
        return True, "vLLM lasts with the advised settings, and not with the present ones"
    assert measured is not None, "both were measured"
    if measured.verdict is Verdict.NOT_TESTED:
        return None, _not_tested(measured, len(other.runs))
    said = f"{measured.verdict.value}: {measured.reason}"
    is_confirmed = {Verdict.BETTER: True, Verdict.WORSE: False}.get(measured.verdict)
    return is_confirmed, said


def _not_tested(measured: "MetricResult", num_runs: int) -> str:
    """Why there is no verdict; of single runs, which way they point."""
    difference = measured.difference
    if num_runs > 1 or difference is None:
        return f"not tested: {measured.reason}"
    if difference == 0:
        return "one run each shows no difference; --repeats 5 tells chance from it"
    is_better = (difference > 0) == measured.metric.is_more_better
    where = "the advised way" if is_better else "the other way"
    return f"one run each points {where}; --repeats 5 tells chance from it"


# -- what a reader should know ---------------------------------------------------------


def hardware(found: "Verification") -> Document:
    """Which hardware was simulated and measured; None for what is not known."""
    simulated = found.asked.start.gpu
    runs = _runs(found)
    measured = runs[0].info.config.get("gpu") if runs else None
    return {
        "simulated": simulated,
        "measured": measured,
        "is_same": None if measured is None else _is_same(simulated, str(measured)),
    }


def _runs(found: "Verification") -> "list[ArmRun]":
    return [run for side in found.sides for run in side.runs]


def spoken(measured: str | None) -> str | None:
    """A device as people call it."""
    return "a CPU" if measured == "cpu" else measured


def _is_same(simulated: str, measured: str) -> bool | None:
    """Whether a device's own name is that of a profile; None where nobody knows."""
    from profiles.errors import ProfileError
    from profiles.gpu import is_bundled, load_gpu

    if not is_bundled(simulated):
        return False if measured == "cpu" else None
    try:
        return load_gpu(simulated).name == load_gpu(measured).name
    except ProfileError:
        return None


def findings(found: "Verification") -> list[Document]:
    """What failed, each with the settings that it failed with."""
    told = [] if found.failure is None else [found.failure | {"side": None}]
    for side in found.sides:
        if side.failure is not None:
            said = side.failure["message"]
            advice = side.failure["advice"]
            if side is found.sides[-1] and len(found.sides) > 1:
                advice = f"keep the present settings, or narrow --space; {advice}"
            told.append(
                side.failure
                | {
                    "message": f"with {side.in_words}: {said}",
                    "advice": advice.removesuffix("; "),
                    "side": side.name,
                }
            )
    return told


def notes(found: "Verification") -> list[str]:
    """What a reader should know of both columns."""
    told = [*_of_hardware(found), *_of_version(found)]
    for side in found.sides:
        if side.runs:
            differs = differing(side.simulated.info.config, side.runs[0].info.config)
            told += _of_differences(side, differs)
    current = found.asked.current
    is_vllm = found.flags.engine is Engine.VLLM
    left_out = [] if current is None else split_kept(current.kept)[1]
    if left_out and is_vllm:
        told.append(f"{', '.join(left_out)}: of the server, left out here")
    return told


def _of_hardware(found: "Verification") -> list[str]:
    machine = hardware(found)
    simulated, measured = machine["simulated"], spoken(machine["measured"])
    if machine["is_same"]:
        return []
    if measured is None:
        is_server = found.flags.engine is Engine.SERVER and bool(found.server_runs)
        said = f"a server does not say what it runs on; simulated was {simulated}"
        return [said] if is_server else []
    if machine["is_same"] is None:
        return [f"whether {measured} is what was simulated ({simulated}) is not known"]
    return [
        f"measured on {measured}, simulated for {simulated}: times cannot agree; hits,"
        " preemptions and what fits can where settings and blocks do"
    ]


def _of_version(found: "Verification") -> list[str]:
    runs, simulated = _runs(found), found.asked.start.vllm_version
    measured = runs[0].info.config.get("vllm_version") if runs else None
    if measured is None or str(measured).partition("+")[0] == simulated:
        return []
    return [f"measured with vLLM {measured}, simulated for {simulated}"]


def _of_differences(side: Side, differs: Mapping[str, Any]) -> list[str]:
    from bench_cli.tune_words import shown

    parts = [
        f"{name} {shown(each['measured'])} (simulated {shown(each['simulated'])})"
        for name, each in differs.items()
    ]
    return [f"{side.in_words} ran with {', '.join(parts)}"] if parts else []


def _server(found: "Verification", settings: ServerSettings) -> Document:
    other = other_side(found, settings.side)
    return {
        "url": found.flags.measured.url,
        "settings": settings.side.name if settings.is_known else None,
        "beside": settings.side.name,
        "reason": settings.reason,
        "restart": None if other is None else other.line,
    }
