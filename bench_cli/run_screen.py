"""What a person sees of a run: a few lines that say what, on what, and how it went."""

from collections.abc import Sequence
from typing import Any

from bench_cli.console import Screen, join, sparkline
from bench_cli.knob_words import engine_of, is_chunked, types_of, v1_knobs
from bench_cli.measured_screen import print_measurement
from bench_cli.quantity import (
    format_count,
    format_duration,
    format_number_of,
    format_share,
    format_thousands,
)
from results.kv_usage import num_usable_blocks

Document = dict[str, Any]

GIB = 2**30
_SIGNS = {"error": ("x", "bold red"), "warning": ("!", "yellow"), "info": ("-", "")}


def print_run(screen: Screen, document: Document, usage: Sequence[float]) -> None:
    """Print the screen of one run.

    Args:
        screen: Where to.
        document: The summary document, with all that is known of the trace, and the
            run's ``ending``.
        usage: Mean KV-cache usage in equal parts of the run.
    """
    screen.spread(trace_line(document), document["source"])
    screen.line(config_line(document["config"]))
    if document.get("measurement") is not None:
        print_measurement(screen, document["measurement"])
    for note in (*document["trace"]["notes"], *document["config"].get("notes", ())):
        screen.aside(note)
    screen.line()
    rows = [
        ("requests", _requests(document)),
        ("KV cache", _kv_cache(document, usage)),
        ("pressure", _pressure(document)),
        ("prefix", _prefix(document)),
        ("offload", _offload(document)),
        ("latency", _latency(document, screen.console.width)),
        ("throughput", _throughput(document)),
    ]
    screen.facts([(label, content) for label, content in rows if content])
    if document["source"] == "simulated":
        screen.aside(step_times_line(document["config"].get("step_time_error")))
    screen.line()
    print_findings(screen, document["findings"])


def step_times_line(error: dict[str, Any] | None) -> str:
    """How far simulated times may be off."""
    if error is None:
        return "step times: a model; no server of this kind was compared with it"
    ttft = error.get("ttft_fraction")
    of_ttft = "" if ttft is None else f" and {format_share(ttft)} in TTFT"
    return (
        f"step times: a model, {format_share(error['fraction'])} off in TPOT{of_ttft},"
        f" median over {format_number_of(error['num_rows'], 'row')}: {error['against']}"
    )


def print_findings(screen: Screen, findings: Sequence[dict[str, str]]) -> None:
    """Print a paragraph a finding, its code at the end, and its remedy."""
    for finding in findings:
        sign, style = _SIGNS[finding["severity"]]
        screen.line(f"{sign} {finding['message']}  [{finding['code']}]", style)
        if finding["advice"]:
            screen.aside(f"-> {finding['advice']}", style="")
        screen.line()


def trace_line(document: Document) -> str:
    """What was replayed."""
    trace = document["trace"]
    skipped = trace["num_skipped"]
    is_known = trace["has_sharing"] or trace.get("is_observed")
    return join(
        trace["name"],
        trace["format"],
        f"{format_number_of(trace['num_requests'], 'request')}"
        f" over {format_duration(trace['duration_s'])}",
        "generated" if trace.get("is_generated") else "",
        f"{format_number_of(skipped, 'bad row')} skipped" if skipped else "",
        "" if is_known else "does not say which prompts begin alike",
    )


