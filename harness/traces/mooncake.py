"""Mooncake's JSON lines, as released with the FAST'25 paper.

A row is ``{"timestamp", "input_length", "output_length", "hash_ids"}``: milliseconds,
tokens, tokens, and one id for each block of 512 prompt tokens, the last one partial.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.run_columns import IntArray, RunColumns
from harness.traces.bad_row import (
    BadRowError,
    BadRows,
    checked_length,
    checked_time_ns,
    parse_object,
    required,
    shown,
)
from harness.traces.reader import TraceColumns
from harness.traces.source import TraceSource

_RELEASED_BLOCK_SIZE = 512
_BLOCK_SIZES = tuple(2**power for power in range(3, 17))
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Other formats write these four keys too, with other meanings.
_FOREIGN_KEYS = ("chat_id", "session_id")


class MooncakeReader:
    """Reads Mooncake traces; a hash id becomes a segment."""

    name = "mooncake"
    first_line = (
        '{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}'
    )

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Whether one of the lines has three of Mooncake's keys, no other format's."""
        return any(_has_our_keys(line) for line in head)

    def read(self, source: TraceSource, bad_rows: BadRows) -> TraceColumns:
        """The rows of the file."""
        rows = _Rows()
        for line, text in source.lines():
            try:
                rows.add(line, parse_object(text))
            except BadRowError as bad:
                bad_rows.reject(line, bad)
        return rows.columns(bad_rows)


class _Rows:
    """The rows read so far; block lengths wait until the block size is known."""

    def __init__(self) -> None:
        self._line = array("q")
        self._arrival_ns = array("q")
        self._input_length = array("q")
        self._output_length = array("q")
        self._output_segment = array("q")
        self._num_ids = array("q")
        self._segment = array("q")
        # One counter numbers hash ids and outputs, so that they never clash.
        self._next_segment = count()
        self._segment_of = defaultdict[int, int](self._next_segment.__next__)

    def add(self, line: int, row: dict[str, Any]) -> None:
        for key in _FOREIGN_KEYS:
            if key in row:
                raise BadRowError(
                    f"{key}: another format's row", f"has {key}, as no Mooncake row does"
                )
        time = required(row, "timestamp")
        arrival_ns = checked_time_ns("timestamp", time, unit_ns=1_000_000)
        input_length = checked_length("input_length", required(row, "input_length"))
        output = checked_length("output_length", required(row, "output_length"))
        hash_ids = _checked_ids(required(row, "hash_ids"))
        self._line.append(line)
        self._arrival_ns.append(arrival_ns)
        self._input_length.append(input_length)
        self._output_length.append(output)
        self._num_ids.append(len(hash_ids))
        self._segment.extend(map(self._segment_of.__getitem__, hash_ids))
        self._output_segment.append(next(self._next_segment))

    def columns(self, bad_rows: BadRows) -> TraceColumns:
        """The rows whose ids fit their length."""
        input_length, num_ids = _numpy(self._input_length), _numpy(self._num_ids)
        block_size = infer_block_size(input_length, num_ids)
        fits = num_blocks(input_length, block_size) == num_ids
        for row in np.flatnonzero(~fits).tolist():
            bad_rows.reject(
                self._line[row],
                _misfit(self._num_ids[row], self._input_length[row], block_size),
            )
        kept = np.flatnonzero(fits)
        arrival_ns = _numpy(self._arrival_ns)[kept]
        return TraceColumns(
            arrival_ns=arrival_ns,
            prompts=self._prompts(block_size).take(kept),
            outputs=RunColumns(
                np.arange(len(kept) + 1),
                _numpy(self._output_segment)[kept],
                _numpy(self._output_length)[kept].astype(np.int32),
            ),
            has_sharing=True,
            notes=[*_block_size_note(block_size), *_tick_note(arrival_ns)],
        )

    def _prompts(self, block_size: int) -> RunColumns:
        """Runs of one block each; the last of a row holds what is left of it."""
        offsets = np.concatenate(([0], np.cumsum(_numpy(self._num_ids))))
        lengths = np.full(len(self._segment), block_size, dtype=np.int32)
        full_tokens = (_numpy(self._num_ids) - 1) * block_size
        lengths[offsets[1:] - 1] = _numpy(self._input_length) - full_tokens
        return RunColumns(offsets, _numpy(self._segment), lengths)


def infer_block_size(input_length: IntArray, num_ids: IntArray) -> int:
    """The power of two that explains the number of ids in the most rows.

    512, the released traces' size, unless another explains more rows, at least three
    of them and half of those with two ids or more.
    """
    tells = num_ids > 1
    num_fitting = {
        size: int((num_blocks(input_length, size) == num_ids)[tells].sum())
        for size in _BLOCK_SIZES
    }
    best = max(_BLOCK_SIZES, key=lambda size: num_fitting[size])
    enough = max(3, int(tells.sum()) / 2, num_fitting[_RELEASED_BLOCK_SIZE] + 1)
    return best if num_fitting[best] >= enough else _RELEASED_BLOCK_SIZE


def num_blocks(num_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that hold so many tokens, the last one perhaps in part."""
    return -(-num_tokens // block_size)


def _has_our_keys(line: bytes) -> bool:
    try:
        row = parse_object(line)
    except BadRowError:
        return False
    has_ours = sum(key in row for key in _KEYS) >= 3
    return has_ours and not any(key in row for key in _FOREIGN_KEYS)


def _checked_ids(value: object) -> list[int]:
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        raise BadRowError(
            "bad hash_ids",
            f"hash_ids is {shown(value)}, must be a list of whole numbers, one for each"
            " block of the prompt",
        )
    return value


def _misfit(num_ids: int, input_length: int, block_size: int) -> BadRowError:
    fewest, most = (num_ids - 1) * block_size + 1, num_ids * block_size
    return BadRowError(
        "hash_ids do not fit input_length",
        f"{num_ids} ids need {fewest}..{most} tokens (block size {block_size}), but"
        f" input_length is {input_length}",
    )


def _block_size_note(block_size: int) -> list[str]:
    if block_size == _RELEASED_BLOCK_SIZE:
        return []
    return [f"a hash id stands for {block_size} tokens, inferred from the lengths"]


def _tick_note(arrival_ns: IntArray) -> list[str]:
    """Say so where arrivals were rounded to a coarse tick."""
    _, sizes = np.unique(arrival_ns, return_counts=True)
    if len(sizes) < 2 or len(arrival_ns) < 4 * len(sizes):
        return []
    return [
        f"arrivals have only {len(sizes):,} distinct times, so requests come in bursts"
        f" of up to {sizes.max():,}"
    ]


def _numpy(values: "array[int]") -> NDArray[np.int64]:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)
