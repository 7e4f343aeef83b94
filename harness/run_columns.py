"""Runs of many prompts or outputs, held as columns of numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.request import Run

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """The runs of many rows, one row after another.

    Row ``i`` owns the runs from ``offsets[i]`` to ``offsets[i + 1]``, at least one.

    Attributes:
        offsets: Where each row's runs start, ``(num_rows + 1,)``.
        segments: Segment of each run, ``(num_runs,)``.
        lengths: Tokens of each run, ``(num_runs,)``.
    """

    offsets: IntArray
    segments: IntArray
    lengths: NDArray[np.int32]

    @classmethod
    def from_runs(cls, rows: Iterable[Sequence[Run]]) -> "RunColumns":
        """Lay the given rows out as columns."""
        offsets, flat = [0], list[Run]()
        for runs in rows:
            flat.extend(runs)
            offsets.append(len(flat))
        columns = np.array(flat, dtype=np.int64).reshape(-1, 2)
        return cls(
            np.array(offsets, dtype=np.int64),
            np.ascontiguousarray(columns[:, 0]),
            columns[:, 1].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def runs(self, row: int) -> tuple[Run, ...]:
        """The runs of one row, in order."""
        begin, end = self.offsets.item(row), self.offsets.item(row + 1)
        if end - begin == 1:
            return ((self.segments.item(begin), self.lengths.item(begin)),)
        segments, lengths = self.segments[begin:end], self.lengths[begin:end]
        return tuple(zip(segments.tolist(), lengths.tolist(), strict=True))

    def totals(self) -> IntArray:
        """Tokens of each row, ``(num_rows,)``."""
        return np.add.reduceat(self.lengths, self.offsets[:-1], dtype=np.int64)

    def take(self, rows: IntArray) -> "RunColumns":
        """The given rows only, in the given order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        moved = np.repeat(self.offsets[rows] - offsets[:-1], counts)
        index = moved + np.arange(offsets[-1])
        return RunColumns(offsets, self.segments[index], self.lengths[index])
