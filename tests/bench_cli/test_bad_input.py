"""Files that are no trace: each is refused in one line that says what it is.

``run`` and ``trace inspect`` refuse the same files with the same words.
"""

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]


def row(**changes: object) -> bytes:
    """A line of a Mooncake trace; a key that is changed to ``...`` is left out."""
    keys = {"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}
    changed = {**keys, **changes}
    kept = {key: value for key, value in changed.items() if value is not ...}
    return json.dumps(kept).encode() + b"\n"


def parquet() -> bytes:
    """A Parquet file with the right columns."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"timestamp": [1], "input_length": [40]}), sink)
    return bytes(sink.getvalue())


GOOD = row()
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV_ROW = b"2024-01-01 00:00:00,5,5\n"
OWN = b'{"blockbench": 1}\n'
OWN_ROW = b'{"arrival_s": 0, "prompt": [[0, 3]], "output": [[1, 2]]}\n'
PACKED = gzip.compress(b"".join(row(timestamp=i * i) for i in range(2000)))
RANDOM = bytes(i * 7919 % 256 for i in range(3000))
SKIP = "; correct the row, or leave such rows out with --skip-bad-rows"
NO_FORMAT = ": no trace format is recognised: the first line"

WHOLE_FILES = {
    "empty": (b"", ": the file is empty; check the download"),
    "blank": (b" \n\n\t\r\n", ": the file is empty; check the download"),
    "bom alone": (b"\xef\xbb\xbf", ": the file is empty"),
    "nothing, packed": (gzip.compress(b""), ": the file is empty"),
    "csv header alone": (CSV, ": there is no request in it, only a header; check"),
    "own header alone": (OWN, ": there is no request in it, only a header; check"),
    "binary": (RANDOM, ": this is a binary file; give a text trace: JSON lines or CSV"),
    "latin-1": (b"\xe9\xe8\n", ": this is no UTF-8 text; save it as UTF-8"),
    "gzip cut short": (PACKED[:99], r": the packed data ends or breaks .*download"),
    "gzip cut late": (PACKED[:-9], r": the packed data ends or breaks.*; download"),
    "gzip magic alone": (b"\x1f\x8b", ": the packed data ends or breaks"),
    "gzip of garbage": (gzip.compress(RANDOM), ": this is a binary file"),
    "gzip twice": (gzip.compress(PACKED), ": this is packed twice; unpack it once"),
    "gzip and more": (PACKED + b"and more", ": the packed data ends or breaks"),
    "zstd garbage": (b"\x28\xb5\x2f\xfd" + RANDOM, ": the packed data ends or breaks"),
    "bzip2": (b"BZh91AY", ": this is packed with bzip2; unpack it with 'bunzip2'"),
    "xz": (b"\xfd7zXZ\x00", ": this is packed with xz; unpack it with 'unxz'"),
    "7z": (b"7z\xbc\xaf\x27\x1c", ": this is a 7z archive; unpack it with '7z x'"),
    "zip": (b"PK\x03\x04a.jsonl", ": this is a zip archive; unpack it with 'unzip'"),
    "tar": (b"a".ljust(257, b"\x00") + b"ustar", ": this is a tar archive; unpack it"),
    "parquet": (parquet(), ": this is a Parquet file; convert it to JSON lines or CSV"),
    "web page": (b"<!DOCTYPE html>\n<html>", ": this is a web page.*the raw file"),
    "web page, packed": (gzip.compress(b"<html><body>"), ": this is a web page"),
    "xml": (b"<?xml version='1.0'?>", ": this is an XML document"),
    "git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n",
        ": this is a Git LFS pointer to a file of 1234 bytes.*; run 'git lfs pull'",
    ),
    "utf-16": ('{"a": 1}'.encode("utf-16"), ": this is UTF-16 text; save it as UTF-8"),
    "utf-32": ('{"a": 1}'.encode("utf-32"), ": this is UTF-32 text; save it as UTF-8"),
    "array": (b"[" + GOOD + b"]", ": this is one JSON array; write one object a line"),
    "laid out": (
        json.dumps(json.loads(GOOD), indent=2).encode(),
        ": this is JSON laid out over several lines; write one object a line: 'jq -c",
    ),
    "scalar": (b"42\n", NO_FORMAT + " begins with '42'; a trace begins as .*blockbench"),
    "null": (b"null\n", NO_FORMAT + " begins with 'null'"),
    "not found": (b"404: Not Found", NO_FORMAT + " begins with '404: Not Found'"),
    "two on a line": (GOOD.strip() * 2, NO_FORMAT + r" is not valid JSON: .*column 7\d"),
    "python's quotes": (GOOD.replace(b'"', b"'"), NO_FORMAT + " is not valid JSON"),
    "other keys": (
        b'{"prompt": 3}\n',
        NO_FORMAT + " has the keys prompt; a trace begins as",
    ),
    "other columns": (b"a,b,c\n1,2,3\n", NO_FORMAT + " begins with 'a,b,c'"),
    "semicolons": (CSV.replace(b",", b";") + CSV_ROW, NO_FORMAT + " begins with 'TIMES"),
    "no csv header": (CSV_ROW * 2, NO_FORMAT + " begins with '2024-01-01"),
    "a column short": (
        b"TIMESTAMP,ContextTokens\n2024-01-01 00:00:00,5\n",
        ":1: column GeneratedTokens is missing from .*; the first line must name",
    ),
    "later version": (b'{"blockbench": 2}\n', ":1: format version 2.*update blockbench"),
    "version of text": (b'{"blockbench": "1"}\n', ':1: format version "1", must be 1'),
    "header typo": (b'{"blockbench": 1, "nota": ""}\n', ":1: the header has the unknown"),
    "note of numbers": (
        b'{"blockbench": 1, "note": 5}\n',
        ":1: note is 5, must be a str",
    ),
    "all rows bad": (row(output_length=0) * 3, ":1: output_length is 0.*" + SKIP),
}

COMMANDS = pytest.mark.parametrize(
    "command", [["run"], ["trace", "inspect"]], ids=" ".join
)


@COMMANDS
@pytest.mark.parametrize(
    ("content", "words"), WHOLE_FILES.values(), ids=WHOLE_FILES.keys()
)
def test_what_is_no_trace_is_refused(
    refuse: Refuse, tmp_path: Path, command: list[str], content: bytes, words: str
) -> None:
    """A file of another kind is named with what it is and what to do about it."""
    (tmp_path / "bad.jsonl").write_bytes(content)

    assert re.match("bad.jsonl" + words, refuse(3, *command, "bad.jsonl"))


PATHS = {
    "nowhere.jsonl": "nowhere.jsonl: no such file or directory; check the path",
    "good.json": r"good.json: no such file or directory; did you mean good.jsonl\?",
    "folder": "folder: is a directory; name a file in it",
    ".": ".: is a directory; name a file in it",
    "loop": "loop: too many levels of symbolic links; the link leads back to itself",
    "good.jsonl/x": "good.jsonl/x: not a directory; check the path",
    "nowhere/good.jsonl": "nowhere/good.jsonl: no such file or directory; check the path",
    "x" * 300: "x+: file name too long; check the path",
    "https://host/a.jsonl": "https:/.*a.jsonl: no such file or directory; download it",
    "/dev/null": "/dev/null: the file is empty",
    "two\nlines": "two lines: no such file",
}


@COMMANDS
@pytest.mark.parametrize(("path", "words"), PATHS.items())
def test_what_is_no_file_is_refused(
    refuse: Refuse, tmp_path: Path, command: list[str], path: str, words: str
) -> None:
    """A path that leads to no file is named with what is there instead."""
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")

    assert re.match(words, refuse(3, *command, path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    """A file of somebody else's is named with the way out."""
    (tmp_path / "mine.jsonl").write_bytes(GOOD)
    (tmp_path / "mine.jsonl").chmod(0)

    assert "make it readable" in refuse(3, "run", "mine.jsonl")


VALID = (
    GOOD * 4,
    CSV + CSV_ROW * 4,
    OWN + OWN_ROW * 4,
    gzip.compress(GOOD * 4, mtime=0),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid file with a few places overwritten, cut out or filled in."""
    content = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(start + 12, len(content))))
        content[start:end] = draw(st.binary(max_size=12))
    return bytes(content)


@given(st.one_of(st.binary(max_size=300), damaged()), st.booleans())
def test_no_file_ends_in_a_traceback(
    call: Call, tmp_path_factory: pytest.TempPathFactory, content: bytes, skip: bool
) -> None:
    """Whatever bytes a file has, it is shown, or refused in one line that names it."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)

    code, out, err = call("trace", "inspect", path, *["--skip-bad-rows"] * skip)

    if code == 0:
        assert err == ""
    else:
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert err.startswith(f"error: {path}")
