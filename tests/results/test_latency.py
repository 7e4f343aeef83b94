"""Tests for :mod:`results.latency`."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.latency import inter_token_gaps, request_latency
from results.record import RequestRecord, RequestStatus, StepRecord
from results.statistics import summarize_samples

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

S = 1_000_000_000


def test_latencies_are_those_of_bench_serve(make_request: MakeRequest) -> None:
    """TTFT, TPOT, E2E and queue time of one request worked out by hand."""
    latency = request_latency([make_request()])

    assert latency.queue_s.tolist() == [1.0]
    assert latency.ttft_s.tolist() == [2.0]
    assert latency.tpot_s.tolist() == [0.5]
    assert latency.e2e_s.tolist() == [4.0]


def test_one_token_has_no_tpot(make_request: MakeRequest) -> None:
    """An output of one token has no time per later token."""
    single = make_request(num_output_tokens=1, max_sample_tokens=1)

    assert np.isnan(request_latency([single]).tpot_s).all()


def test_parallel_samples_divide_by_the_longest(make_request: MakeRequest) -> None:
    """With n = 3, TPOT divides by the tokens of the longest sample, not by all."""
    parallel = make_request(n=3, num_output_tokens=9, max_sample_tokens=5)

    assert request_latency([parallel]).tpot_s.tolist() == [0.5]


@pytest.mark.parametrize(
    "status", [s for s in RequestStatus if s is not RequestStatus.FINISHED]
)
def test_only_finished_requests_count(
    make_request: MakeRequest, status: RequestStatus
) -> None:
    """A request that did not finish has no part in any latency."""
    latency = request_latency([make_request(status=status)])

    assert len(latency.e2e_s) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(0, 1000),
            st.integers(0, 7),
            st.integers(0, 5),
            st.lists(st.tuples(st.integers(1, 9_999), st.integers(1, 5)), max_size=3),
        ),
        max_size=8,
    )
)
def test_gaps_equal_one_sample_a_token(
    make_step: MakeStep,
    stretches: list[tuple[int, int, int, int, list[tuple[int, int]]]],
) -> None:
    """Weighted gaps of stretches give the percentiles of gaps listed one by one."""
    steps, expanded = [], []
    for num_steps, first, increment, decodes, gaps in stretches:
        last = first + increment * (num_steps - 1)
        step = make_step(
            num_steps=num_steps,
            first_step_ns=first,
            last_step_ns=last,
            num_decode_seqs=decodes,
            gap_ns=[gap for gap, _ in gaps],
            gap_count=[count for _, count in gaps],
        )
        steps.append(step)
        expanded += [gap for gap, count in gaps for _ in range(count)]
        for k in range(1, num_steps):
            expanded += [first + k * increment] * decodes

    summary = summarize_samples(*inter_token_gaps(steps))

    naive = np.array(expanded) / S
    if not expanded:
        assert set(summary.values()) == {None}
        return
    for name in ("p50", "p90", "p95", "p99"):
        assert summary[name] == np.percentile(naive, int(name[1:]))
    assert summary["mean"] == pytest.approx(naive.mean())
    assert summary["max"] == naive.max()
