"""JSON of others, read so that what is wrong is named with its place."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import TraceError

DAMAGED = "export it again, or repeat the benchmark that wrote it"


class JsonNode:
    """A value of a JSON document, which knows where it stands.

    Args:
        path: The file.
        value: The value.
        place: Keys that lead to it, as people read them.
        line: Line of the file that it begins on, where lines are documents of their own.

    Raises:
        TraceError: By every method that finds another kind of value than it is to.
    """

    def __init__(
        self, path: Path, value: Any, place: str = "", line: int | None = None
    ) -> None:
        self.path = path
        self.value = value
        self.place = place
        self._line = line

    def at(self, *keys: str) -> "JsonNode":
        """What stands under the keys; of null or of nothing there is nothing."""
        node = self
        for key in keys:
            found = node._object().get(key) if node.value is not None else None
            place = f"{node.place}.{key}" if node.place else key
            node = JsonNode(self.path, found, place, self._line)
        return node

    def first(self, *names: str) -> "JsonNode":
        """What stands under the first of the names that has something."""
        nodes = [self.at(name) for name in names]
        return next((node for node in nodes if node.value is not None), nodes[0])

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def items(self) -> Iterator["JsonNode"]:
        """The entries of a list; none of null."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for number, value in enumerate(self.value):
            place = f"{self.place}[{number}]"
            yield JsonNode(self.path, value, place, self._line)

    def length(self) -> int:
        """Entries of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return len(self.value)

    def numbers(self) -> tuple[float, ...]:
        """The entries of a list of finite numbers, 0 or more; none of null.

        A long benchmark has millions of them, so they are looked at one by one only where
        one of them is wrong.
        """
        values = self.value
        is_plain = isinstance(values, list) and {*map(type, values)} <= {int, float}
        if is_plain and all(0 <= value < math.inf for value in values):
            return tuple(map(float, values))
        return tuple(node.needed() for node in self.items())

    def number(self) -> float | None:
        """A finite number, 0 or more; None for null."""
        value = self.value
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise self.wrong("a number from 0")
        return float(value)

    def count(self) -> int | None:
        """A whole number, 0 or more; None for null."""
        number = self.number()
        if number is not None and number != int(number):
            raise self.wrong("a whole number from 0")
        return None if number is None else int(number)

    def text(self) -> str:
        """A text; empty for null."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def needed(self) -> float:
        """A finite number, 0 or more."""
        number = self.number()
        if number is None:
            raise self.wrong("a number from 0")
        return number

    def wrong(self, needed: str) -> TraceError:
        """That the value is not what it should be."""
        shown = json.dumps(self.value, default=str)
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        return TraceError(
            self.path,
            f"{self.place or 'the document'} is {shown}, which is not {needed}",
            DAMAGED,
            line=self._line,
        )


def read_nodes(path: Path) -> list[JsonNode]:
    """The documents of a file: one, or one a line.

    Raises:
        TraceError: It cannot be read, is empty, or is no JSON.
    """
    text = _read_text(path)
    if not text.strip():
        raise TraceError(path, "the file is empty", DAMAGED)
    try:
        return [JsonNode(path, json.loads(text, parse_constant=_named))]
    except (ValueError, RecursionError) as error:
        lines = [n for n in enumerate(text.splitlines(), start=1) if n[1].strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):
            raise TraceError(path, f"is no JSON: {error}", DAMAGED) from error
    return [JsonNode(path, _of_line(path, *line), line=line[0]) for line in lines]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(
            path, "is no text in UTF-8", "name the JSON that the client wrote"
        ) from error
    except OSError as error:
        raise TraceError(
            path, f"cannot be read: {error.strerror or error}", "name another file"
        ) from error


def _named(word: str) -> float:
    """Python's own JSON has NaN and Infinity, which some clients write."""
    return float(word)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_named)
    except (ValueError, RecursionError):
        return False
    return True


def _of_line(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_named)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            path, f"is no JSON: {error}; a file that was cut off?", DAMAGED, line=number
        ) from error
