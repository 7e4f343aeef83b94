"""Tests for :mod:`bench_cli.document`: JSON documents on stdout and in files."""

import json
import sys
from pathlib import Path

import pytest

from bench_cli.main import main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
INSPECT = ["trace", "inspect", str(ROOT / "examples" / "chat_1000.jsonl")]
VERIFY = [
    "verify",
    "--scenario",
    str(GOLDEN / "v0_random_27.scenario.json.gz"),
    "--rows",
    str(GOLDEN / "v0_random_27.rows.jsonl.gz"),
]


def call(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Run the command; its exit code."""
    monkeypatch.setattr(sys, "argv", ["blockbench", *args])
    with pytest.raises(SystemExit) as raised:
        main()
    assert isinstance(raised.value.code, int)
    return raised.value.code


@pytest.mark.parametrize("command", [INSPECT, VERIFY])
def test_document_goes_to_the_file_and_to_stdout(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With -o and --json the same document lies in the file and on stdout."""
    file = tmp_path / "document.json"

    assert call(monkeypatch, *command, "--json", "-o", str(file)) == 0

    assert json.loads(file.read_text()) == json.loads(capsys.readouterr().out)


def test_file_alone_leaves_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -o alone people still see the result."""
    file = tmp_path / "document.json"

    assert call(monkeypatch, *VERIFY, "-o", str(file)) == 0

    assert json.loads(file.read_text())["identical"]
    assert capsys.readouterr().out.startswith("identical over 61 steps")


def test_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in a folder that is not there is refused with the way out."""
    file = tmp_path / "nowhere" / "document.json"

    assert call(monkeypatch, *INSPECT, "-o", str(file)) == 2

    assert "choose another file with -o" in capsys.readouterr().err
