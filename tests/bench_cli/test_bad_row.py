"""Rows that cannot be used: refused by their line, or counted where they are skipped.

``run`` and ``trace inspect`` refuse the same rows with the same words.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]


def row(**changes: object) -> bytes:
    """A line of a Mooncake trace; a key that is changed to ``...`` is left out."""
    keys = {"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}
    changed = {**keys, **changes}
    kept = {key: value for key, value in changed.items() if value is not ...}
    return json.dumps(kept).encode() + b"\n"


def own(**changes: object) -> bytes:
    """A request of our own format."""
    keys = {"arrival_s": 0, "prompt": [[0, 3]], "output": [[1, 2]]}
    return json.dumps({**keys, **changes}).encode() + b"\n"


GOOD = row()
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV_ROW = b"2024-01-01 00:00:00,5,5\n"
OWN = b'{"blockbench": 1}\n'
SKIP = "; correct the row, or leave such rows out with --skip-bad-rows"
TOKENS = "must be a whole number from 1 to 2,147,483,647"
BAD_ROWS = {
    "broken": (b"{oops\n", "not valid JSON: .* .column 2."),
    "cut short": (GOOD[:30] + b"\n", "not valid JSON: unexpected end of data"),
    "with a comma": (GOOD.strip() + b",\n", "not valid JSON: unexpected content"),
    "array": (b"[1]\n", r"not a JSON object: \[1\]"),
    "number": (b"3\n", "not a JSON object: 3"),
    "latin-1": (b'{"a": "\xe9"}\n', "no UTF-8 text"),
    "endless": (b"[" * 5000 + b"\n", "not valid JSON: depth limit"),
    "NaN": (row(timestamp=float("nan")), "not valid JSON"),
    "infinity": (row(timestamp=float("inf")), "not valid JSON"),
    "1e400": (GOOD.replace(b"40", b"1e400"), "not valid JSON: number is infinity"),
    "no timestamp": (row(timestamp=...), "timestamp is missing"),
    "no input": (row(input_length=...), "input_length is missing"),
    "no output": (row(output_length=...), "output_length is missing"),
    "no ids": (row(hash_ids=...), "hash_ids is missing"),
    "time before 0": (row(timestamp=-1), "timestamp is -1, must be a time from 0 to"),
    "time of text": (row(timestamp="5"), 'timestamp is "5", must be a time'),
    "time never": (row(timestamp=1e300), r"timestamp is 1e\+300, must be a time"),
    "time null": (row(timestamp=None), "timestamp is null, must be a time"),
    "input 0": (row(input_length=0), "input_length is 0, but a request has at least one"),
    "input below 0": (row(input_length=-5), f"input_length is -5, {TOKENS}"),
    "input fraction": (row(input_length=5.5), f"input_length is 5.5, {TOKENS}"),
    "input text": (row(input_length="40"), f'input_length is "40", {TOKENS}'),
    "input true": (row(input_length=True), f"input_length is true, {TOKENS}"),
    "input null": (row(input_length=None), f"input_length is null, {TOKENS}"),
    "input 1e300": (row(input_length=1e300), rf"input_length is 1e\+300, {TOKENS}"),
    "input 10**30": (row(input_length=10**30), rf"input_length is 1e\+30, {TOKENS}"),
    "output 0": (row(output_length=0), "output_length is 0, but a request has at least"),
    "output 2**63": (row(output_length=2**63), f"output_length is {2**63}, {TOKENS}"),
    "ids empty": (row(hash_ids=[]), r"hash_ids is \[\], must be .*, one for each block"),
    "ids of text": (row(hash_ids=["a"]), r'hash_ids is \["a"\], must be a list of whole'),
    "ids true": (row(hash_ids=[True]), r"hash_ids is \[true\], must be a list of whole"),
    "ids alone": (row(hash_ids=5), "hash_ids is 5, must be a list"),
    "ids too many": (
        row(hash_ids=[1, 2]),
        r"2 ids need 513\.\.1024 tokens .*length is 40",
    ),
    "ids too few": (row(input_length=513), r"1 ids need 1\.\.512 tokens .*length is 513"),
    "another format's": (row(chat_id=1), "has chat_id, as no Mooncake row does"),
}
BAD_CSV_ROWS = {
    "a cell short": (b"2024-01-01 00:00:00,5\n", "2 columns, the header has 3"),
    "a cell more": (b"2024-01-01 00:00:00,5,5,5\n", "4 columns, the header has 3"),
    "open quote": (b'2024-01-01 00:00:00,5,"5\n', "not valid CSV"),
    "latin-1": (b"2024-01-01 00:00:00,\xe9,5\n", "no UTF-8 text"),
    "endless cell": (b"2024-01-01," + b"9" * 200_000 + b",5\n", "not valid CSV"),
    "below 0": (b"2024-01-01 00:00:00,-5,5\n", f'ContextTokens is "-5", {TOKENS}'),
    "0": (b"2024-01-01 00:00:00,5,0\n", "GeneratedTokens is 0, but a request"),
    "fraction": (b"2024-01-01 00:00:00,5.5,5\n", f'ContextTokens is "5.5", {TOKENS}'),
    "nan": (b"2024-01-01 00:00:00,nan,5\n", f'ContextTokens is "nan", {TOKENS}'),
    "infinity": (b"2024-01-01 00:00:00,5,inf\n", f'GeneratedTokens is "inf", {TOKENS}'),
    "no date": (b"yesterday,5,5\n", 'TIMESTAMP is "yesterday", must be as 2023-05-02'),
    "no such date": (b"2024-02-30 00:00:00,5,5\n", 'TIMESTAMP is "2024-02-30'),
}
BAD_OWN_ROWS = {
    "second header": (OWN, "unknown key blockbench"),
    "no prompt": (own(prompt=[]), r"prompt is \[\], must be a list of \[segment, tokens"),
    "run of three": (own(prompt=[[1, 2, 3]]), r"prompt has \[1,2,3\], must be \[segment"),
    "empty run": (own(output=[[1, 0]]), "output tokens is 0"),
    "run of 10**30": (own(output=[[1, 10**30]]), rf"output tokens is 1e\+30, {TOKENS}"),
    "segment below 0": (own(prompt=[[-1, 3]]), "prompt has segment -1, must be a whole"),
    "follows a later": (own(after=9), "after is 9, must be the number of an earlier row"),
    "delay alone": (own(delay_s=1), "delay_s needs 'after' beside it"),
    "priority of 1.5": (own(priority=1.5), "priority is 1.5, must be a whole number"),
    "empty salt": (own(salt=""), 'salt is "", must be a string that is not empty'),
    "typo": (own(prompts=1), "unknown key prompts"),
}
ROWS = [
    pytest.param(head, good, *case, id=f"{name} {label}")
    for name, head, good, cases in (
        ("mooncake", b"", GOOD, BAD_ROWS),
        ("azure", CSV, CSV_ROW, BAD_CSV_ROWS),
        ("own", OWN, own(), BAD_OWN_ROWS),
    )
    for label, case in cases.items()
]
COMMANDS = pytest.mark.parametrize(
    "command", [["run"], ["trace", "inspect"]], ids=" ".join
)


@COMMANDS
@pytest.mark.parametrize(("head", "good", "bad", "words"), ROWS)
def test_a_bad_row_is_refused(
    refuse: Refuse,
    tmp_path: Path,
    command: list[str],
    head: bytes,
    good: bytes,
    bad: bytes,
    words: str,
) -> None:
    """A bad row is named by its line, with what is wrong and the two ways out."""
    (tmp_path / "bad.jsonl").write_bytes(head + good * 2 + bad + good)
    line = head.count(b"\n") + 3

    message = refuse(3, *command, "bad.jsonl")

    assert re.fullmatch(f"bad.jsonl:{line}: {words}.*{SKIP}", message)


@pytest.mark.parametrize(("head", "good", "bad", "words"), ROWS)
def test_a_bad_row_is_counted_where_it_is_skipped(
    call: Call, tmp_path: Path, head: bytes, good: bytes, bad: bytes, words: str
) -> None:
    """The good rows are taken, and the bad one is never dropped in silence."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(head + good * 2 + bad + good)

    code, out, _ = call("trace", "inspect", path, "--skip-bad-rows", "--json")
    document = json.loads(out)

    assert code == 0
    assert (document["num_requests"], document["num_skipped"]) == (3, 1)
    assert sum(document["skipped_by_reason"].values()) == 1


@COMMANDS
def test_nothing_but_bad_rows_is_refused(
    refuse: Refuse, tmp_path: Path, command: list[str]
) -> None:
    """Where skipping leaves nothing, that is said, with the reasons."""
    (tmp_path / "bad.jsonl").write_bytes(row(output_length=0) * 3 + b"{\n")

    message = refuse(3, *command, "bad.jsonl", "--skip-bad-rows")

    assert message.startswith("bad.jsonl: nothing is left of it: all 4 rows are bad (3 ")
