"""The command line, called in this process through its entry point."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench_cli.main import main

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Refuse = Callable[..., str]
Tune = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def call() -> Call:
    """Return a caller of the app: arguments to exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        argv = ["blockbench", *map(str, args)]
        with (
            mock.patch.object(sys, "argv", argv),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out.getvalue(), err.getvalue()

    return call


@pytest.fixture
def refuse(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Return a caller that expects one error and nothing else: no output, no file.

    It gives back the error, which for a wrong command line may have a hint after it.
    """
    monkeypatch.chdir(tmp_path)

    def refuse(code: int, *args: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        ended, out, err = call(*args)
        message, *hints = err.splitlines()
        assert (ended, out) == (code, ""), err
        assert message.startswith("error: ")
        assert not hints or (code == 2 and hints[0].endswith("--help lists the options"))
        assert len(hints) <= 1
        assert sorted(tmp_path.rglob("*")) == before
        return message.removeprefix("error: ")

    return refuse


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Lay out a trace, a bad one, a full folder and a link that leads back to itself."""
    row = '{"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}\n'
    (tmp_path / "good.jsonl").write_text(row * 3)
    (tmp_path / "bad.jsonl").write_text(row + row.replace("2", "0") + row)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "loop").symlink_to("loop")


@pytest.fixture
def generate(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generate:
    """Return a maker of traces of 200 requests, 20 a second: flags to the file."""
    monkeypatch.chdir(tmp_path)

    def generate(*flags: object) -> str:
        given = ("--num-requests", 200, "--request-rate", 20, "--output-len", 64, *flags)
        code, _, err = call("trace", "generate", "-o", "trace.jsonl", "--force", *given)
        assert code == 0, err
        return "trace.jsonl"

    return generate


@pytest.fixture
def tune(call: Call) -> Tune:
    """Return a caller of ``tune --json``: of today's vLLM, 12 trials, unless told so."""

    def tune(*args: object) -> dict[str, Any]:
        version = () if "--vllm-version" in args else ("--vllm-version", "0.32.0")
        budget = () if "--budget" in args else ("--budget", "12trials")
        jobs = () if "--jobs" in args else ("--jobs", 1)
        code, out, err = call("tune", *args, *version, *budget, *jobs, "--json")
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return tune
