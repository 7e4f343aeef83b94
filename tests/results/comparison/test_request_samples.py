"""Tests for :mod:`results.comparison.samples`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.config import resolve_config
from harness.replay import RunResult, replay
from harness.request import Request
from harness.traces import open_trace
from harness.workload import Workload
from results.columns import Columns
from results.comparison.samples import RequestSamples
from results.goodput import Slo, count_good
from results.record import RequestRecord, StepRecord

CHAT = Path(__file__).resolve().parents[3] / "examples" / "chat_1000.jsonl"

MakeRequest = Callable[..., RequestRecord]
Serve = Callable[..., list[RequestRecord]]


def samples(
    records: list[RequestRecord], num_requests: int | None = None, slo: Slo | None = None
) -> RequestSamples:
    """What the records say of a trace of so many requests."""
    whole = len(records) if num_requests is None else num_requests
    return RequestSamples.of(Columns.of(RequestRecord, records), whole, slo)


def test_latencies_are_those_of_each_request(serve: Serve) -> None:
    """Queue, first token, tokens after it and the end are seconds, request by request."""
    values = samples(serve([1.0, 3.0], decode_s=2.0)).values

    assert values["queue"] == pytest.approx([0.5, 1.5])
    assert values["ttft"] == pytest.approx([1.0, 3.0])
    assert values["tpot"] == pytest.approx([0.5, 0.5])
    assert values["e2e"] == pytest.approx([3.0, 5.0])
    assert values["finished"].tolist() == [1.0, 1.0]


def test_a_request_that_did_not_finish_has_no_latency(serve: Serve) -> None:
    """It counts as not finished, and its latencies are NaN, never 0."""
    found = samples(serve([1.0, None, 3.0]))

    assert found.values["finished"].tolist() == [1.0, 0.0, 1.0]
    for name in ("ttft", "tpot", "e2e", "queue"):
        assert np.isnan(found.values[name]).tolist() == [False, True, False]


def test_an_output_of_one_token_has_no_tpot(make_request: MakeRequest) -> None:
    """It finished and has a TTFT, but no time between tokens."""
    values = samples([make_request(num_output_tokens=1, max_sample_tokens=1)]).values

    assert np.isnan(values["tpot"]).all()
    assert values["ttft"].tolist() == [2.0]


def test_values_stand_where_the_trace_has_the_request(serve: Serve) -> None:
    """Rows in another order, or some that a killed run lacks, change no place."""
    records = serve([1.0, 2.0, 3.0, 4.0])

    found = samples([records[3], records[1]], num_requests=5)

    assert found.num_requests == 5
    assert found.values["ttft"] == pytest.approx(
        [np.nan, 2.0, np.nan, 4.0, np.nan], nan_ok=True
    )
    assert found.values["finished"].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_recomputation_and_preemptions_are_counted(make_request: MakeRequest) -> None:
    """Each request has its own; who was never admitted has none."""
    values = samples(
        [
            make_request(request_id=0, num_cached_tokens=32),
            make_request(request_id=1, num_recomputed_tokens=70, num_preemptions=2),
        ]
    ).values

    assert values["recomputed_tokens"].tolist() == [0.0, 70.0]
    assert values["preemptions"].tolist() == [0.0, 2.0]


def test_good_is_what_goodput_counts(serve: Serve) -> None:
    """A limit met exactly is met; what did not finish is not good."""
    records = serve([1.0, None, 3.0, 3.1])
    slo = Slo(ttft_s=3.0)

    good = samples(records, slo=slo).values["good"]

    assert good.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert good.sum() == count_good(Columns.of(RequestRecord, records), slo)


def test_without_limits_nothing_is_good_or_bad(serve: Serve) -> None:
    """Where no SLO was set there is no such sample."""
    assert "good" not in samples(serve([1.0])).values


def groups(num_samples: int) -> Workload:
    """Ten bursts of eight requests that begin alike; every third has more samples."""
    requests = [
        Request(
            request_id=i,
            arrival_ns=i // 8 * 10**9,
            prompt=((1 + i // 8, 300), (100 + i, 50)),
            num_prompt_tokens=350,
            outputs=tuple(
                (1000 + 10 * i + k, 200) for k in range(1 if i % 3 else num_samples)
            ),
        )
        for i in range(80)
    ]
    return Workload.from_requests(requests)


def replayed(workload: Workload, policy: str, num_gpu_blocks: int) -> RunResult:
    """What a pool with prefix caching does to the requests."""
    config = resolve_config(
        model="Llama-3.1-8B",
        gpu="H100-80GB",
        max_model_len=4096,
        enable_prefix_caching=True,
        policy=policy,
        num_gpu_blocks_override=num_gpu_blocks,
    )
    return replay(workload, config)


@pytest.mark.parametrize(
    ("workload", "policy", "num_gpu_blocks"),
    [
        (open_trace(CHAT), "v0", 700),
        (groups(num_samples=2), "v0", 100),
        (groups(num_samples=1), "v1", 80),
    ],
    ids=["chat v0", "groups v0", "groups v1"],
)
def test_counts_of_requests_are_those_of_steps(
    workload: Workload, policy: str, num_gpu_blocks: int
) -> None:
    """Recomputed tokens and preemptions sum up to what steps have, under pressure too."""
    result = replayed(workload, policy, num_gpu_blocks)
    steps = Columns.of(StepRecord, result.steps)

    values = samples(list(result.requests)).values

    num_preempted = steps.total("num_preempted_recompute")
    num_preempted += steps.total("num_preempted_swap")
    assert values["finished"].all()
    assert num_preempted > 0
    assert values["recomputed_tokens"].sum() == steps.total("num_recomputed_tokens")
    assert values["preemptions"].sum() == num_preempted
