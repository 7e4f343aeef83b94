"""Tests for :mod:`harness.traces.azure`."""

from pathlib import Path

import pytest

from harness.errors import TraceError
from harness.traces import open_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def _write(path: Path, *lines: str, end: str = "\r\n") -> Path:
    path.write_bytes(end.join(lines).encode())
    return path


def test_2023_file_is_read(tmp_path: Path) -> None:
    """CRLF, seven digits of a second and no final newline are as they should be."""
    path = _write(
        tmp_path / "a.csv",
        HEADER,
        "2023-05-02 09:30:00.1250001,300,40",
        "2023-05-02 09:30:04.5000000,512,100",
    )

    workload = open_trace(path)

    assert workload.format == "azure"
    assert workload.arrival_ns.tolist() == [0, 4_374_999_900]
    assert workload.input_tokens.tolist() == [300, 512]
    assert workload.output_tokens.tolist() == [40, 100]


def test_2024_times_are_read(tmp_path: Path) -> None:
    """An offset counts: the same instant in two spellings is one time."""
    path = _write(
        tmp_path / "a.csv",
        HEADER,
        "2024-05-10 00:00:00.009930+00:00,1,1",
        "2024-05-10T02:00:00.00993+02:00,1,1",
        end="\n",
    )

    assert open_trace(path).arrival_ns.tolist() == [0, 0]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """Columns may stand in any order, others between them."""
    path = _write(
        tmp_path / "a.csv",
        "GeneratedTokens,NumImages,TIMESTAMP,ContextTokens",
        "5,1,2024-05-10 00:00:00,9",
    )

    request = open_trace(path).request(0)

    assert request.num_prompt_tokens == 9
    assert request.outputs[0][1] == 5


def test_nothing_is_shared(tmp_path: Path) -> None:
    """Every prompt and every output has a segment of its own."""
    path = _write(tmp_path / "a.csv", HEADER, *["2024-05-10 00:00:00,9,5"] * 10)

    workload = open_trace(path)
    segments = [*workload.prompts.segments, *workload.outputs.segments]

    assert not workload.has_sharing
    assert len(set(segments)) == 20


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2024-05-10 00:00:00,0,5", "ContextTokens is 0"),
        ("2024-05-10 00:00:00,9,0", "GeneratedTokens is 0"),
        ("2024-05-10 00:00:00,-9,5", 'ContextTokens is "-9"'),
        ("2024-05-10 00:00:00,9.5,5", 'ContextTokens is "9.5"'),
        ("2024-05-10 00:00:00,1e300,5", 'ContextTokens is "1e300"'),
        ("2024-05-10 00:00:00,nan,5", 'ContextTokens is "nan"'),
        ("2024-05-10 00:00:00,,5", 'ContextTokens is ""'),
        ("2024-05-10 00:00:00,99999999999,5", "ContextTokens is 99999999999"),
        ("2024-13-10 00:00:00,9,5", 'TIMESTAMP is "2024-13-10'),
        ("0001-01-01 00:00:00,9,5", 'TIMESTAMP is "0001.*from 1970 to 2255'),
        ("9999-12-31 23:59:59-14:00,9,5", 'TIMESTAMP is "9999.*from 1970 to 2255'),
        ("1969-12-31 23:59:59,9,5", 'TIMESTAMP is "1969.*from 1970 to 2255'),
        ("yesterday,9,5", 'TIMESTAMP is "yesterday"'),
        ("2024-05-10 00:00:00,9", "2 columns, the header has 3"),
        ('2024-05-10 00:00:00,9,"5', "not valid CSV"),
    ],
)
def test_bad_row_is_named(tmp_path: Path, row: str, problem: str) -> None:
    """A bad row is refused with its line and the way out, or counted."""
    path = _write(tmp_path / "a.csv", HEADER, "2024-05-10 00:00:00,9,5", row)

    with pytest.raises(TraceError, match=f"a.csv:3: {problem}.*--skip-bad-rows"):
        open_trace(path)

    assert open_trace(path, skip_bad_rows=True).num_skipped == 1


@pytest.mark.parametrize("content", ['{"a": 1}', '{"a": "b", "c": 1}', "a,b"])
def test_another_file_named_as_azure_is_told_the_way_out(
    tmp_path: Path, content: str
) -> None:
    """What is no Azure trace is refused with the columns and how to leave the choice."""
    path = _write(tmp_path / "a.jsonl", content)

    with pytest.raises(TraceError, match=r"a.jsonl:1: .*TIMESTAMP, .*leave --format out"):
        open_trace(path, format="azure")


def test_missing_column_is_named(tmp_path: Path) -> None:
    """A header without one of the columns is refused by the column's name."""
    path = _write(tmp_path / "a.csv", "TIMESTAMP,ContextTokens", "x,1")

    with pytest.raises(TraceError, match="column GeneratedTokens is missing"):
        open_trace(path)
