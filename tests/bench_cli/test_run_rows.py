"""Tests for :mod:`bench_cli.run_rows`."""

from bench_cli.run_rows import FIELDS


def test_times_of_a_request_begin_where_the_figures_do() -> None:
    """The queue from when the scheduler had it; TTFT and E2E from its arrival."""
    row = {
        "arrival_ns": 1_000_000_000,
        "queued_ns": 1_500_000_000,
        "first_scheduled_ns": 3_000_000_000,
        "first_token_ns": 4_000_000_000,
        "finished_ns": 9_000_000_000,
    }

    shown = {name: FIELDS["requests"][name](row) for name in ("queue", "TTFT", "E2E")}

    assert shown == {"queue": "1.5 s", "TTFT": "3.0 s", "E2E": "8.0 s"}
