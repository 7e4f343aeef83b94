"""Rows that cannot be used: refused at the first, or counted by reason."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from harness.errors import TraceError

MAX_LENGTH = 2**31 - 1
MAX_TIME_S = 9_000_000_000  # in nanoseconds it still fits 64 bits
NOT_UTF_8 = "no UTF-8 text"
_UNIT_OF_NS = {1_000_000: "ms", 1_000_000_000: "s"}


class BadRowError(Exception):
    """One row that cannot be used.

    Attributes:
        reason: Why, without the row's own values, for counting.
        problem: Why, with the row's own values.
    """

    def __init__(self, reason: str, problem: str | None = None) -> None:
        self.reason = reason
        self.problem = problem or reason
        super().__init__(self.problem)


class BadRows:
    """What happened to the bad rows of one file.

    Args:
        path: The file.
        skip: Count bad rows and go on, rather than stop at the first.
    """

    def __init__(self, path: Path, *, skip: bool) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self._skip = skip

    def reject(self, line: int, bad: BadRowError) -> None:
        """Count a bad row.

        Raises:
            TraceError: Bad rows are not to be skipped.
        """
        if not self._skip:
            raise TraceError(
                self.path,
                bad.problem,
                "correct the row, or leave such rows out with --skip-bad-rows",
                line=line,
            ) from bad
        self.counts[bad.reason] += 1


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object on one line.

    Raises:
        BadRowError: The line holds none.
    """
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        decoded(text)  # letters of another encoding are told as such
        raise BadRowError(
            "not valid JSON", f"not valid JSON: {error.msg} (column {error.colno})"
        ) from error
    if not isinstance(row, dict):
        raise BadRowError("not a JSON object", f"not a JSON object: {shown(row)}")
    return row


def decoded(text: bytes) -> str:
    """The text of one line.

    Raises:
        BadRowError: It is not UTF-8.
    """
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise BadRowError(NOT_UTF_8) from error


def required(row: dict[str, Any], key: str) -> Any:
    """The value of a key that every row must have.

    Raises:
        BadRowError: The row lacks it.
    """
    try:
        return row[key]
    except KeyError:
        raise BadRowError(f"{key} is missing") from None


def checked_length(name: str, value: object, *, maximum: int = MAX_LENGTH) -> int:
    """A number of tokens, at least 1.

    Raises:
        BadRowError: It is not a whole number from 1 to ``maximum``.
    """
    # bool is a subclass of int, so compare the type itself
    if type(value) is int and 1 <= value <= maximum:
        return value
    if type(value) is int and value == 0:
        needed = "a request has at least one token here"
        raise BadRowError(f"{name} is 0", f"{name} is 0, but {needed}")
    raise BadRowError(
        f"bad {name}",
        f"{name} is {shown(value)}, must be a whole number from 1 to {maximum:,}",
    )


def checked_time_ns(name: str, value: object, *, unit_ns: int) -> int:
    """A time of the given unit as nanoseconds, at least 0.

    Raises:
        BadRowError: It is not a number, or out of range.
    """
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        number: int | float = value
        if 0 <= number * unit_ns <= MAX_TIME_S * 1_000_000_000:
            return round(number * unit_ns)
    raise BadRowError(
        f"bad {name}",
        f"{name} is {shown(value)}, must be a time from 0 to"
        f" {MAX_TIME_S * 1_000_000_000 // unit_ns:,} {_UNIT_OF_NS[unit_ns]}",
    )


def shown(value: object) -> str:
    """A value as a message shows it: short, in JSON's spelling where it has one."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
