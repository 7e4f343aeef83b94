"""Traces that look unusual and are not: what does no harm is read."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


def row(**changes: object) -> bytes:
    """A line of a Mooncake trace; a key that is changed to ``...`` is left out."""
    keys = {"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}
    changed = {**keys, **changes}
    kept = {key: value for key, value in changed.items() if value is not ...}
    return json.dumps(kept).encode() + b"\n"


GOOD = row()
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV_ROW = b"2024-01-01 00:00:00,5,5\n"

ACCEPTED = {
    "as it is": GOOD * 3,
    "byte-order mark": b"\xef\xbb\xbf" + GOOD * 3,
    "byte-order mark, csv": b"\xef\xbb\xbf" + CSV + CSV_ROW * 3,
    "CRLF": (GOOD * 3).replace(b"\n", b"\r\n"),
    "CRLF, csv": (CSV + CSV_ROW * 3).replace(b"\n", b"\r\n"),
    "no last newline": (GOOD * 3).rstrip(),
    "blank lines": b"\n\n" + GOOD + b"  \n" + GOOD * 2 + b"\n\n",
    "spaces around": b"  " + GOOD * 2 + GOOD.strip() + b" \t",
    "out of order": row(timestamp=9) + row(timestamp=3) + GOOD,
    "one row twice": GOOD + GOOD + row(timestamp=2),
    "times of fractions": row(timestamp=0) + row(timestamp=0.5) + GOOD,
    "another key": row(model="x") * 3,
    "another column": CSV.strip() + b",Images\n" + b"2024-01-01 00:00:00,5,5,1\n" * 3,
    "packed": gzip.compress(GOOD * 3),
    "packed in two parts": gzip.compress(GOOD) + gzip.compress(GOOD * 2),
}
NAMES = ["with space.jsonl", "größe 表.jsonl", "-dash.jsonl", "no ending", ".hidden"]


@pytest.mark.parametrize("content", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_does_no_harm_is_taken(call: Call, tmp_path: Path, content: bytes) -> None:
    """A trace as another program or system writes it is read whole."""
    path = tmp_path / "good.jsonl"
    path.write_bytes(content)

    code, out, err = call("trace", "inspect", path, "--json")

    assert (code, err) == (0, "")
    assert json.loads(out)["num_requests"] == 3
    assert json.loads(out)["num_skipped"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A trace may be called anything; after ``--`` even what looks like a flag."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(GOOD)

    assert call("trace", "inspect", "--json", "--", name)[0] == 0
    assert call("run", "--policy", "v0", "--json", "-o", "out", "--", name)[0] == 0


def test_a_pipe_is_read_once(call: Call) -> None:
    """What a shell puts in place of ``<(zcat trace.gz)`` is read like a file."""
    read_end, write_end = os.pipe()
    os.write(write_end, GOOD * 3)
    os.close(write_end)
    try:
        code, out, _ = call("trace", "inspect", f"/dev/fd/{read_end}", "--json")
    finally:
        os.close(read_end)

    assert (code, json.loads(out)["num_requests"]) == (0, 3)


def test_a_prompt_that_fits_nowhere_is_no_success(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 M tokens are a good row; that nothing could serve them exits with 4."""
    monkeypatch.chdir(tmp_path)
    ids = list(range(-(-10_000_000 // 512)))
    Path("long.jsonl").write_bytes(row(input_length=10_000_000, hash_ids=ids))

    assert call("trace", "inspect", "long.jsonl")[0] == 0
    code, out, err = call("run", "long.jsonl", "--policy", "v0")

    assert code == 4
    assert "the model takes 131,072 tokens at most" in out
    assert err.startswith("error: no request could finish; the findings say why")
