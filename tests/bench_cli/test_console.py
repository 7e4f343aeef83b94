"""Tests for :mod:`bench_cli.console`."""

from collections.abc import Callable

import pytest

from bench_cli.console import Screen

LONG = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    "show",
    [
        lambda screen: screen.spread(LONG, "simulated"),
        lambda screen: screen.facts([(LONG, "1")]),
        lambda screen: screen.facts([("name", LONG)]),
        lambda screen: screen.table([LONG], [["1"]]),
        lambda screen: screen.line(LONG),
        lambda screen: screen.aside(LONG),
    ],
)
def test_a_narrow_terminal_breaks_words_and_cuts_none(
    show: Callable[[Screen], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name that is longer than a line goes on in the next."""
    monkeypatch.setenv("COLUMNS", "30")
    show(Screen())

    shown = capsys.readouterr().out
    assert "…" not in shown
    letters = "".join(sign for sign in shown if sign in LONG)
    assert set(LONG) <= set(letters)
    assert len(letters) >= len(LONG)
