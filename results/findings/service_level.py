"""Which limits of ``--slo`` were missed, and what would meet them."""

import numpy as np

from results.columns import computing_ns
from results.findings.finding import Finding
from results.findings.place import waited_for
from results.findings.run_view import RunView, percent
from results.goodput import Slo, count_good, judge_conditions
from results.latency import request_latency
from results.measured import NotMeasuredError, if_measured
from results.naming import seconds
from results.statistics import NS_PER_S

MIN_INSIDE = 0.9
"""Share of requests inside the limits, above which there is nothing to say."""

SEES_MORE = "blockbench run --engine vllm sees which of them"
"""Where a server does not show what requests wait for."""


def find_service_level(run: RunView) -> list[Finding]:
    """Limits that many requests missed, and conditions that the run did not meet."""
    if run.info.slo is None or not run.is_admitted.any():
        return []
    slo = Slo.from_dict(run.info.slo)
    missed = {**_missed_limits(run, slo), **_missed_conditions(run, slo)}
    if not missed:
        return []
    return [
        Finding(
            code="slo_missed",
            severity="warning",
            message=f"{_inside(run, slo)}{'; '.join(missed.values())}",
            advice="; ".join(dict.fromkeys(_remedy(run, slo, name) for name in missed)),
        )
    ]


def _inside(run: RunView, slo: Slo) -> str:
    if not list(slo.limits()):
        return ""
    inside = count_good(run.requests, slo) / run.info.trace["num_requests"]
    return f"{percent(inside)} of requests were inside the SLO: "


def _missed_limits(run: RunView, slo: Slo) -> dict[str, str]:
    """What missed each limit of a single request, if all in all too many did."""
    num_requests = run.info.trace["num_requests"]
    if count_good(run.requests, slo) >= MIN_INSIDE * num_requests:
        return {}
    latency = request_latency(run.requests)
    missed = {}
    for name, limit in slo.limits():
        values = getattr(latency, name)
        if num_missed := int((values > limit).sum()):
            metric = name.removesuffix("_s")
            median = float(np.nanmedian(values))
            missed[metric] = (
                f"{num_missed:,} missed {metric} of {seconds(limit)}, the median was"
                f" {seconds(median)}"
            )
    if num_unfinished := num_requests - len(latency.e2e_s):
        missed["finish"] = f"{num_unfinished:,} did not finish"
    return missed


def _missed_conditions(run: RunView, slo: Slo) -> dict[str, str]:
    judged = judge_conditions(run.requests, run.steps, slo)
    return {
        c["name"]: f"{c['name']} was {seconds(c['value_s'])}, not {seconds(c['limit_s'])}"
        for c in judged
        if c["met"] is False
    }


def _remedy(run: RunView, slo: Slo, name: str) -> str:
    """What brings a metric down: places for the first token, fewer sequences after it."""
    metric = name.split("_")[0]
    if metric == "finish":
        return "let requests finish: the findings above say what stopped them"
    if metric in ("tpot", "itl"):
        fewer = if_measured(lambda: _fewer_in_a_step(run, slo, metric))
        return fewer or f"a lower --max-num-seqs, or a faster GPU; {SEES_MORE}"
    return if_measured(lambda: _sooner(run)) or (
        f"--max-num-seqs or more blocks if they waited, else a faster GPU; {SEES_MORE}"
    )


def _sooner(run: RunView) -> str:
    """What requests waited for, or a faster GPU where they did not wait."""
    latency = request_latency(run.requests)
    if "queue_s" in latency.unmeasured:
        raise NotMeasuredError("queue_s")
    is_queue = latency.queue_s.sum() >= latency.ttft_s.sum() / 2
    place = waited_for(run, float(latency.queue_s.sum())) if is_queue else None
    if place:
        return f"they waited for {place[0]}: {place[1]}"
    return "--tensor-parallel-size or a faster GPU"


def _fewer_in_a_step(run: RunView, slo: Slo, metric: str) -> str:
    """The most sequences with which every step that only decoded was inside the limit."""
    limits = {c.metric: c.limit_s for c in slo.conditions} | {
        name.removesuffix("_s"): limit for name, limit in slo.limits()
    }
    steps, seqs = run.steps, run.steps["num_decode_seqs"]
    decodes = (steps["num_prefill_seqs"] == 0) & (seqs > 0)
    step_s = computing_ns(steps)[decodes] / steps["num_steps"][decodes] / NS_PER_S
    too_many = seqs[decodes][step_s > limits[metric]].min(initial=np.inf)
    inside = seqs[decodes & (seqs < too_many)]
    if not len(inside) or too_many == np.inf:
        return f"a faster GPU, or prompts computed in {_smaller_chunks(run)}"
    return (
        f"--max-num-seqs {int(inside.max())}: no step of so few that only decoded"
        f" exceeded {metric}"
    )


def _smaller_chunks(run: RunView) -> str:
    """Chunks, with the flag where it needs no other one."""
    limit = run.knob("max_num_batched_tokens")
    is_v1 = run.is_v1 and run.knob("enable_chunked_prefill")
    flag = f" (--max-num-batched-tokens below {limit})" if is_v1 else ""
    return f"smaller chunks{flag}"
