"""What a person sees of a run: a few lines that say what, on what, and how it went."""

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench_cli.quantity import (
    format_count,
    format_duration,
    format_number_of,
    format_share,
    format_thousands,
)
from bench_cli.streams import printable

Document = dict[str, Any]

WIDTH_WITHOUT_TERMINAL = 110
MIN_WIDTH = 20
"""Below, a terminal does not know its width."""

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.:-=+*#"
_BARS_IN_ASCII = dict(zip(_BARS, _ASCII_BARS, strict=True))
_ASCII = str.maketrans({"·": "|", "µ": "u", "×": "x", **_BARS_IN_ASCII})
_SIGNS = {"error": ("x", "bold red"), "warning": ("!", "yellow"), "info": ("-", "")}
_SPACE_BETWEEN_COLUMNS = 3
_FEWEST_COLUMNS = 1


class Screen:
    """Prints text that the stream's encoding can show, as wide as the terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False, markup=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = WIDTH_WITHOUT_TERMINAL
        self.console.width = max(self.console.width, MIN_WIDTH)

    def text(self, content: str, style: str = "") -> Text:
        """The content, with ASCII in place of our signs where UTF-8 is not spoken.

        What a terminal would obey, as in a trace's note, is shown as an escape.
        """
        content = printable(content)
        if not self.console.encoding.lower().startswith("utf"):
            content = content.translate(_ASCII)
        return Text(content, style=style)

    def line(self, content: str = "", style: str = "") -> None:
        """Print one line, wrapped where the terminal is narrow."""
        self._print(self.text(content, style))

    def aside(self, content: str, style: str = "dim") -> None:
        """Print a paragraph that explains, indented."""
        self._print(Padding(self.text(content, style), (0, 0, 0, 2), expand=False))

    def spread(self, left: str, right: str) -> None:
        """Print one line with something at its right end."""
        grid = Table.grid(expand=True, padding=(0, 2))
        grid.add_column()
        grid.add_column(justify="right")
        grid.add_row(self.text(left), self.text(right, "bold"))
        self._print(grid)

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print labels and what belongs to them."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", min_width=10)
        grid.add_column()
        for label, content in rows:
            grid.add_row(self.text(label), self.text(content))
        self._print(grid)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table.

        Where the terminal is narrow, the last columns are left out and named below, and
        cells wrap when that is not enough.
        """
        shown = self._num_fitting(headers, rows)
        table = Table(box=SIMPLE, pad_edge=False)
        for header in headers[:shown]:
            table.add_column(self.text(header), overflow="fold")
        for row in rows:
            table.add_row(*(self.text(cell) for cell in row[:shown]))
        self._print(table)
        if shown < len(headers):
            self.aside(f"too narrow for {', '.join(headers[shown:])}; --json has them")

    def _num_fitting(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        ends = accumulate(width + _SPACE_BETWEEN_COLUMNS for width in widths)
        num_fitting = sum(end <= self.console.width for end in ends)
        return max(num_fitting, min(_FEWEST_COLUMNS, len(headers)))

    def _print(self, content: RenderableType) -> None:
        """Print to a terminal as it is, and elsewhere without spaces at line ends."""
        if self.console.is_terminal:
            self.console.print(content)
            return
        with self.console.capture() as capture:
            self.console.print(content)
        lines = capture.get().splitlines()
        self.console.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def sparkline(shares: Sequence[float]) -> str:
    """One bar a value, from empty at 0 to full at 1."""
    top = len(_BARS) - 1
    return "".join(_BARS[round(min(max(s, 0.0), 1.0) * top)] for s in shares)


def join(*parts: str) -> str:
    """The parts that are not empty, with a dot between."""
    return " · ".join(part for part in parts if part)


def print_run(screen: Screen, document: Document, usage: Sequence[float]) -> None:
    """Print the screen of one run.

    Args:
        screen: Where to.
        document: The summary document, with all that is known of the trace, and the
            run's ``ending``.
        usage: Mean KV-cache usage in equal parts of the run.
    """
    screen.spread(_trace_line(document), document["source"])
    screen.line(_config_line(document["config"]))
    for note in (*document["trace"]["notes"], *document["config"].get("notes", ())):
        screen.aside(note)
    screen.line()
    screen.facts(
        [
            ("requests", _requests(document)),
            ("KV cache", _kv_cache(document, usage)),
            ("pressure", _pressure(document["counts"], document["waste"])),
            ("prefix", _prefix(document)),
            ("latency", _latency(document, screen.console.width)),
            ("throughput", _throughput(document)),
        ]
    )
    error = document["config"].get("step_time_error")
    if error is not None:
        screen.aside(
            f"step times: a model, {format_share(error['fraction'])} off in the median on"
            f" {error['num_rows']} published kernel times; whole engines differ more"
        )
    screen.line()
    print_findings(screen, document["findings"])


def print_findings(screen: Screen, findings: Sequence[dict[str, str]]) -> None:
    """Print a paragraph a finding, its code at the end, and its remedy."""
    for finding in findings:
        sign, style = _SIGNS[finding["severity"]]
        screen.line(f"{sign} {finding['message']}  [{finding['code']}]", style)
        if finding["advice"]:
            screen.aside(f"-> {finding['advice']}", style="")
        screen.line()


def _trace_line(document: Document) -> str:
    trace = document["trace"]
    skipped = trace["num_skipped"]
    return join(
        trace["name"],
        trace["format"],
        f"{format_number_of(trace['num_requests'], 'request')}"
        f" over {format_duration(trace['duration_s'])}",
        "generated" if trace.get("is_generated") else "",
        f"{format_number_of(skipped, 'bad row')} skipped" if skipped else "",
        "" if trace["has_sharing"] else "does not say which prompts begin alike",
    )


def _config_line(config: Document) -> str:
    model = str(config["model"]).rsplit("/", 1)[-1]
    gpus = config.get("tensor_parallel_size", 1)
    where = config["gpu"] if gpus == 1 else f"{gpus} x {config['gpu']}"
    utilization = config.get("gpu_memory_utilization")
    swap, tier = config.get("swap_space"), config.get("kv_offloading_size")
    chunk = config.get("max_num_batched_tokens", 0)
    window = config.get("sliding_window")
    is_fcfs = config.get("scheduling_policy", "fcfs") == "fcfs"
    is_sync = config["policy"] == "v1" and not config.get("async_scheduling")
    return join(
        f"{model} on {where}, as vLLM {config['vllm_version']} ({config['policy']})",
        f"utilization {utilization:.2f}" if utilization is not None else "",
        f"block {config['block_size']}",
        f"swap {swap:g} GiB" if swap is not None else "",
        f"offloading {tier:g} GiB" if tier else "",
        f"prefix caching {'on' if config['enable_prefix_caching'] else 'off'}",
        f"chunks of {chunk:,} tokens" if config["enable_chunked_prefill"] else "",
        f"window of {window:,} tokens" if window else "",
        "" if is_fcfs else f"by {config['scheduling_policy']}",
        "async scheduling off" if is_sync else "",
    )


_ENDINGS = {
    "running": ("not yet", "under way"),
    "interrupted": ("not finished", "interrupted"),
    "killed": ("not finished", "killed"),
}
"""What requests without an end are called, and the run, by how it ended."""


def _requests(document: Document) -> str:
    counts = document["counts"]
    names = ("finished", "rejected", "aborted", "failed")
    failed, ending = _ENDINGS.get(document["ending"], ("failed", "the run broke off"))
    words = dict(zip(names, (*names[:-1], failed), strict=True))
    parts = [f"{counts[n]:,} {words[n]}" for n in names if counts[n] or n == "finished"]
    return join(*parts, "" if document["complete"] else f"INCOMPLETE: {ending}")


def _kv_cache(document: Document, usage: Sequence[float]) -> str:
    kv_cache = document["kv_cache"]
    num_usable = kv_cache["num_gpu_blocks"] - _num_set_aside(document["config"])
    tokens = format_thousands(num_usable * kv_cache["block_size"])
    is_estimated = document["config"].get("source_of_num_gpu_blocks") == "estimated"
    origin = ", estimated" if is_estimated else ""
    idle = kv_cache["mean_cached_idle"]
    return "   ".join(
        part
        for part in [
            f"{format_number_of(kv_cache['num_gpu_blocks'], 'block')} ({tokens}"
            f" tokens{origin})",
            f"peak {format_share(kv_cache['peak_usage'])}",
            f"mean {format_share(kv_cache['mean_usage'])}",
            f"cached idle {format_share(idle)}" if idle is not None else "",
            sparkline(usage),
        ]
        if part
    )


def _num_set_aside(config: Document) -> int:
    """v1 hands out all blocks but block 0."""
    return 1 if config["policy"] == "v1" else 0


def _pressure(counts: Document, waste: Document) -> str:
    copies = f"{format_count(counts['copy_on_write'])} copy-on-write"
    total = counts["preemptions"]
    if not total:
        return join("no preemptions", copies)
    recomputed = format_count(counts["recompute_preemptions"])
    swapped = format_count(counts["swap_preemptions"])
    out, back = counts["swap_out_blocks"], counts["swap_in_blocks"]
    moved = f"{format_count(out)} blocks out, {format_count(back)} in"
    return join(
        f"{format_number_of(total, 'preemption')}: {recomputed} recomputed,"
        f" {swapped} swapped",
        moved if out or back else "",
        copies,
        _lost_time(waste["recompute_time_share"], "recomputing"),
        _lost_time(waste["swap_time_share"], "swapping"),
    )


def _lost_time(share: float, doing: str) -> str:
    return f"{format_share(share)} of the time {doing}" if share >= 0.0005 else ""


def _prefix(document: Document) -> str:
    prefix = document["prefix_cache"]
    if not document["config"]["enable_prefix_caching"]:
        return "n/a (prefix caching is off)"
    if prefix["query_tokens"] is None:
        return "n/a (the trace does not say which prompts begin alike)"
    again, query = prefix["recompute_hit_tokens"], prefix["query_tokens"]
    return join(
        f"{format_share(prefix['hit_rate'])} of prompt tokens were hits",
        f"{format_share(again / query)} more on recomputation" if again else "",
        _evictions(document),
    )


def _evictions(document: Document) -> str:
    evictions = document["counts"]["evictions"]
    regretted = document["waste"]["regretted_evictions"]
    if not evictions:
        return ""
    return f"{evictions:,} evictions, {regretted:,} regretted"


def _latency(document: Document, width: int) -> str:
    latency, parts = document["latency_s"], []
    for metric in ("ttft", "tpot", "e2e"):
        values = (format_duration(latency[metric][p]) for p in ("p50", "p90", "p99"))
        parts.append(f"{metric.upper():<4} {'  '.join(values)}")
    grows = "; the longer the trace, the longer" if document["steady"] is False else ""
    parts[0] += f"   (p50 p90 p99{grows})"
    line = "     ".join(parts)
    return line if len(line) <= width - 14 else "\n".join(parts)


def _throughput(document: Document) -> str:
    rates, goodput = document["throughput"], document["goodput"]
    return join(
        f"{format_count(rates['request_per_s'])} requests/s",
        f"{format_count(rates['output_token_per_s'])} output tokens/s",
        *(_goodput(goodput) if goodput else ()),
    )


def _goodput(goodput: Document) -> list[str]:
    """How many requests were inside their limits, and each condition on the whole run."""
    conditions = [_condition(condition) for condition in goodput["conditions"]]
    if len(goodput["slo"]) == len(conditions):
        return conditions
    return [
        f"{format_share(goodput['fraction'])} of requests inside the SLO",
        *conditions,
    ]


def _condition(condition: Document) -> str:
    verdict = {True: "met", False: "MISSED", None: "n/a"}[condition["met"]]
    return (
        f"{condition['name']} {format_duration(condition['value_s'])}"
        f" ({verdict}, limit {format_duration(condition['limit_s'])})"
    )
