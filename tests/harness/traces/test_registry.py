"""Tests for :mod:`harness.traces.registry` and :mod:`harness.traces.source`."""

import gzip
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import TraceError, UsageError
from harness.traces import READERS, open_trace
from harness.traces.source import TraceSource

WriteLines = Callable[..., Path]

ROW = '{"timestamp": 1, "input_length": 3, "output_length": 2, "hash_ids": [1]}'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 27901454\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"PAR1\x15\x04", "Parquet file; convert"),
        (b"ARROW1\x00\x00", "Arrow file; convert"),
        (b"PK\x03\x04abc", "zip archive; unpack"),
        (POINTER, "Git LFS pointer to a file of 27901454 bytes.*git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "web page.*download the raw file"),
        (b"<html><body>", "web page"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\xef\xbb\xbf<html>", "web page"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"\xff\xfe\x00\x00{\x00\x00\x00", "UTF-32"),
        (b"7z\xbc\xaf\x27\x1c", "7z archive; unpack it with '7z x'"),
        (b"a.jsonl".ljust(257, b"\x00") + b"ustar", "tar archive; unpack it with 'tar"),
        (
            gzip.compress(gzip.compress(b"a", mtime=0), mtime=0),
            "packed twice; unpack it once",
        ),
        (b"\x01\x02\x00\x03", "binary"),
        (b'[{"a": 1}]', "one JSON array; write one object a line"),
        (b"[\n  {\n", "one JSON array"),
        (b'{\n  "a": 1\n}\n', "laid out over several lines; write one object a line"),
        (b'{"a": 1}{"a": 2}\n', r"the first line is not valid JSON: .*\(column 9\)"),
        (b"\x80\x81\x82\n", "this is no UTF-8 text; save it as UTF-8"),
        (b"[12:00] started\n", "no trace format is recognised.*'.12:00. started'"),
        (b'{"a": 1, "b": 2}\n', "no trace format is recognised.*keys a, b"),
        (
            b'{"arrival_s": 1, "prompt": [[1, 5]], "output": [[2, 5]]}',
            "the header before the first request is missing; put this line at the top",
        ),
        (b"lorem ipsum\n", "no trace format is recognised.*'lorem ipsum'.*mooncake"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    """What is no trace is refused by what it is, with the way out."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=problem):
        open_trace(path)


def test_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """A file that Windows wrote is read, its lines and its hash as they should be."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + (ROW + "\r\n").encode() * 2)

    workload = open_trace(path)

    assert len(workload) == 2
    assert workload.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("conversaton.jsonl", r"did you mean .*/conversation.jsonl\?$"),
        ("conversation", r"did you mean .*/conversation.jsonl\?$"),
        ("folder.jsonl", "check the path$"),
        ("nowhere/conversation.jsonl", "check the path$"),
        ("conversation.jsonl/x", "not a directory; check the path$"),
    ],
)
def test_a_file_like_a_missing_one_is_offered(
    tmp_path: Path, name: str, remedy: str
) -> None:
    """The file beside it with the nearest name is offered; nothing else is."""
    (tmp_path / "conversation.jsonl").write_text(ROW)
    (tmp_path / "folder.json").mkdir()

    with pytest.raises(TraceError, match=remedy):
        open_trace(tmp_path / name)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there, and a folder, are refused by name."""
    with pytest.raises(TraceError, match=r"nowhere: no such file.*; check the path"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is a directory; name a file in it"):
        open_trace(tmp_path)


def test_other_formats_with_our_keys_are_not_mistaken(write_lines: WriteLines) -> None:
    """A Bailian row, whose times are seconds, is not read as Mooncake."""
    row = ROW.replace("{", '{"chat_id": 1, ')

    with pytest.raises(TraceError, match="no trace format is recognised"):
        open_trace(write_lines(row))
    with pytest.raises(TraceError, match="has chat_id"):
        open_trace(write_lines(row), format="mooncake")


def test_unknown_format_is_refused(write_lines: WriteLines) -> None:
    """A format that does not exist is a usage error that lists those that do."""
    with pytest.raises(UsageError, match="blockbench, mooncake, azure"):
        open_trace(write_lines(ROW), format="csv")


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_named_format_still_checks(reader: object, write_lines: WriteLines) -> None:
    """A file named as another format is a trace error, never a crash."""
    path = write_lines("lorem ipsum", "dolor")

    with pytest.raises(TraceError):
        open_trace(path, format=reader.name)  # type: ignore[attr-defined]


def _zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("pack", [gzip.compress, _zstd])
def test_packed_trace_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A packed file is the same workload; its hash is that of the bytes on disk."""
    packed = pack((ROW + "\n").encode() * 5000)
    path = tmp_path / "trace.jsonl.packed"
    path.write_bytes(packed)

    workload = open_trace(path)

    assert len(workload) == 5000
    assert workload.content_hash == hashlib.sha256(packed).hexdigest()


def test_hash_covers_what_nobody_read(write_lines: WriteLines) -> None:
    """The hash is that of the whole file, however much of it was read."""
    path = write_lines(*[ROW] * 50_000)
    source = TraceSource(path)

    found = source.content_hash()
    source.close()

    assert found == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("pack", [gzip.compress, _zstd])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_packing_is_an_error(
    tmp_path: Path, pack: Callable[[bytes], bytes], share: float
) -> None:
    """A packed file cut short is refused, bad rows skipped or not."""
    numbers = (str(i * 7919 % 10_007) for i in range(20_000))
    rows = (ROW.replace("1,", f"{number},", 1) for number in numbers)
    packed = pack("\n".join(rows).encode())
    path = tmp_path / "trace.jsonl.packed"
    path.write_bytes(packed[: int(len(packed) * share)])

    with pytest.raises(TraceError, match="packed data ends or breaks"):
        open_trace(path, skip_bad_rows=True)


def test_blank_lines_are_no_rows(write_lines: WriteLines) -> None:
    """Blank lines are passed over, and lines still count from 1."""
    with pytest.raises(TraceError, match=r"trace.jsonl:4: not valid JSON"):
        open_trace(write_lines(ROW, "", "  ", "{"))


def test_header_alone_is_no_trace(write_lines: WriteLines) -> None:
    """A file without a request is refused."""
    with pytest.raises(TraceError, match="no request in it"):
        open_trace(write_lines('{"blockbench": 1}'))


TEMPLATES = (
    (ROW + "\n").encode() * 3,
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-05-02 09:30:00.1250000,300,40",
    b'{"blockbench":1,"generated":null}\n'
    b'{"arrival_s":0,"prompt":[[0,3]],"output":[[1,2]]}\n'
    b'{"arrival_s":1,"prompt":[[0,3]],"output":[[2,2]],"after":0,"delay_s":0.5}\n',
    gzip.compress((ROW + "\n").encode() * 3, mtime=0),
)
PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [b"0", b"-1", b"1e999", b"null", b"true", b"{}", b"[]", b'"', b"\n", b","]
    ),
)


@given(
    st.sampled_from(TEMPLATES), st.integers(0), st.integers(0, 9), PIECES, st.booleans()
)
def test_damaged_file_never_crashes(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    position: int,
    num_lost: int,
    piece: bytes,
    skip: bool,
) -> None:
    """Whatever bytes a file has, it is a workload or a TraceError."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    position %= len(content) + 1
    path.write_bytes(content[:position] + piece + content[position + num_lost :])

    with suppress(TraceError):
        assert len(open_trace(path, skip_bad_rows=skip)) > 0
