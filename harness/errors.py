"""What can go wrong in a run, said so that the user can act on it."""

from os import PathLike, fspath
from typing import Any


class HarnessError(Exception):
    """Root of the errors that this package raises for a user's mistake."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies be made, other processes' too, past the parameters of __init__."""
        return Exception.__new__, (type(self), *self.args), self.__dict__


class TraceError(HarnessError):
    """A trace file that cannot be used as it is.

    Attributes:
        path: The file.
        line: Line of the file, from 1; None when the whole file is meant.
        problem: What is wrong.
        remedy: What to do about it; may be empty.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        problem: str,
        remedy: str = "",
        *,
        line: int | None = None,
    ) -> None:
        self.path = fspath(path)
        self.line = line
        self.problem = problem
        self.remedy = remedy
        where = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class ConfigError(HarnessError):
    """A configuration under which no engine could start or no request could run."""


class UsageError(HarnessError):
    """Flags that contradict each other, or ask for what this version does not have."""


class NotReplayedError(UsageError):
    """What vLLM has, and this package does not replay."""


class EngineError(HarnessError):
    """An engine that stopped without being able to go on."""
