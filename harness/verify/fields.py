"""The fields of a recorded JSON object, each checked and named where it is wrong."""

from collections.abc import Sequence
from typing import Any

from harness.request import Run
from harness.traces.bad_row import shown

MAX_COUNT = 10_000_000


class FieldError(Exception):
    """A field that is missing or holds what it must not."""


class Fields:
    """One JSON object, asked field by field.

    Args:
        value: What the file holds.
        where: What it is called in messages.

    Raises:
        FieldError: It is no object; every method raises it for a field.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise FieldError(f"{where} is {shown(value)}, must be an object")
        self.where = where
        self._values = value

    def value(self, name: str) -> Any:
        """A field that must be there."""
        if name not in self._values:
            raise FieldError(f"it lacks {name!r} in {self.where}")
        return self._values[name]

    def count(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        """A whole number from ``least`` to ``MAX_COUNT``."""
        if default is not None and name not in self._values:
            return default
        return self._checked_count(name, self.value(name), least)

    def counts(self, name: str, *, least: int = 0) -> list[int]:
        """A list of such numbers."""
        return [self._checked_count(name, v, least) for v in self.items(name)]

    def runs(self, name: str) -> list[Run]:
        """A list of pairs of such numbers."""
        runs = []
        for pair in self.items(name):
            if not isinstance(pair, list) or len(pair) != 2:
                raise self._wrong(name, pair, "a pair of segment and length")
            segment, length = (self._checked_count(name, v, 0) for v in pair)
            runs.append((segment, length))
        return runs

    def share(self, name: str) -> float:
        """A number from 0 to 1."""
        value = self.value(name)
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise self._wrong(name, value, "a number from 0 to 1")
        return float(value)

    def switch(self, name: str, *, default: bool | None = None) -> bool:
        """True or false."""
        value = self._optional(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def choice(
        self, name: str, choices: Sequence[str], *, default: str | None = None
    ) -> str | None:
        """One of the choices, or None for null."""
        value = self._optional(name, default)
        if value is not None and value not in choices:
            raise self._wrong(name, value, f"null or one of {', '.join(choices)}")
        return None if value is None else str(value)

    def _optional(self, name: str, default: object) -> Any:
        """A field; one that must be there unless there is a default."""
        return self.value(name) if default is None else self._values.get(name, default)

    def text(self, name: str, *, default: str) -> str:
        """A string; ``default`` where it is null or missing."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self.value(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def _checked_count(self, name: str, value: object, least: int) -> int:
        # bool is a subclass of int, so compare the type itself
        if type(value) is int and least <= value <= MAX_COUNT:
            return value
        what = f"a whole number from {least} to {MAX_COUNT:,}"
        raise self._wrong(name, value, what)

    def _wrong(self, name: str, value: object, needed: str) -> FieldError:
        return FieldError(f"{name} in {self.where} is {shown(value)}, must be {needed}")
