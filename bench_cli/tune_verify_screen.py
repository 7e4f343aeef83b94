"""What ``tune --verify`` prints below the advice."""

from typing import TYPE_CHECKING, Any

from bench_cli.quantity import format_duration, format_figure, format_number_of
from bench_cli.tune_verify_document import BLOCKS, FIGURES, spoken
from bench_cli.tune_words import figure

if TYPE_CHECKING:
    from bench_cli.console import Screen

Document = dict[str, Any]

LABELS = {"current": "now", "advised": "advised"}


def print_verification(document: Document) -> None:
    """Print what was measured beside what was simulated."""
    from bench_cli.console import Screen
    from bench_cli.run_screen import print_findings

    screen = Screen()
    screen.line()
    if document["not_run"] is not None:
        screen.line(f"not verified: {document['not_run']}", "bold")
        return
    screen.spread(_head(document), "measured")
    if any(side["num_runs"] for side in document["sides"].values()):
        _print_table(screen, document)
        screen.facts(_facts(document))
        screen.line()
    print_findings(screen, document["findings"])
    for note in document["notes"]:
        screen.aside(note)
    screen.aside(f"measured in {format_duration(document['wall_s'])}")


def _head(document: Document) -> str:
    asked = document["requests"]
    number, total = asked["num_requests"], asked["num_in_trace"]
    runs = [n for side in document["sides"].values() if (n := side["num_runs"])]
    where = {"vllm": "vLLM", "server": "the server"}[document["engine"]]
    if on := spoken(document["hardware"]["measured"]):
        where += f" on {on}"
    text = f"verified on {where}: {number:,} of {format_number_of(total, 'request')}"
    if not runs:
        return f"{text}, no run came to its end"
    if len(set(runs)) == 1 and len(runs) > 1:
        return f"{text}, {format_number_of(runs[0], 'run')} each"
    return f"{text}, {' and '.join(format_number_of(n, 'run') for n in runs)}"


def _print_table(screen: "Screen", document: Document) -> None:
    from results.comparison.metric import metric_named

    sides = {n: side for n, side in document["sides"].items() if side["num_runs"]}
    header = [""]
    for name in sides:
        header += [f"{LABELS[name]}: simulated", "measured"]
    rows = []
    for name in (*FIGURES, BLOCKS):
        found = [side["figures"].get(name) for side in sides.values()]
        if not any(found):
            continue
        metric = metric_named(name)
        cells = [cell for each in found for cell in _cells(each)]
        rows.append(["blocks" if metric is None else metric.label, *cells])
    screen.table(header, rows)


def _cells(each: Document | None) -> list[str]:
    if each is None:
        return ["n/a", "n/a"]
    simulated, measured = (
        format_figure(each[name], each["unit"]) for name in ("simulated", "measured")
    )
    bounds = [format_figure(each[name], each["unit"]) for name in ("least", "most")]
    if bounds[0] != bounds[1]:
        measured += f" ({' to '.join(bounds)})"
    return [simulated, measured]


def _facts(document: Document) -> list[tuple[str, str]]:
    facts = []
    gains = document["gain"]
    if gains["simulated"] is not None:
        parts = [f"simulated {_gain(gains['simulated'])}"]
        if gains["measured"] is not None:
            parts.append(f"measured {_gain(gains['measured'])}")
        facts.append(("gain", "\n".join(parts)))
    if (server := document["server"]) is not None:
        facts.append(("settings", _server(document, server)))
    if document["engine"] == "vllm":
        said = {True: "yes", False: "no", None: "not decided"}[document["is_confirmed"]]
        facts.append(("confirmed", f"{said}: {document['reason']}"))
    return facts


def _gain(gain: Document) -> str:
    name = gain["metric"]
    values = " -> ".join(figure(name, value) for value in gain["values"])
    text = f"{values} ({_change(gain)})" if gain["difference"] is not None else values
    return f"{text}: {gain['verdict']}"


def _change(gain: Document) -> str:
    """The change, and the interval where there is one, in percent or in points."""
    is_share = gain["metric"] == "goodput_fraction"
    scale = 100.0 if is_share else 100 / abs(gain["values"][0] or 1.0)
    change = f"{gain['difference'] * scale:+.1f} {'points' if is_share else '%'}"
    if gain["interval"] is None:
        return change
    low, high = (bound * scale for bound in gain["interval"])
    return f"{change}, {low:+.1f} to {high:+.1f}"


def _server(document: Document, server: Document) -> str:
    whose = {"current": "the present ones", "advised": "the advised ones"}
    beside = whose[server["beside"]]
    text = f"{beside}: {server['reason']}"
    if server["settings"] is None:
        text = f"set beside {beside}: {server['reason']}"
    if server["restart"] is not None:
        others = [name for name in document["sides"] if name != server["beside"]]
        text += f"\n{whose[others[0]]} need a restart: {server['restart']}"
    return text
