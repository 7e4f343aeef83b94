"""The screen of ``blockbench tune``: the line, the gain, and why."""

from typing import TYPE_CHECKING, Any

from bench_cli.quantity import (
    format_count,
    format_duration,
    format_number_of,
    format_share,
)
from bench_cli.run_screen import config_line, trace_line
from bench_cli.tune_refused import refused_words
from bench_cli.tune_words import decided, figure, known_of, shown

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from bench_cli.tune_question import Asked
    from harness.tuning.question import Answer

Document = dict[str, Any]


def print_tuning(document: Document, asked: "Asked", answer: "Answer") -> None:
    """Print the line that starts vLLM, what it gains, and why."""
    from bench_cli.console import Screen

    screen = Screen()
    run = (answer.today or answer.start).run
    assert run is not None, "the start is replayed to its end"
    screen.spread(trace_line({"trace": dict(run.info.trace)}), "simulated")
    screen.line(f"now: {config_line(dict(run.info.config))}")
    screen.line()
    screen.command(document["command"])
    screen.line()
    screen.facts(_facts(document, asked, answer))
    screen.line()
    for unknown in document["unknowns"]:
        screen.aside(f"does not know: {unknown}")
    _print_end(screen, document, answer)


def _facts(document: Document, asked: "Asked", answer: "Answer") -> list[tuple[str, str]]:
    facts = [("advice", _advice(document, answer))]
    if document["trouble"] is None and (gain := _gain(document)):
        facts.append((_objective(document), gain))
    if document["refused"] is not None:
        facts.append(("refused", refused_words(document["refused"])))
    if document["robustness"]:
        facts.append(("elsewhere", _elsewhere(document)))
    if document["headroom"] is not None:
        if _is_missed(document) and document["trouble"] is None:
            facts.append(("SLO", _missed(document, asked)))
        facts.append(("load", _load(document, asked.num_replicas)))
    for name, evidence in document["evidence"].items():
        facts.append((name, _knob(name, evidence)))
    return facts


def _objective(document: Document) -> str:
    return {
        "goodput": "inside the SLO",
        "throughput": "throughput",
        "ttft": "TTFT mean",
        "tpot": "TPOT mean",
    }[document["objective"]]


def _advice(document: Document, answer: "Answer") -> str:
    if document["trouble"] is not None:
        tried = format_number_of(document["trials"], "setting")
        return f"none of {tried} lasts: {document['trouble']}"
    if document["keep"]:
        return f"keep what you have: {document['keep_reason']}"
    default = document["default"]["knobs"]
    changes = [
        f"{name} {shown(change['from'])} -> {shown(change['to'])}"
        + (" (vLLM's default)" if change["to"] == default[name] else "")
        for name, change in document["changes"].items()
    ]
    return ", ".join(changes)


def _gain(document: Document) -> str:
    parts = []
    for side, whose in (("current", "now"), ("default", "vLLM's defaults")):
        gain = document["gain"][f"over_{side}"]
        if gain is None or (side == "default" and _is_same(document)):
            continue
        if gain["values"][1] is None:  # nothing finished
            continue
        base, value = (figure(gain["metric"], v) for v in gain["values"])
        if trouble := document[side]["trouble"]:
            parts.append(f"{value}; {whose}: {trouble}")
            continue
        by = document["decided_by"][f"over_{side}"]
        first = "" if by is None else f"{decided(by)}; "
        change = f"{first}{base} -> {value} ({_change(gain)}){_at(document)}"
        parts.append(f"{change} against {whose}")
    return "\n".join(parts)


def _at(document: Document) -> str:
    """At which load settings are compared, if that is not today's."""
    load = document["searched"]["load"]
    return "" if load == 1 else f" at {load:.3g}x of today's load"


def _is_same(document: Document) -> bool:
    return bool(document["current"]["knobs"] == document["default"]["knobs"])


def _change(gain: Document) -> str:
    if gain["difference"] is None:
        return "not tested"
    of_share = gain["metric"] == "goodput_fraction"
    scale = 100.0 if of_share else 100 / abs(gain["values"][0] or 1.0)
    unit = "points" if of_share else "%"
    change = f"{gain['difference'] * scale:+.1f} {unit}"
    if gain["interval"] is None or gain["interval"][0] == gain["interval"][1]:
        return change
    low, high = (bound * scale for bound in gain["interval"])
    return f"{change}, {low:+.1f} to {high:+.1f} with other such requests"


