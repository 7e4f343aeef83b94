"""Tests for :mod:`results.columns`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.columns import Columns
from results.record import RequestRecord, RequestStatus, StepRecord
from results.table import read_frame, rows_frame, write_records

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

EXACT = st.integers(0, 2**53)
REASONS = ["", "no_cpu_blocks", 'läuft, "noch"']
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    int: EXACT,
    int | None: st.none() | EXACT,
    list[int]: st.lists(EXACT, max_size=3),
    str: st.sampled_from(REASONS),
    RequestStatus: st.sampled_from(RequestStatus),
}


def rows_of(record_type: type[Any], max_size: int = 6) -> st.SearchStrategy[list[Any]]:
    """Draw rows with any value that a column may hold."""
    hints = get_type_hints(record_type)
    by_name = {field.name: BY_HINT[hints[field.name]] for field in fields(record_type)}
    return st.lists(st.builds(record_type, **by_name), max_size=max_size)


def assert_same_bits(record_type: type[Any], ours: Columns, theirs: Columns) -> None:
    """Compare every column, whatever it holds."""
    assert len(ours) == len(theirs)
    for name, hint in get_type_hints(record_type).items():
        if hint == list[int]:
            assert ours.flat(name).tobytes() == theirs.flat(name).tobytes()
        elif isinstance(hint, type) and issubclass(hint, str):
            for word in (*REASONS, *RequestStatus, "finish"):
                equal = ours.is_equal(name, word).tolist()
                assert equal == theirs.is_equal(name, word).tolist()
        else:
            assert ours[name].tobytes() == theirs[name].tobytes()
            assert ours[name].dtype == np.float64


def frame_of_lists(record_type: type[Any], rows: Sequence[Any]) -> pd.DataFrame:
    """Make a DataFrame as a person makes one."""
    names = [field.name for field in fields(record_type)]
    return pd.DataFrame({name: [getattr(r, name) for r in rows] for name in names})


def frame_of_journal(record_type: type[Any], rows: Sequence[Any]) -> pd.DataFrame:
    """Make a DataFrame as a run under way is read."""
    return rows_frame(record_type, [asdict(row) for row in rows])


@pytest.mark.parametrize("frame_of", [frame_of_lists, frame_of_journal])
@pytest.mark.parametrize("record_type", [RequestRecord, StepRecord])
@settings(max_examples=60)
@given(data=st.data())
def test_a_frame_gives_the_columns_of_its_records(
    record_type: type[Any],
    frame_of: Callable[[type[Any], Sequence[Any]], pd.DataFrame],
    data: st.DataObject,
) -> None:
    """Whatever the rows hold, records and a DataFrame agree to the last bit."""
    rows = data.draw(rows_of(record_type))

    ours = Columns.of(record_type, rows)
    theirs = Columns(frame_of(record_type, rows), len(rows))

    assert_same_bits(record_type, ours, theirs)


@pytest.mark.parametrize("record_type", [RequestRecord, StepRecord])
@settings(max_examples=15)
@given(data=st.data())
def test_a_parquet_file_gives_the_columns_of_its_records(
    record_type: type[Any],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    """What was written and read back agrees with what was in memory, to the last bit."""
    rows = data.draw(rows_of(record_type))
    path: Path = tmp_path_factory.mktemp("run") / "rows.parquet"
    write_records(path, record_type, rows)

    frame = read_frame(path, record_type)

    ours, theirs = Columns.of(record_type, rows), Columns(frame, len(frame))
    assert_same_bits(record_type, ours, theirs)


def test_what_never_came_is_nan(make_request: MakeRequest) -> None:
    """A time that is None becomes NaN, also in a column without any time."""
    rows = [make_request(arrival_ns=5), make_request(arrival_ns=6, first_token_ns=None)]
    waiting = [make_request(finished_ns=None)] * 2

    columns = Columns.of(RequestRecord, rows)

    assert columns["arrival_ns"].tolist() == [5.0, 6.0]
    assert np.isnan(columns["first_token_ns"]).tolist() == [False, True]
    assert np.isnan(Columns.of(RequestRecord, waiting)["finished_ns"]).all()


@pytest.mark.parametrize("record_type", [RequestRecord, StepRecord])
def test_no_rows_are_empty_columns(record_type: type[Any]) -> None:
    """Without a row every column is there and holds nothing."""
    columns = Columns.of(record_type, [])

    assert len(columns) == 0
    for field in fields(record_type):
        assert columns.flat(field.name).shape == (0,)
        assert columns[field.name].shape == (0,)
        assert columns.is_equal(field.name, "finished").shape == (0,)
        assert columns.total(field.name) == 0


def test_totals_are_exact_below_2_to_the_53(make_step: MakeStep) -> None:
    """The largest sum that a float holds exactly comes out to the unit."""
    steps = [make_step(swap_ns=2**52), make_step(swap_ns=2**52 - 2), make_step(swap_ns=1)]

    total = Columns.of(StepRecord, steps).total("swap_ns")

    assert total == 2**53 - 1
    assert type(total) is int


@given(st.lists(st.integers(0, 2**53 // 200), max_size=200))
def test_totals_equal_pythons(numbers: list[int]) -> None:
    """In whatever order the sum is formed, it is the whole number that it should be."""
    assert Columns({"ns": numbers}, len(numbers)).total("ns") == sum(numbers)


def test_lists_are_joined_row_after_row(make_step: MakeStep) -> None:
    """Rows of lists follow one another; an empty one adds nothing."""
    steps = [make_step(gap_ns=gaps) for gaps in ([3, 1], [], [2])]

    assert Columns.of(StepRecord, steps).flat("gap_ns").tolist() == [3.0, 1.0, 2.0]


def test_words_are_found_whole(make_request: MakeRequest) -> None:
    """A status equals its word and no part of it."""
    statuses = [RequestStatus.FINISHED, RequestStatus.FAILED]
    columns = Columns.of(RequestRecord, [make_request(status=s) for s in statuses])

    assert columns.is_equal("status", RequestStatus.FINISHED).tolist() == [True, False]
    assert columns.is_equal("status", "finish").tolist() == [False, False]


def test_a_column_is_made_once(make_request: MakeRequest) -> None:
    """Who asks again gets the array that was made before."""
    columns = Columns.of(RequestRecord, [make_request()])

    assert columns["arrival_ns"] is columns["arrival_ns"]


def test_a_column_that_is_not_there_is_named() -> None:
    """Asking for an unknown column tells which."""
    with pytest.raises(KeyError, match="num_wishes"):
        Columns.of(StepRecord, [])["num_wishes"]
