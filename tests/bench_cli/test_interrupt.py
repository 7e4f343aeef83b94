"""Tests for :mod:`bench_cli.interrupt`."""

import signal
from threading import Thread

import pytest

from bench_cli.interrupt import STOPPING, stopped_by_signals


@pytest.mark.parametrize("number", STOPPING)
def test_signals_are_noted_and_interrupt_nothing(number: signal.Signals) -> None:
    """Whoever asks learns of the signal, however often it comes."""
    with stopped_by_signals() as is_stopped:
        assert not is_stopped()
        for _ in range(3):
            signal.raise_signal(number)

        assert is_stopped()


def test_ctrl_c_works_as_before_afterwards() -> None:
    """The handlers are those that were there."""
    before = [signal.getsignal(number) for number in STOPPING]

    with stopped_by_signals():
        assert [signal.getsignal(number) for number in STOPPING] != before

    assert [signal.getsignal(number) for number in STOPPING] == before


def test_ctrl_c_that_was_ignored_stays_so() -> None:
    """A background job of a script, which ignores Ctrl-C, is not made to heed it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals() as is_stopped:
            signal.raise_signal(signal.SIGINT)
            assert not is_stopped()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_is_never_stopped() -> None:
    """Signals reach the main thread only; elsewhere nothing is installed."""
    answers: list[bool] = []

    def ask() -> None:
        with stopped_by_signals() as is_stopped:
            answers.append(is_stopped())

    thread = Thread(target=ask)
    thread.start()
    thread.join()

    assert answers == [False]
