"""Tests for :mod:`results.rows`."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results import rows as rows_module
from results.record import RequestRecord, RequestStatus, StepRecord
from results.rows import Rows

NUMBERS = st.integers(0, 2**40)


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    """Draw a record with values of every kind."""
    return RequestRecord(
        request_id=draw(NUMBERS),
        arrival_ns=draw(NUMBERS),
        queued_ns=draw(NUMBERS),
        num_prompt_tokens=draw(NUMBERS),
        first_token_ns=draw(st.none() | NUMBERS),
        status=draw(st.sampled_from(RequestStatus)),
        reason=draw(st.sampled_from(["", "no_cpu_blocks"])),
    )


@pytest.fixture(params=[1, 2, 1024])
def most_pending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Put records into columns one by one, in pairs, or when asked."""
    monkeypatch.setattr(rows_module, "MOST_PENDING", request.param)
    return int(request.param)


@pytest.mark.usefixtures("most_pending")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests(), max_size=9))
def test_rows_read_like_the_list_of_records(made: list[RequestRecord]) -> None:
    """Length, items, slices, order and equality are those of a list."""
    rows = Rows(RequestRecord)
    for record in made:
        rows.append(record)

    assert len(rows) == len(made)
    assert list(rows) == made
    assert rows == made
    assert rows[1:-1] == made[1:-1]
    assert [rows[i] for i in range(-len(made), len(made))] == made * 2


@given(st.lists(requests(), unique_by=lambda record: record.arrival_ns, max_size=9))
def test_sorted_rows_are_sorted(made: list[RequestRecord]) -> None:
    """The same records come ascending by the column that is named."""
    in_order = sorted(made, key=lambda record: record.arrival_ns)

    assert Rows(RequestRecord, made).sorted_by("arrival_ns") == in_order


@given(st.lists(requests(), max_size=5), st.lists(requests(), max_size=5))
def test_rows_go_on_with_others(
    first: list[RequestRecord], second: list[RequestRecord]
) -> None:
    """Records of others come after one's own."""
    rows = Rows(RequestRecord, first)
    rows.extend(Rows(RequestRecord, second))

    assert rows == first + second


@given(st.lists(requests(), max_size=9))
def test_columns_hold_what_the_records_hold(made: list[RequestRecord]) -> None:
    """Numbers come as arrays, masked where one is None, and words as a list."""
    rows = Rows(RequestRecord, made)
    times = rows.column("first_token_ns")

    assert rows.column("arrival_ns").tolist() == [r.arrival_ns for r in made]
    assert times.tolist() == [r.first_token_ns for r in made]
    assert rows.column("status") == [r.status.value for r in made]


def test_lists_come_back_as_lists(make_step: Any) -> None:
    """A column of lists keeps each list, and gives all numbers in a row."""
    steps = [make_step(gap_ns=gaps) for gaps in ([3, 1], [], [2])]
    rows = Rows(StepRecord, steps)

    assert rows == steps
    assert rows.column("gap_ns") == [[3, 1], [], [2]]
    assert rows.flat("gap_ns").tolist() == [3, 1, 2]


def test_values_are_taken_in_the_order_of_the_class(make_step: Any) -> None:
    """Values that come without names are those of the fields one after another."""
    rows = Rows(StepRecord)
    rows.append_values((*range(36), [5], [6]))

    assert rows[0].start_ns == 0
    assert rows[0].num_regretted_evictions == 33
    assert rows[0].num_prefill_context_tokens == 35
    assert rows[0].gap_count == [6]


def test_a_million_steps_take_little_memory(make_step: Any) -> None:
    """A record takes no more than the numbers that it holds."""
    rows = Rows(StepRecord, [make_step()] * 4096)
    num_bytes = sum(
        column._numbers.itemsize * len(column._numbers)
        for name, column in rows._by_name.items()
        if rows.column(name) is not None and not name.startswith("gap_")
    )

    assert num_bytes <= 4096 * 200
    assert isinstance(rows.column("num_steps"), np.ndarray)
