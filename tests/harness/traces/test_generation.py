"""Tests for :mod:`harness.traces.generation`."""

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.traces import open_trace
from harness.traces.generation import GenerateOptions, generate_trace, trace_rows

EXAMPLE = Path(__file__).parents[3] / "examples" / "chat_1000.jsonl"

OPTIONS = st.builds(
    GenerateOptions,
    num_requests=st.integers(1, 30),
    input_len=st.integers(1, 50),
    output_len=st.integers(1, 50),
    range_ratio=st.sampled_from([0.0, 0.15, 0.5, 0.99]),
    request_rate=st.sampled_from([0.5, 100.0, math.inf]),
    burstiness=st.sampled_from([0.5, 1.0, math.inf]),
    prefix_len=st.integers(0, 20),
    num_prefixes=st.integers(1, 3),
    turns=st.integers(1, 5),
    n=st.integers(1, 3),
    n_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    think_time=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 1000),
)


def _rows(options: GenerateOptions) -> list[dict[str, Any]]:
    return list(trace_rows(options))[1:]


def _bytes(options: GenerateOptions) -> bytes:
    return b"\n".join(map(orjson.dumps, trace_rows(options)))


@given(OPTIONS)
def test_same_options_give_the_same_bytes(options: GenerateOptions) -> None:
    """A trace depends on its options and seed alone."""
    assert _bytes(options) == _bytes(options)


def test_another_seed_gives_another_trace() -> None:
    """The seed decides."""
    first, second = (
        _rows(GenerateOptions(num_requests=20, range_ratio=0.5, seed=seed))
        for seed in (1, 2)
    )

    assert first != second


@given(options=OPTIONS)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, options: GenerateOptions
) -> None:
    """Our reader takes every generated trace, whole, as generated and in order."""
    path = tmp_path_factory.getbasetemp() / "generated.jsonl"
    path.write_bytes(_bytes(options))
    workload = open_trace(path)

    assert workload.is_generated
    assert workload.format == "blockbench"
    assert len(workload) == options.num_requests
    assert workload.arrival_ns.min() == 0
    assert not any("order" in note for note in workload.notes)


@given(OPTIONS)
def test_turn_continues_the_turn_before(options: GenerateOptions) -> None:
    """A next turn's prompt is the last prompt, its first sample, and new tokens."""
    rows = _rows(options)
    for number, row in enumerate(rows):
        if "after" not in row:
            assert len(row["prompt"]) == 1 + (options.prefix_len > 0)
            continue
        before = rows[row["after"]]
        assert row["after"] < number
        assert row["prompt"][:-1] == [*before["prompt"], before["output"][0]]
        assert row["arrival_s"] == pytest.approx(before["arrival_s"] + row["delay_s"])


@given(OPTIONS)
def test_lengths_stay_inside_the_range(options: GenerateOptions) -> None:
    """New tokens and samples lie in [L*(1-r), L*(1+r)], and are at least 1."""
    for row in _rows(options):
        for mean, lengths in (
            (options.input_len, [row["prompt"][-1][1]]),
            (options.output_len, [length for _, length in row["output"]]),
        ):
            low = max(1, mean * (1 - options.range_ratio) - 1e-6)
            high = max(1, mean * (1 + options.range_ratio) + 1e-6)
            assert all(low <= length <= high for length in lengths)


@given(OPTIONS)
def test_counts_are_as_asked(options: GenerateOptions) -> None:
    """Turns, samples and prefixes are as many as the options say."""
    rows = _rows(options)
    starts = [row for row in rows if "after" not in row]

    assert len(starts) == math.ceil(options.num_requests / options.turns)
    assert {len(row["output"]) for row in rows} <= {1, options.n}
    if options.n_fraction == 1:
        assert {len(row["output"]) for row in rows} == {options.n}
    if options.prefix_len:
        first = {tuple(row["prompt"][0]) for row in rows}
        assert first <= {(p, options.prefix_len) for p in range(options.num_prefixes)}


@given(OPTIONS)
def test_no_two_pieces_are_one_segment(options: GenerateOptions) -> None:
    """Apart from prefixes, each new piece of content has a segment of its own."""
    rows = _rows(options)
    fresh = [row["prompt"][-1][0] for row in rows]
    fresh += [segment for row in rows for segment, _ in row["output"]]

    assert len(set(fresh)) == len(fresh)
    assert min(fresh) >= options.num_prefixes


def test_one_option_leaves_other_draws_alone() -> None:
    """Another rate changes the arrivals only."""
    slow, fast = (
        _rows(GenerateOptions(num_requests=30, range_ratio=0.5, request_rate=rate))
        for rate in (1.0, 100.0)
    )

    assert [row["prompt"] for row in slow] == [row["prompt"] for row in fast]
    assert slow[-1]["arrival_s"] == pytest.approx(100 * fast[-1]["arrival_s"], abs=1e-4)


def test_rate_counts_turns() -> None:
    """Conversations of four turns start at a quarter of the request rate."""
    options = GenerateOptions(
        num_requests=12, turns=4, request_rate=8.0, burstiness=math.inf
    )
    starts = [row["arrival_s"] for row in _rows(options) if "after" not in row]

    assert starts == [0.0, 0.5, 1.0]


