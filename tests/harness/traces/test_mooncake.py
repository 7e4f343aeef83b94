"""Tests for :mod:`harness.traces.mooncake`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import TraceError
from harness.traces import open_trace
from harness.traces.mooncake import infer_block_size, num_blocks

WriteLines = Callable[..., Path]


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "timestamp": 1000,
        "input_length": 600,
        "output_length": 5,
        "hash_ids": [7, 9],
    }
    return {**row, **changes}


def test_ids_become_runs(write_lines: WriteLines) -> None:
    """A hash id stands for 512 tokens, the last one of a row for what is left."""
    workload = open_trace(write_lines(_row(), _row(hash_ids=[7, 8])))

    first, second = (workload.request(i) for i in range(2))

    assert [length for _, length in first.prompt] == [512, 88]
    assert first.prompt[0] == second.prompt[0]
    assert first.prompt[1] != second.prompt[1]
    assert first.num_prompt_tokens == 600


def test_outputs_are_nobodys_prompt(write_lines: WriteLines) -> None:
    """No output has a segment of a prompt or of another output."""
    rows = [_row(hash_ids=[i, i + 1]) for i in range(30)]
    workload = open_trace(write_lines(*rows))

    outputs = workload.outputs.segments.tolist()

    assert len(set(outputs)) == 30
    assert not set(outputs) & set(workload.prompts.segments.tolist())


def test_every_row_is_read(write_lines: WriteLines) -> None:
    """Rows past those that recognition looks at are read, once each."""
    workload = open_trace(write_lines(*(_row(timestamp=i) for i in range(100))))

    assert workload.arrival_ns.tolist() == [i * 1_000_000 for i in range(100)]


def test_times_start_at_zero(write_lines: WriteLines) -> None:
    """Milliseconds become nanoseconds since the earliest row."""
    workload = open_trace(write_lines(_row(), _row(timestamp=1000.5)))

    assert workload.arrival_ns.tolist() == [0, 500_000]
    assert workload.duration_s == 0.0005


def test_unsorted_rows_are_sorted_and_told(write_lines: WriteLines) -> None:
    """Rows out of time order are sorted stably, and a note says so."""
    path = write_lines(
        _row(timestamp=5, output_length=1),
        _row(timestamp=3, output_length=2),
        _row(timestamp=5, output_length=3),
    )

    workload = open_trace(path)

    assert workload.output_tokens.tolist() == [2, 1, 3]
    assert "not in time order (1 earlier" in workload.notes[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input_length": 0}, "input_length is 0"),
        ({"input_length": -3}, "input_length is -3"),
        ({"input_length": 600.0}, "input_length is 600.0"),
        ({"input_length": 1e300}, r"input_length is 1e\+300"),
        ({"input_length": True}, "input_length is true"),
        ({"input_length": "600"}, 'input_length is "600"'),
        ({"input_length": 2**31}, "input_length is 2147483648"),
        ({"output_length": 0}, "output_length is 0"),
        ({"output_length": None}, "output_length is null"),
        ({"timestamp": -1}, "timestamp is -1"),
        ({"timestamp": 1e300}, r"timestamp is 1e\+300"),
        ({"timestamp": "5"}, 'timestamp is "5"'),
        ({"timestamp": False}, "timestamp is false"),
        ({"hash_ids": []}, r"hash_ids is \[\]"),
        ({"hash_ids": [1, 2.0]}, r"hash_ids is \[1,2.0\]"),
        ({"hash_ids": {"a": 1}}, "hash_ids is {"),
        ({"input_length": 1025}, r"2 ids need 513\.\.1024 tokens"),
        ({"input_length": 512}, r"2 ids need 513\.\.1024 tokens"),
        ({"session_id": "a"}, "has session_id"),
    ],
)
def test_bad_row_is_named(
    write_lines: WriteLines, changes: dict[str, Any], problem: str
) -> None:
    """A bad row is refused with file, line, what is wrong and the way out."""
    path = write_lines(_row(), _row(**changes), _row())

    with pytest.raises(TraceError, match=f"trace.jsonl:2: {problem}") as caught:
        open_trace(path)

    assert caught.value.line == 2
    assert "--skip-bad-rows" in str(caught.value)


@pytest.mark.parametrize("key", ["timestamp", "input_length", "hash_ids"])
def test_missing_key_is_named(write_lines: WriteLines, key: str) -> None:
    """A row without one of the keys is refused by the key's name."""
    row = _row()
    del row[key]

    with pytest.raises(TraceError, match=f"trace.jsonl:2: {key} is missing"):
        open_trace(write_lines(_row(), row))
    with pytest.raises(TraceError, match=f"trace.jsonl:1: {key} is missing"):
        open_trace(write_lines(row, row))


@pytest.mark.parametrize("line", ['{"timestamp": 1', "NaN", '{"input_length": NaN}', "3"])
def test_broken_json_is_named(write_lines: WriteLines, line: str) -> None:
    """A line that is no JSON object is refused with its number."""
    with pytest.raises(TraceError, match=r"trace.jsonl:2: not (valid JSON|a JSON)"):
        open_trace(write_lines(_row(), line))


def test_skipped_rows_are_counted_by_reason(write_lines: WriteLines) -> None:
    """With skip_bad_rows the good rows stay, the others are counted by reason."""
    path = write_lines(
        "{", _row(), _row(output_length=0), _row(output_length=0), _row(input_length=9)
    )

    workload = open_trace(path, skip_bad_rows=True)

    assert len(workload) == 1
    assert workload.num_skipped == 4
    assert workload.skipped_by_reason == {
        "not valid JSON": 1,
        "output_length is 0": 2,
        "hash_ids do not fit input_length": 1,
    }


def test_only_bad_rows_are_an_error(write_lines: WriteLines) -> None:
    """A trace without one good row is refused even when bad rows are skipped."""
    path = write_lines(_row(output_length=0), _row(output_length=0))

    with pytest.raises(TraceError, match="all 2 rows are bad \\(2 output_length is 0"):
        open_trace(path, skip_bad_rows=True)


@pytest.mark.parametrize("block_size", [16, 64, 512, 1024])
def test_block_size_is_inferred(block_size: int) -> None:
    """Lengths and numbers of ids tell the block size, one wrong row notwithstanding."""
    lengths = np.random.default_rng(0).integers(1, 20_000, 200)
    counts = num_blocks(lengths, block_size)
    counts[7] += 1

    assert infer_block_size(lengths, counts) == block_size


def test_two_odd_rows_do_not_change_the_block_size() -> None:
    """Fewer than three rows are no evidence against the released block size."""
    assert infer_block_size(np.array([100, 90]), np.array([2, 2])) == 512


def test_coarse_clock_is_told(write_lines: WriteLines) -> None:
    """A note says so when arrivals share few distinct times."""
    rows = [_row(timestamp=3000 * (i // 10)) for i in range(40)]

    assert "4 distinct times" in open_trace(write_lines(*rows)).notes[0]
