"""Tests for :mod:`results.findings.find`."""

from collections.abc import Callable

from results.findings import find
from results.findings.run_view import RunView
from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome


def test_what_cost_requests_comes_first(
    make_view: Callable[..., RunView],
    make_request: Callable[..., RequestRecord],
    make_step: Callable[..., StepRecord],
) -> None:
    """Errors stand before warnings, and these before what is only worth knowing."""
    rows = [
        make_request(num_requested_tokens=99),
        make_request(
            request_id=1, status=RequestStatus.REJECTED, reason="exceeds_kv_capacity"
        ),
    ]
    run = make_view(rows, [make_step()], outcome=Outcome(ending=Ending.STUCK))

    found = find(run.info, run.requests, run.steps)

    assert [f.severity for f in found][:3] == ["error", "warning", "info"]
    assert {f.code for f in found} >= {"no_progress", "outputs_cut"}
