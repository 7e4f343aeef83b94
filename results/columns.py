"""Records by column, the same whether they come from memory or from a stored run."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.measured import NotMeasuredError
from results.rows import Rows

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Columns:
    """Columns by name, each turned into an array when first asked for.

    Every statistic is computed from these, so the rows of a run that has just ended and
    the DataFrames of :func:`results.load` give the same figures to the last bit.

    Args:
        table: What gives a column for its name: lists, or a pandas DataFrame.
        num_rows: Length of each column.
        unmeasured: Columns that hold nothing, whatever is in their cells.

    Raises:
        NotMeasuredError: By every method that is asked for one of these.
    """

    def __init__(
        self, table: Any, num_rows: int, unmeasured: Collection[str] = ()
    ) -> None:
        self._table = table
        self._num_rows = num_rows
        self._unmeasured = frozenset(unmeasured)
        self._floats: dict[str, FloatArray] = {}

    @classmethod
    def of(
        cls,
        record_type: type[Any],
        records: Sequence[object],
        unmeasured: Collection[str] = (),
    ) -> "Columns":
        """The columns of records, one an attribute."""
        return cls(_ByName(rows_of(record_type, records)), len(records), unmeasured)

    def has(self, *names: str) -> bool:
        """Whether all of these were measured."""
        return self._unmeasured.isdisjoint(names)

    def _column(self, name: str) -> Any:
        if name in self._unmeasured:
            raise NotMeasuredError(name)
        return self._table[name]

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, name: str) -> FloatArray:
        """A column of numbers, ``(num_rows,)``, NaN where a value is missing.

        Whole numbers stay exact up to 2**53, which is 104 days of nanoseconds.
        """
        if name not in self._floats:
            values = self._column(name)
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(np.float64), np.nan)
            self._floats[name] = np.asarray(values, dtype=np.float64)
        return self._floats[name]

    def is_equal(self, name: str, value: str) -> BoolArray:
        """Where a column of words holds this one, ``(num_rows,)``."""
        words = np.asarray(self._column(name), dtype=object)
        equal: BoolArray = np.asarray(words == value, dtype=np.bool_)
        return equal

    def words(self, name: str) -> list[str]:
        """The distinct words of a column of words, sorted."""
        return sorted(set(map(str, self._column(name))))

    def flat(self, name: str) -> FloatArray:
        """All numbers of a column of lists, row after row."""
        numbers = [number for row in self._column(name) for number in row]
        return np.array(numbers, dtype=np.float64)

    def total(self, name: str) -> int:
        """Sum of a column of whole numbers."""
        return int(self[name].sum())


def durations_ns(steps: Columns) -> FloatArray:
    """Nanoseconds of each stretch, ``(num_stretches,)``."""
    return steps["end_ns"] - steps["start_ns"]


def computing_ns(steps: Columns) -> FloatArray:
    """The same without the time in which steps waited for swaps.

    A measured engine does not tell that time apart, and then it is in it.
    """
    waiting = steps["swap_ns"] if steps.has("swap_ns") else 0.0
    computing: FloatArray = durations_ns(steps) - waiting
    return computing


def rows_of(record_type: type[Any], records: Sequence[Any]) -> Rows[Any]:
    """Records by column, as they are where they are held so already."""
    return records if isinstance(records, Rows) else Rows(record_type, records)


class _ByName:
    """Gives the columns of rows by their names."""

    def __init__(self, rows: Rows[Any]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        return self._rows.column(name)
