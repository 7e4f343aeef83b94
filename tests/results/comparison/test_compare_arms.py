"""Tests for :mod:`results.comparison.comparison`, on replays."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.traces import open_trace
from results.columns import Columns
from results.comparison.arm import Arm, ArmRun
from results.comparison.comparison import Comparison, compare_arms
from results.comparison.metric import METRICS, metric_named
from results.comparison.verdict import Evidence, Verdict
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo
from results.summary import TRACE_KEYS

CHAT = Path(__file__).resolve().parents[3] / "examples" / "chat_1000.jsonl"


@cache
def replayed(name: str, **knobs: Any) -> Arm:
    """The bundled trace in a small pool."""
    trace = open_trace(CHAT)
    defaults: dict[str, Any] = {
        "policy": "v0",
        "num_gpu_blocks_override": 2000,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 4096,
    }
    config = resolve_config(
        model="Llama-3.1-8B", gpu="H100-80GB", max_model_len=4096, **(defaults | knobs)
    )
    result = replay(trace, config)
    info = RunInfo(
        source="simulated",
        engine="sim",
        policy=config.policy,
        config=config.to_dict(),
        trace={key: getattr(trace, key, len(trace)) for key in TRACE_KEYS},
        outcome=result.outcome,
    )
    run = ArmRun.of(
        info,
        Columns.of(RequestRecord, result.requests),
        Columns.of(StepRecord, result.steps),
    )
    return Arm(name=name, config=info.config, runs=[run])


@pytest.fixture
def compared() -> Comparison:
    """Return prefix caching off and on, and an arm that could not start."""
    broken = Arm(name="broken", config={}, error="block_size must be a multiple of 8")
    off = replayed("off", enable_prefix_caching=False)
    on = replayed("on", enable_prefix_caching=True)
    extra = [m for name in ("ttft_p99.9", "ttft_p50") if (m := metric_named(name))]
    return compare_arms(off, [on, broken], extra)


def test_an_arm_is_told_from_cause_to_effect(compared: Comparison) -> None:
    """Caching saves prefill, which is all that differs, down to the queue and TTFT."""
    on = compared.arms[0]

    assert on.differs == ["enable_prefix_caching"]
    assert on.is_cause_known
    assert on.verdict is Verdict.BETTER
    assert on.reason.startswith("hits save ")
    names = [link.metric.name for link in on.chains[0].links]
    assert names[:2] == ["hit_tokens", "prefill_tokens"]
    (ttft,) = [r for r in on.metrics if r.metric.name == "ttft_mean"]
    assert ttft.evidence is Evidence.REQUESTS
    assert ttft.verdict is Verdict.BETTER


def test_the_split_is_of_the_e2e_that_is_shown(compared: Comparison) -> None:
    """Where all requests finish in both, its parts add up to the metric's difference."""
    on = compared.arms[0]
    (e2e,) = [r for r in on.metrics if r.metric.name == "e2e_mean"]

    assert on.split is not None
    parts = on.split.queue_s, on.split.prefill_s, on.split.decode_s
    assert e2e.difference is not None
    assert np.sum(parts) == pytest.approx(e2e.difference)


def test_an_arm_that_could_not_start_says_why(compared: Comparison) -> None:
    """It has no metrics, and leaves the others alone."""
    broken = compared.arms[1]

    assert broken.verdict is Verdict.NOT_TESTED
    assert broken.reason == "it could not start: block_size must be a multiple of 8"
    assert (broken.metrics, broken.chains, broken.split) == ((), (), None)


def test_metrics_asked_for_come_last_and_once(compared: Comparison) -> None:
    """One that is compared anyway is not told twice."""
    names = [result.metric.name for result in compared.arms[0].metrics]

    assert names[-1] == "ttft_p99.9"
    assert len(set(names)) == len(names)
    assert names[:-1] == [metric.name for metric in METRICS if metric.name in names]


def test_equal_arms_differ_in_nothing() -> None:
    """The same replay twice: no knob, no metric, no chain, and a split of zeros."""
    off = replayed("off", enable_prefix_caching=False)

    (again,) = compare_arms(off, [off]).arms

    assert again.differs == []
    assert again.verdict is Verdict.SAME
    assert again.reason == "no outcome differs by more than chance or 1 %"
    assert not any(result.is_judged for result in again.metrics)
    assert again.chains == []
    assert not again.is_cause_known
