"""The screen of ``blockbench tune``: the line, the gain, and why."""

from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_number_of, format_share
from bench_cli.run_screen import config_line, trace_line
from bench_cli.tune_words import figure, shown

if TYPE_CHECKING:
    from bench_cli.console import Screen
    from bench_cli.tune_question import Asked
    from harness.tuning.tuner import Answer

Document = dict[str, Any]


def print_tuning(document: Document, asked: "Asked", answer: "Answer") -> None:
    """Print the line that starts vLLM, what it gains, and why."""
    from bench_cli.console import Screen

    screen = Screen()
    run = answer.start.run
    assert run is not None, "the start is replayed to its end"
    screen.spread(trace_line({"trace": dict(run.info.trace)}), "simulated")
    screen.line(f"now: {config_line(dict(run.info.config))}")
    screen.line()
    screen.line(document["command"], "bold")
    screen.line()
    screen.facts(_facts(document, asked, answer))
    screen.line()
    for unknown in document["unknowns"]:
        screen.aside(f"does not know: {unknown}")
    _print_end(screen, document, answer)


def _facts(document: Document, asked: "Asked", answer: "Answer") -> list[tuple[str, str]]:
    facts = [("advice", _advice(document, answer))]
    facts.append((_objective(document), _gain(document)))
    if document["robustness"]:
        facts.append(("elsewhere", _elsewhere(document)))
    if document["headroom"] is not None:
        facts.append(("load", _load(document)))
    for name, evidence in document["evidence"].items():
        facts.append((name, _knob(evidence)))
    return facts


def _objective(document: Document) -> str:
    return {
        "goodput": "inside the SLO",
        "throughput": "throughput",
        "ttft": "TTFT mean",
        "tpot": "TPOT mean",
    }[document["objective"]]


def _advice(document: Document, answer: "Answer") -> str:
    if document["keep"]:
        tried = format_number_of(document["trials"], "setting")
        return f"keep what you have: of {tried} none does better by what counts"
    changes = [
        f"{name} {shown(change['from'])} -> {shown(change['to'])}"
        for name, change in document["changes"].items()
    ]
    return ", ".join(changes)


def _gain(document: Document) -> str:
    parts = []
    for key, whose in (("over_current", "now"), ("over_default", "vLLM's defaults")):
        gain = document["gain"][key]
        if gain is None or (key == "over_default" and _is_same(document)):
            continue
        base, value = (figure(gain["metric"], v) for v in gain["values"])
        parts.append(f"{base} -> {value} ({_change(gain)}) against {whose}")
    return "\n".join(parts)


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
        verdict = "WORSE" if check["is_harmful"] else ""
        if check["holds"] is None:
            verdict = "no difference"
        parts.append(
            f"{check['name']} {base} -> {value}" + (f" {verdict}" if verdict else "")
        )
    return " · ".join(parts)


def _load(document: Document) -> str:
    found, replicas = document["headroom"], document["replicas"]
    share = format_share(found["share_inside_slo"])
    if found["load"] == 0:
        text = f"even {found['first_failing']:g}x of today's load misses the SLO"
    else:
        text = f"up to {found['load']:g}x of today's keeps the SLO"
        if found["first_failing"] is not None:
            text += f", {found['first_failing']:g}x does not"
    text += f" ({share} of requests inside)"
    if replicas is not None and replicas > 1:
        text += f"; today's load needs {replicas} replicas"
    elif replicas is None:
        text += "; no number of replicas tried serves today's load"
    return text


def _knob(evidence: Document) -> str:
    value, current = evidence["advised"], evidence["current"]
    head = (
        f"{shown(value)} stays"
        if value == current
        else f"{shown(current)} -> {shown(value)}"
    )
    return f"{head}: {evidence['why']}" if evidence["why"] else head


def _print_end(screen: "Screen", document: Document, answer: "Answer") -> None:
    replays = format_number_of(document["replays"], "replay")
    text = f"{replays} in {document['wall_s']:.0f} s"
    if not document["complete"]:
        text += "; stopped: the best so far, nothing was checked elsewhere"
    screen.aside(text)