def _elsewhere(document: Document) -> str:
    metric = document["gain"]["over_current"]["metric"]
    parts = []
    for check in document["robustness"]:
        base, value = (figure(metric, v) for v in check["values"])
        verdict = " WORSE" if check["is_harmful"] else ""
        if check["holds"] is None:
            verdict = " no difference"
        if document["current"]["trouble"]:  # those few that finish now are the lucky ones
            verdict = verdict or " better"
            parts.append(f"{check['name']}{verdict}")
            continue
        by = check["decided_by"]
        judged = f"{base} -> {value}" if by is None else decided(by)
        parts.append(f"{check['name']} {judged}{verdict}")
    return " · ".join(parts)


def _is_missed(document: Document) -> bool:
    """Whether today's load misses the SLO: then that is the lowest that does, or less."""
    failing = document["headroom"]["first_failing"]
    return failing is not None and failing <= 1


def _missed(document: Document, asked: "Asked") -> str:
    """That the SLO is missed, and by what: figures beside their limits."""
    if document["searched"]["load"] < 1:
        share = document["current_today"]["goodput_fraction"]
        return (
            "no setting that was tried keeps it at today's load"
            f" ({figure('goodput_fraction', share)} inside now): they are compared"
            f"{_at(document)}, which one engine is at its limits with"
        )
    objective = asked.engine.objective
    assert objective.slo is not None, "there is no headroom without limits"
    is_nearest = objective.name.value == "goodput"
    whose = "no setting that was tried keeps it" if is_nearest else "this misses it"
    means = [
        f"{_LATENCIES[name]} {figure(name, document['advised'][name])} (limit"
        f" {format_duration(limit)})"
        for name, limit in (
            (f"{n.removesuffix('_s')}_mean", v) for n, v in objective.slo.limits()
        )
        if name in _LATENCIES
    ]
    share = figure("goodput_fraction", document["advised"]["goodput_fraction"])
    median = (document["over_limits"] or {}).get("advised")
    most = (
        []
        if median is None
        else [f"the median request at {format_count(median)}x its limits"]
    )
    parts = ", ".join([f"{share} inside", *most, *means])
    return f"{whose} at today's load; {'nearest' if is_nearest else 'it gives'}: {parts}"


_LATENCIES = {
    "ttft_mean": "TTFT mean",
    "tpot_mean": "TPOT mean",
    "e2e_mean": "E2E mean",
}


def _load(document: Document, num_replicas: int) -> str:
    found, replicas = document["headroom"], document["replicas"]
    parts = [_kept(found), *_kept_briefly(found)]
    if replicas is None:
        most = format_number_of(document["most_replicas_tried"], "replica")
        parts.append(f"not even {most} would keep the SLO at today's load")
    elif replicas != num_replicas:
        needed = format_number_of(replicas, "replica")
        parts.append(f"today's load needs {needed}" + (" in all" * (num_replicas > 1)))
    return "; ".join(parts)


def _kept(found: Document) -> str:
    """Which load keeps the SLO, and which does not."""
    share, failing = format_share(found["share_inside_slo"]), found["first_failing"]
    if found["load"] == 0:
        text = f"even {failing:.3g}x of today's load misses the SLO"
    elif found["load"] is None:
        text = "how much load keeps the SLO cannot be told"
        if failing is not None:
            text += f", but that {failing:.3g}x of today's does not"
    else:
        text = f"up to {found['load']:.3g}x of today's{_under_way(found)} keeps the SLO"
        if failing is not None:
            text += f", {failing:.3g}x does not"
    return f"{text} ({share} of requests inside)"


def _kept_briefly(found: Document) -> list[str]:
    if found["kept_briefly"] is None:
        return []
    return [f"{found['kept_briefly']:.3g}x does here, but {found['reason']}"]


def _under_way(found: Document) -> str:
    """A load in a closed loop as the number of requests that it is."""
    number = found["max_concurrency"]
    return "" if number is None else f", {format_number_of(number, 'request')} at a time,"


def _knob(name: str, evidence: Document) -> str:
    value, current = evidence["advised"], evidence["current"]
    head = (
        f"{shown(value)} stays"
        if value == current
        else f"{shown(current)} -> {shown(value)}"
    )
    known = known_of(name, evidence["advised"], evidence["facts"])
    reason = evidence["why"] or ""
    value_of_reason = f"{reason.partition(' would give ')[0]} trades "
    said = [reason, *(each for each in known if not each.startswith(value_of_reason))]
    said = [each for each in said if each]
    return f"{head}: {'; '.join(said)}" if said else head


def _print_end(screen: "Screen", document: Document, answer: "Answer") -> None:
    replays = format_number_of(document["replays"], "replay")
    text = f"{replays} in {document['wall_s']:.0f} s"
    if not document["complete"]:
        text += "; stopped: the best so far, nothing was checked elsewhere"
    screen.aside(text)