def config_line(config: Document) -> str:
    """On what it was replayed: model, GPU, version, and the knobs that matter."""
    gpus = config.get("tensor_parallel_size") or 1
    utilization = config.get("gpu_memory_utilization")
    swap, tier = config.get("swap_space"), config.get("kv_offloading_size")
    chunk = config.get("max_num_batched_tokens")
    block, caching = config["block_size"], config["enable_prefix_caching"]
    return join(
        engine_of(config, gpus),
        *types_of(config),
        f"utilization {utilization:.2f}" if utilization is not None else "",
        f"block {block}" if block is not None else "",
        f"swap {swap:g} GiB" if swap is not None else "",
        f"offloading {tier:g} GiB" if tier else "",
        f"prefix caching {'on' if caching else 'off'}" if caching is not None else "",
        f"chunks of {chunk:,} tokens" if chunk and is_chunked(config) else "",
        *(v1_knobs(config) if config["policy"] == "v1" else ()),
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
    idle = kv_cache["mean_cached_idle"]
    if kv_cache["num_gpu_blocks"] is None:
        return "n/a (nobody said how many blocks there are)"
    return "   ".join(
        part
        for part in [
            _size(document),
            f"peak {format_share(kv_cache['peak_usage'])}",
            f"mean {format_share(kv_cache['mean_usage'])}",
            f"cached idle {format_share(idle)}" if idle is not None else "",
            sparkline(usage),
        ]
        if part
    )


def _size(document: Document) -> str:
    """How many blocks, and how many tokens they hold."""
    kv_cache, config = document["kv_cache"], document["config"]
    size = format_number_of(kv_cache["num_gpu_blocks"], "block")
    if kv_cache["block_size"] is None:
        return size
    num_usable = num_usable_blocks(kv_cache["num_gpu_blocks"], config["policy"])
    tokens = format_thousands(num_usable * kv_cache["block_size"])
    is_estimated = config.get("source_of_num_gpu_blocks") == "estimated"
    return f"{size} ({tokens} tokens{', estimated' if is_estimated else ''})"


def _pressure(document: Document) -> str:
    """What was preempted, and the time that went into it and into waiting for copies."""
    counts, waste = document["counts"], document["waste"]
    if counts["preemptions"] is None:
        return "n/a (preemptions were not counted)"
    has_swaps = counts["swap_preemptions"] is not None
    what = _swapped(counts) if has_swaps else _recomputed(counts)
    doing = "swapping" if has_swaps else "waiting for forced stores"
    return join(
        *what,
        _lost_time(waste["recompute_time_share"] or 0.0, "recomputing"),
        _lost_time(waste["swap_time_share"] or 0.0, doing),
    )


def _recomputed(counts: Document) -> list[str]:
    """The preemptions of an engine that does not swap."""
    total = counts["preemptions"]
    how = "recomputed" if total == 1 else "all recomputed"
    number = format_number_of(total, "preemption")
    return [f"{number}, {how}" if total else "no preemptions"]


def _swapped(counts: Document) -> list[str]:
    """Preemptions of both kinds, and blocks that were copied for them and for others."""
    copies = f"{format_count(counts['copy_on_write'])} copy-on-write"
    total = counts["preemptions"]
    if not total:
        return ["no preemptions", copies]
    recomputed = format_count(counts["recompute_preemptions"])
    swapped = format_count(counts["swap_preemptions"])
    out, back = counts["swap_out_blocks"], counts["swap_in_blocks"]
    moved = f"{format_count(out)} blocks out, {format_count(back)} in"
    return [
        f"{format_number_of(total, 'preemption')}: {recomputed} recomputed,"
        f" {swapped} swapped",
        moved if out or back else "",
        copies,
    ]


def _lost_time(share: float, doing: str) -> str:
    return f"{format_share(share)} of the time {doing}" if share >= 0.0005 else ""


def _prefix(document: Document) -> str:
    prefix = document["prefix_cache"]
    if document["config"]["enable_prefix_caching"] is False:
        return "n/a (prefix caching is off)"
    if prefix["query_tokens"] is None:
        return f"n/a ({_why_no_hits(document)})"
    again, query = prefix["recompute_hit_tokens"], prefix["query_tokens"]
    return join(
        f"{format_share(prefix['hit_rate'])} of prompt tokens were hits",
        _raw_hits(prefix) if document["source"] == "measured" else "",
        f"{format_share(again / query)} more on recomputation" if again else "",
        _evictions(document),
    )


def _why_no_hits(document: Document) -> str:
    trace = document["trace"]
    if trace["has_sharing"] or trace.get("is_observed"):
        return "hits were not measured"
    return "the trace does not say which prompts begin alike"


def _raw_hits(prefix: Document) -> str:
    """What was counted, beside the ratio: counters of some versions have their faults."""
    return (
        f"{format_count(prefix['hit_tokens'])} of {format_count(prefix['query_tokens'])}"
    )


def _evictions(document: Document) -> str:
    evictions = document["counts"]["evictions"]
    regretted = document["waste"]["regretted_evictions"]
    if not evictions:
        return ""
    if regretted is None:
        return f"{evictions:,} evictions"
    return f"{evictions:,} evictions, {regretted:,} regretted"


def _offload(document: Document) -> str:
    """What a tier took and gave; "" without one."""
    counts, kv_cache = document["counts"], document["kv_cache"]
    copied = [counts[f"offload_{name}_bytes"] for name in ("store", "load")]
    if copied == [None, None]:
        return ""
    stored, loaded = (_gib(num_bytes) for num_bytes in copied)
    evictions, peak = counts["offload_evictions"], kv_cache["peak_cpu_blocks"]
    return join(
        f"{stored} stored, {loaded} loaded",
        _offload_hits(document["prefix_cache"]),
        f"{peak:,} of {kv_cache['num_cpu_blocks']:,} CPU blocks used" if peak else "",
        f"{format_number_of(evictions, 'eviction')}" if evictions else "",
    )


def _gib(num_bytes: int | None) -> str:
    return "n/a" if num_bytes is None else f"{num_bytes / GIB:,.1f} GiB"


def _offload_hits(prefix: Document) -> str:
    """The part of the prompt tokens that came from the tier, where that is known."""
    hits, query = prefix["offload_hit_tokens"], prefix["query_tokens"]
    if not query or hits is None:
        return ""
    return f"{format_share(hits / query)} of prompt tokens from there"


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
