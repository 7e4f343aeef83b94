"""The command line, called in this process through its entry point."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from bench_cli.main import main

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]


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