def test_think_time_is_exponential_around_its_mean() -> None:
    """Think times have the mean that was asked for."""
    rows = _rows(GenerateOptions(num_requests=4000, turns=2, think_time=3.0))
    delays = np.array([row["delay_s"] for row in rows if "after" in row])

    assert delays.mean() == pytest.approx(3.0, rel=0.1)
    assert delays.std() == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_requests": 0},
        {"input_len": 0},
        {"range_ratio": 1.0},
        {"range_ratio": -0.1},
        {"range_ratio": math.nan},
        {"n_fraction": 1.5},
        {"think_time": -1.0},
        {"think_time": math.inf},
        {"turns": 0},
        {"n": 1025},
        {"n": 1024, "num_requests": 10_000},
        {"num_requests": 10**400},
        {"turns": 100_000, "num_requests": 100_000},
    ],
)
def test_impossible_option_is_refused(options: dict[str, Any]) -> None:
    """An option out of range is a usage error that names it."""
    with pytest.raises(UsageError, match=next(iter(options))):
        GenerateOptions(**options)


def test_times_that_no_reader_takes_are_not_written(tmp_path: Path) -> None:
    """Conversations that never end are refused, and no file is left."""
    options = GenerateOptions(num_requests=1000, turns=1000, think_time=1e9)

    with pytest.raises(
        UsageError, match=r"arrive after .* within 9,000,000,000 s; lower"
    ):
        generate_trace(tmp_path / "trace.jsonl", options)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    """A folder is refused even with force, and stays."""
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        generate_trace(tmp_path, GenerateOptions(num_requests=1), force=True)


def test_a_note_of_no_encoding_is_refused(tmp_path: Path) -> None:
    """Bytes that the shell passed on but that are no text are a usage error."""
    with pytest.raises(UsageError, match=r"note .* is not UTF-8"):
        generate_trace(tmp_path / "a", GenerateOptions(num_requests=1), note="\udcff")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An existing file stays as it is, unless force is given; no scraps remain."""
    path = tmp_path / "trace.jsonl"
    path.write_text("mine")

    with pytest.raises(UsageError, match=r"exists.*--force"):
        generate_trace(path, GenerateOptions(num_requests=1))
    assert path.read_text() == "mine"

    generate_trace(path, GenerateOptions(num_requests=1), force=True)
    assert len(open_trace(path)) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["no/trace.jsonl", "file/x", "x" * 300, "x" * 254])
@pytest.mark.parametrize("force", [True, False])
def test_unwritable_file_is_refused(tmp_path: Path, name: str, force: bool) -> None:
    """A path that cannot be, or with no room for the unfinished one, is a usage error."""
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="cannot write .*; choose another place with -o"):
        generate_trace(tmp_path / name, GenerateOptions(num_requests=1), force=force)


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    """What is there and no ordinary file is refused even with force, and stays."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(UsageError, match="pipe is no ordinary file; choose another"):
        generate_trace(pipe, GenerateOptions(num_requests=1), force=True)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"burstiness": 2.0}, "request_rate"),
        ({"num_prefixes": 2}, "prefix_len"),
        ({"think_time": 1.0}, "turns"),
        ({"n_fraction": 0.5}, "n"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, changes: dict[str, Any], other: str
) -> None:
    """An option that needs another is refused without it, and nothing is written."""
    path = tmp_path / "trace.jsonl"

    with pytest.raises(UsageError, match=f"{next(iter(changes))} .*; add {other}$"):
        generate_trace(path, GenerateOptions(num_requests=1, **changes))
    assert not path.exists()


def test_example_has_the_published_statistics() -> None:
    """The bundled trace is near Azure's means, small, and says that it is generated."""
    workload = open_trace(EXAMPLE)

    assert len(workload) == 1000
    assert workload.input_tokens.mean() == pytest.approx(1155, rel=0.1)
    assert workload.output_tokens.mean() == pytest.approx(211, rel=0.1)
    assert len(workload) / workload.duration_s == pytest.approx(5.53, rel=0.15)
    assert workload.is_generated
    assert "Generated, not recorded" in workload.notes[0]
    assert EXAMPLE.stat().st_size < 300_000


def test_example_is_what_its_header_says() -> None:
    """The options in the bundled trace's header give the bundled trace."""
    lines = EXAMPLE.read_bytes().splitlines()
    header = orjson.loads(lines[0])

    rows = trace_rows(GenerateOptions(**header["generated"]), header["note"])

    assert [orjson.dumps(row) for row in rows] == lines


def test_example_is_a_chat() -> None:
    """The bundled trace has conversations, shared prompts and some n > 1."""
    workload = open_trace(EXAMPLE)
    samples = np.diff(workload.outputs.offsets)

    assert (workload.parent >= 0).sum() == 750
    assert 0 < (samples > 1).mean() < 0.15
    assert all(time >= 0 for time in workload.delay_ns)
    assert all(a <= b for a, b in pairwise(workload.arrival_ns))
