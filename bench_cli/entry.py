"""What the command ``blockbench`` starts: it can be interrupted before all is loaded."""

import os

INTERRUPTED = 130
"""That of :mod:`bench_cli.exit_code`, which takes ten milliseconds to import."""


def main() -> None:
    """Load the app and run it; Ctrl-C while it loads ends without a word."""
    try:
        import signal
    except KeyboardInterrupt:
        _leave()
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, _leave)
    from bench_cli.main import main as run  # takes a tenth of a second

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(*_: object) -> None:
    """Exit at once: an exception that rises in an import may be wrapped, or lost."""
    os._exit(INTERRUPTED)
