"""Tests for :mod:`results.goodput`."""

from collections.abc import Callable

import pytest

from results.goodput import Slo, count_good
from results.record import RequestRecord, RequestStatus

MakeRequest = Callable[..., RequestRecord]


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 1),
        (Slo(ttft_s=2.0, tpot_s=0.5, itl_s=0.5, e2e_s=4.0), 1),
        (Slo(ttft_s=1.9), 0),
        (Slo(tpot_s=0.4), 0),
        (Slo(itl_s=0.4), 0),
        (Slo(e2e_s=3.9), 0),
        (Slo(ttft_s=9.0, e2e_s=3.9), 0),
    ],
)
def test_a_request_is_good_within_all_limits(
    make_request: MakeRequest, slo: Slo, good: int
) -> None:
    """A limit met exactly is met; one limit missed is enough to fail."""
    assert count_good([make_request()], slo) == good


def test_one_token_meets_every_tpot_limit(make_request: MakeRequest) -> None:
    """A one-token output has a TPOT of 0 for vLLM, so no limit fails it."""
    single = make_request(num_output_tokens=1, max_sample_tokens=1)

    assert count_good([single], Slo(tpot_s=1e-9)) == 1


def test_a_rejected_request_is_never_good(make_request: MakeRequest) -> None:
    """Being refused at once is not being served fast."""
    rejected = make_request(status=RequestStatus.REJECTED)

    assert count_good([rejected], Slo()) == 0
