"""Exit codes, and which expected error ends with which."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell learns from a command."""

    FINE = 0
    UNEXPECTED = 1
    USAGE = 2
    BAD_TRACE = 3
    IMPOSSIBLE = 4
    ENGINE_FAILED = 5
    DIVERGED = 6
    INTERRUPTED = 130
    CLOSED_PIPE = 141


# By qualified name, so that no package is imported before it raises. A subclass counts
# as its nearest named ancestor; an error that is not listed is our own bug.
EXPECTED_ERRORS = {
    "bench_cli.streams.OutputError": ExitCode.ENGINE_FAILED,
    "harness.errors.TraceError": ExitCode.BAD_TRACE,
    "harness.errors.ConfigError": ExitCode.IMPOSSIBLE,
    "harness.errors.UsageError": ExitCode.USAGE,
    "harness.errors.EngineError": ExitCode.ENGINE_FAILED,
    "profiles.errors.CapacityError": ExitCode.IMPOSSIBLE,
    "profiles.errors.ProfileError": ExitCode.USAGE,
    "results.errors.RunFolderError": ExitCode.USAGE,
    "results.errors.ResultsError": ExitCode.ENGINE_FAILED,
}


def exit_code_of(error: BaseException) -> ExitCode | None:
    """The exit code of an expected error; None for one that is not expected."""
    for kind in type(error).__mro__:
        code = EXPECTED_ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code
    return None
