"""Tests for :mod:`bench_cli.interrupt`."""

import signal

import pytest

from bench_cli.interrupt import one_ctrl_c


def test_only_the_first_ctrl_c_interrupts() -> None:
    """A second one while the first is being dealt with does nothing."""
    with one_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_was_ignored_stays_so() -> None:
    """A background job of a script, which ignores Ctrl-C, is not made to heed it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with one_ctrl_c():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
