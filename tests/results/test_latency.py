"""Tests for :mod:`results.latency`."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.columns import Columns
from results.latency import (
    RequestLatency,
    inter_token_gaps,
    is_finished,
    request_latency,
)
from results.record import RequestRecord, RequestStatus, StepRecord
from results.statistics import summarize_samples

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

S = 1_000_000_000


def latency_of(*requests: RequestRecord) -> RequestLatency:
    """Return the latencies of these requests."""
    return request_latency(Columns.of(RequestRecord, requests))


def test_latencies_are_those_of_bench_serve(make_request: MakeRequest) -> None:
    """TTFT, TPOT, E2E and queue time of one request worked out by hand."""
    latency = latency_of(make_request())

    assert latency.queue_s.tolist() == [1.0]
    assert latency.ttft_s.tolist() == [2.0]
    assert latency.tpot_s.tolist() == [0.5]
    assert latency.e2e_s.tolist() == [4.0]


def test_latencies_count_from_the_arrival(make_request: MakeRequest) -> None:
    """A request that came half a second later took half a second less."""
    latency = latency_of(make_request(arrival_ns=S // 2))

    assert latency.queue_s.tolist() == [0.5]
    assert latency.ttft_s.tolist() == [1.5]
    assert latency.tpot_s.tolist() == [0.5]
    assert latency.e2e_s.tolist() == [3.5]


def test_queue_time_counts_from_when_the_scheduler_had_it(
    make_request: MakeRequest,
) -> None:
    """What the server took before is part of TTFT and E2E, and of no queue."""
    latency = latency_of(make_request(queued_ns=S // 4))

    assert latency.queue_s.tolist() == [0.75]
    assert latency.ttft_s.tolist() == [2.0]
    assert latency.e2e_s.tolist() == [4.0]


def test_one_token_has_no_tpot(make_request: MakeRequest) -> None:
    """An output of one token has no time per later token; its neighbours keep theirs."""
    single = make_request(num_output_tokens=1, max_sample_tokens=1)

    tpot = latency_of(make_request(), single, make_request()).tpot_s

    assert np.isnan(tpot).tolist() == [False, True, False]
    assert tpot[[0, 2]].tolist() == [0.5, 0.5]


def test_two_tokens_have_one_gap(make_request: MakeRequest) -> None:
    """With one token after the first, TPOT is all the time after the first."""
    pair = make_request(num_output_tokens=2, max_sample_tokens=2)

    assert latency_of(pair).tpot_s.tolist() == [2.0]


def test_parallel_samples_divide_by_the_longest(make_request: MakeRequest) -> None:
    """With n = 3, TPOT divides by the tokens of the longest sample, not by all."""
    parallel = make_request(n=3, num_output_tokens=9, max_sample_tokens=5)

    assert latency_of(parallel).tpot_s.tolist() == [0.5]


@pytest.mark.parametrize(
    "status", [s for s in RequestStatus if s is not RequestStatus.FINISHED]
)
def test_only_finished_requests_count(
    make_request: MakeRequest, status: RequestStatus
) -> None:
    """A request that did not finish has no part in any latency."""
    requests = [make_request(status=status), make_request(arrival_ns=S)]

    assert latency_of(*requests).e2e_s.tolist() == [3.0]
    assert is_finished(Columns.of(RequestRecord, requests)).tolist() == [False, True]


def test_no_requests_have_no_latencies() -> None:
    """Without requests, or steps, there are no samples of anything."""
    latency = latency_of()
    gaps, counts = inter_token_gaps(Columns.of(StepRecord, []))

    assert len(latency.ttft_s) == len(latency.tpot_s) == len(latency.itl_s) == 0
    assert len(latency.e2e_s) == len(latency.queue_s) == len(gaps) == len(counts) == 0


def test_gaps_of_a_stretch_rise_evenly(make_step: MakeStep) -> None:
    """Three steps of 10, 12 and 14 s: the first's gap is listed, two follow for each."""
    step = make_step(
        num_steps=3,
        first_step_ns=10 * S,
        last_step_ns=14 * S,
        num_decode_seqs=2,
        gap_ns=[11 * S],
        gap_count=[2],
    )

    gaps, counts = inter_token_gaps(Columns.of(StepRecord, [step]))

    assert gaps.tolist() == [11.0, 12.0, 14.0]
    assert counts.tolist() == [2.0, 2.0, 2.0]


def test_a_stretch_of_two_steps_has_one_gap_of_its_own(make_step: MakeStep) -> None:
    """The second of two steps adds a gap as long as it lasted, for each sequence."""
    step = make_step(num_steps=2, last_step_ns=12 * S, num_decode_seqs=3)

    gaps, counts = inter_token_gaps(Columns.of(StepRecord, [step]))

    assert (gaps.tolist(), counts.tolist()) == ([12.0], [3.0])


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

    summary = summarize_samples(*inter_token_gaps(Columns.of(StepRecord, steps)))

    naive = np.array(expanded) / S
    if not expanded:
        assert set(summary.values()) == {None}
        return
    for name in ("p50", "p90", "p95", "p99"):
        assert summary[name] == np.percentile(naive, int(name[1:]))
    assert summary["mean"] == pytest.approx(naive.mean())
    assert summary["max"] == naive.max()
