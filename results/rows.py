"""Records held by column: a million of them in little memory, read like a list."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from enum import StrEnum
from operator import attrgetter
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Record = TypeVar("Record")

MOST_PENDING = 1024

_NONE = -1


class Rows(Sequence[Record], Generic[Record]):
    """Records of one class; they are made anew when they are read.

    Attributes of records are whole numbers from 0, such numbers or None, words, or lists
    of whole numbers.

    Args:
        record_type: Their dataclass.
        records: What is there to begin with.
    """

    def __init__(self, record_type: type[Record], records: Iterable[Record] = ()) -> None:
        self.record_type = record_type
        hints = get_type_hints(record_type)
        names = [field.name for field in fields(record_type)]  # type: ignore[arg-type]
        self._by_name = {name: _column(name, hints[name]) for name in names}
        self._values = attrgetter(*names)
        # Values of records are put into columns by and by, many at once.
        self._pending: list[tuple[Any, ...]] = list(map(self._values, records))
        self._num_in_columns = 0

    def append(self, record: Record) -> None:
        """Add a record."""
        self.append_values(self._values(record))

    def append_values(self, values: tuple[Any, ...]) -> None:
        """Add a record by the values of its attributes, in the order of the class."""
        self._pending.append(values)
        if len(self._pending) == MOST_PENDING:
            self._settle()

    def extend(self, other: "Rows[Record]") -> None:
        """Add the records of others of the same class."""
        self._take(other, np.arange(len(other)))

    def __len__(self) -> int:
        return self._num_in_columns + len(self._pending)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        if row >= self._num_in_columns:
            return self.record_type(*self._pending[row - self._num_in_columns])
        return self.record_type(**{n: c.value(row) for n, c in self._by_name.items()})

    def __iter__(self) -> Iterator[Record]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(lambda a, b: a == b, self, other))

    def column(self, name: str) -> Any:
        """A column, ``(num_rows,)``.

        An array of whole numbers, masked where one is None; for words and lists a list.
        """
        self._settle()
        return self._by_name[name].values()

    def flat(self, name: str) -> Any:
        """All numbers of a column of lists, row after row."""
        self._settle()
        column = self._by_name[name]
        assert isinstance(column, _Lists), f"{name} is no column of lists"
        return np.array(column.numbers, dtype=np.int64)

    def sorted_by(self, name: str) -> "Rows[Record]":
        """The same records, ascending by a column of numbers that all differ."""
        order = np.argsort(self.column(name), kind="stable")
        ordered: Rows[Record] = Rows(self.record_type)
        ordered._take(self, order)
        return ordered

    def _take(self, other: "Rows[Record]", order: IntArray) -> None:
        """Add rows of others, in this order."""
        self._settle()
        other._settle()
        for name, column in self._by_name.items():
            column.take(other._by_name[name], order)
        self._num_in_columns += len(order)

    def _settle(self) -> None:
        """Put into columns what is pending."""
        if self._pending:
            columns = zip(*self._pending, strict=True)
            for column, values in zip(self._by_name.values(), columns, strict=True):
                column.extend(values)
        self._num_in_columns += len(self._pending)
        self._pending.clear()


class _Numbers:
    """A column of whole numbers."""

    def __init__(self, code: str) -> None:
        self._numbers = array(code)

    def extend(self, values: Iterable[Any]) -> None:
        numbers = list(values)
        try:
            self._numbers += array(self._numbers.typecode, numbers)
        except OverflowError:
            self._numbers = array("q", [*self._numbers, *numbers])

    def value(self, row: int) -> Any:
        return self._numbers[row]

    def values(self) -> Any:
        return np.array(self._numbers, dtype=np.int64)

    def take(self, other: Any, order: IntArray) -> None:
        taken = np.frombuffer(other._numbers, dtype=other._numbers.typecode)[order]
        self._numbers = array("q", self._numbers) if other.is_wide else self._numbers
        self._numbers.frombytes(taken.astype(self._numbers.typecode).tobytes())

    @property
    def is_wide(self) -> bool:
        """Whether 64 bits are needed for a number."""
        return self._numbers.typecode == "q"


class _OptionalNumbers(_Numbers):
    """A column of whole numbers from 0, some of which are None."""

    def extend(self, values: Iterable[Any]) -> None:
        super().extend(_NONE if value is None else value for value in values)

    def value(self, row: int) -> int | None:
        value = self._numbers[row]
        return None if value == _NONE else value

    def values(self) -> Any:
        numbers = super().values()
        return np.ma.masked_array(numbers, numbers == _NONE)


class _Words:
    """A column of words, of which there are few."""

    def __init__(self, word_type: type[Any]) -> None:
        self._word_type = word_type
        self._numbers = array("i")
        self._words: dict[str, int] = {}

    def extend(self, values: Iterable[Any]) -> None:
        words = self._words
        self._numbers.extend(words.setdefault(word, len(words)) for word in values)

    def value(self, row: int) -> Any:
        return self._word_type(list(self._words)[self._numbers[row]])

    def values(self) -> Any:
        words = [str(word) for word in self._words]
        return [words[number] for number in self._numbers]

    def take(self, other: Any, order: IntArray) -> None:
        words = list(other._words)
        self.extend(words[number] for number in np.array(other._numbers)[order])


class _Lists:
    """A column of lists of whole numbers."""

    def __init__(self) -> None:
        self.numbers = array("q")
        self._ends = array("q", [0])

    def extend(self, values: Iterable[Any]) -> None:
        for numbers in values:
            self.numbers.extend(numbers)
            self._ends.append(len(self.numbers))

    def value(self, row: int) -> list[int]:
        return self.numbers[self._ends[row] : self._ends[row + 1]].tolist()

    def values(self) -> list[list[int]]:
        return [self.value(row) for row in range(len(self._ends) - 1)]

    def take(self, other: Any, order: IntArray) -> None:
        self.extend(map(other.value, order.tolist()))


def _column(name: str, hint: Any) -> Any:
    # Times and tokens exceed 32 bits in long runs; blocks and requests hardly ever.
    code = "q" if name.endswith(("_ns", "_tokens")) else "i"
    if hint is int:
        return _Numbers(code)
    if isinstance(hint, UnionType) and set(get_args(hint)) == {int, type(None)}:
        return _OptionalNumbers(code)
    if hint == list[int]:
        return _Lists()
    assert isinstance(hint, type), f"{name}: no column for {hint}"
    assert issubclass(hint, str), f"{name}: no column for {hint}"
    return _Words(hint if issubclass(hint, StrEnum) else str)
