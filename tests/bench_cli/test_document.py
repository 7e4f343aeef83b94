"""Tests for :mod:`bench_cli.document`: JSON documents on stdout and in files."""

import json
import os
import sys
from pathlib import Path
from threading import Thread

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


def test_only_a_document_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """-o writes over what it wrote before, and never over a trace or anything else."""
    file, trace = tmp_path / "document.json", tmp_path / "trace.jsonl"
    trace.write_bytes((ROOT / "examples" / "chat_1000.jsonl").read_bytes())
    before = trace.read_bytes()

    assert call(monkeypatch, *INSPECT, "-o", str(file)) == 0
    assert call(monkeypatch, *INSPECT, "-o", str(file)) == 0
    assert call(monkeypatch, *VERIFY, "-o", str(file)) == 2
    assert "holds no verify document" in capsys.readouterr().err
    assert call(monkeypatch, "trace", "inspect", str(trace), "-o", str(trace)) == 2
    assert trace.read_bytes() == before
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file.name, trace.name]


def test_a_pipe_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no file is not replaced by one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()

    assert call(monkeypatch, *VERIFY, "-o", str(pipe)) == 0

    reader.join(timeout=20)
    assert json.loads(heard[0])["identical"]
    assert pipe.is_fifo()
