"""Our policy decides the same where it is given the same moments, and says where not."""

from dataclasses import replace
from typing import Any

import pytest

from harness.arrivals import OpenLoop
from harness.config import EngineConfig, resolve_config
from harness.engine import Engine
from harness.recorder import Recorder
from harness.replay import build_executor, build_scheduler
from harness.request import Request
from harness.vllm_engine.beside_sim import beside_sim, can_run_beside
from harness.vllm_engine.measured_run import MeasuredRun
from harness.workload import Workload
from results.measured import Measurement
from results.rows import Rows
from results.run_info import Outcome


def workload() -> Workload:
    """Requests that share and come too fast for the pool."""
    requests = [
        Request(
            request_id=number,
            arrival_ns=number * 4_000_000,
            prompt=((number % 3, 64), (10 + number, 20 + number)),
            num_prompt_tokens=84 + number,
            outputs=tuple((100 + 2 * number + k, 60) for k in range(1 + number % 2)),
        )
        for number in range(16)
    ]
    return Workload.from_requests(requests)


def config(**knobs: Any) -> EngineConfig:
    """A small pool."""
    return resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        vllm_version="0.32.0",
        num_gpu_blocks_override=40,
        max_model_len=512,
        **{"async_scheduling": False} | knobs,
    )


def as_measured(work: Workload, engine: EngineConfig) -> MeasuredRun:
    """A simulation in the form of a measurement: each step has a row."""
    scheduler = build_scheduler(engine)
    recorder = Recorder(scheduler, block_size=16)
    Engine(
        OpenLoop(work), scheduler, build_executor(engine), recorder, can_repeat=False
    ).run()
    return MeasuredRun(
        requests=recorder.requests,
        steps=recorder.steps,
        outcome=Outcome(),
        wall_s=1.0,
        measurement=Measurement(),
    )


def test_the_same_moments_give_the_same_decisions() -> None:
    """Whatever the times of steps are, and with preemptions."""
    engine = config()
    run = as_measured(workload(), engine)

    beside = beside_sim(workload(), engine.to_dict(), run)

    assert beside.num_compared == beside.num_equal == 16
    assert beside.preemptions[0] == beside.preemptions[1] > 0
    assert beside.hit_tokens[0] == beside.hit_tokens[1] > 0
    assert beside.in_words().endswith(
        f"decides the same for all 16 requests: {beside.hit_tokens[0]:,} hit tokens,"
        f" {beside.preemptions[0]} preemptions"
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_what_differs_is_named_and_explained(is_async: bool) -> None:
    """The first request that differs, both sums, and why that may be."""
    engine = config()
    run = as_measured(workload(), engine)
    other = replace(run.requests[5], num_cached_tokens=7)
    records = [*run.requests[:5], other, *run.requests[6:]]
    run = replace(run, requests=Rows(type(other), records))

    said = beside_sim(
        workload(), engine.to_dict() | {"async_scheduling": is_async}, run
    ).in_words()

    assert "decides otherwise for" in said
    assert ("--no-async-scheduling" in said) is is_async
    if not is_async:
        assert "1 of 16 requests, #5 first" in said


def test_only_v1_without_a_tier_can_be_decided_beside() -> None:
    """What our policy would need is not recorded of the others."""
    known = config().to_dict()

    assert can_run_beside(known)
    assert not can_run_beside(known | {"num_cpu_blocks": 5})
    assert not can_run_beside(known | {"policy": "v0"})
    assert not can_run_beside(known | {"num_gpu_blocks": None})


def test_a_run_in_which_nothing_finished_compares_nothing() -> None:
    """An engine that died at once."""
    engine = config()
    run = replace(
        as_measured(workload(), engine), requests=Rows(type(_any_record(engine)))
    )

    beside = beside_sim(workload(), engine.to_dict(), run)

    assert (beside.num_compared, beside.first_other) == (0, None)


def _any_record(engine: EngineConfig) -> Any:
    return as_measured(workload(), engine).requests[0]
