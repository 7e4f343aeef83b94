"""What full blocks hold, as numbers: equal content has one number, followers are next.

vLLM names a full block by a hash over everything from the first token to the block's
last. Here every distinct content gets a number when it is first seen, and contents that
follow each other get numbers that follow each other. So a whole prompt is a few ranges
of numbers, and what is known of its blocks is a slice of an array.
"""

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SEGMENT_BITS = 48
_LENGTH_BITS = 32


class ContentRange(NamedTuple):
    """Blocks ``begin`` to ``end`` (exclusive) of a sequence and their content numbers.

    Attributes:
        begin: Index of the first block in the sequence.
        end: Index after the last.
        first: Content of block ``begin``; the others follow it.
    """

    begin: int
    end: int
    first: int


class ContentPath:
    """The contents of one sequence, block by block.

    Attributes:
        ranges: In order and without a gap, from block 0 to the last full one.
        output_node: Where its output is numbered, if others may have it too.
        own: The blocks that no other path can have.
    """

    __slots__ = ("output_node", "own", "ranges")

    def __init__(self) -> None:
        self.ranges: list[ContentRange] = []
        self.output_node: int | None = None
        self.own: ContentRange | None = None

    def content(self, block: int) -> int:
        """The content of one block; late blocks are found first."""
        for begin, _, first in reversed(self.ranges):
            if begin <= block:
                return first + block - begin
        raise AssertionError("a path begins with block 0")

    def contents(self, begin: int, end: int) -> NDArray[np.int64]:
        """The contents of blocks ``begin`` to ``end`` (exclusive)."""
        pieces = [
            np.arange(part.first, part.first + part.end - part.begin)
            for part in self.parts(begin, end)
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *pieces])

    def parts(self, begin: int, end: int) -> list[ContentRange]:
        """The ranges of blocks ``begin`` to ``end`` (exclusive)."""
        parts = []
        for part in self.ranges:
            low, high, first = part
            if high <= begin or low >= end:
                continue
            if low < begin or high > end:
                cut = begin - low if low < begin else 0
                high = end if high > end else high
                part = ContentRange(low + cut, high, first + cut)
            parts.append(part)
        return parts

    def append(self, begin: int, end: int, first: int) -> None:
        """Let the path go on with the contents of blocks ``begin`` to ``end``."""
        if self.ranges:
            last_begin, _, last_first = self.ranges[-1]
            if first - last_first == begin - last_begin:
                self.ranges[-1] = ContentRange(last_begin, end, last_first)
                return
        self.ranges.append(ContentRange(begin, end, first))


class ContentIndex:
    """Numbers the contents of full blocks; equal content gets the same number.

    A *node* stands for a segment after one prefix, and a prefix is named exactly: by the
    node that it ends in and how far it reaches into it. Nothing is hashed, so nothing
    collides.

    Args:
        block_size: Tokens in a block.
        forget: Asked whether contents that one path alone had, and which is over, are
            cached nowhere any more, so that their numbers can be given to others.

    Attributes:
        num_contents: Numbers given out: 0 to ``num_contents - 1``.
        shared_writers: Paths under way whose output other paths may run through as well.
    """

    def __init__(
        self, block_size: int, forget: Callable[[ContentRange], bool] | None = None
    ) -> None:
        self.block_size = block_size
        self.num_contents = 0
        self._forget = forget
        self.shared_writers: set[ContentPath] = set()
        self._roots: dict[tuple[Hashable, ...], int] = {}
        self._nodes: dict[int, int] = {}
        # By node: the first block that ends in it, the one after the last that is
        # numbered, and the content of the first. What was numbered later is in _more.
        self._begin, self._end, self._first = array("q"), array("q"), array("q")
        self._more: dict[int, list[ContentRange]] = {}
        self._writers: dict[int, list[ContentPath]] = {}
        # Numbers of paths that are over, by size class, the oldest first.
        self._spare: dict[int, deque[ContentRange]] = {}

    def begin(
        self,
        prompt: Iterable[tuple[int, int]],
        output: tuple[int, int],
        extra_keys: tuple[Hashable, ...] = (),
    ) -> ContentPath:
        """The path of a sequence that will write ``output`` after ``prompt``.

        Args:
            prompt: ``(segment, num_tokens)`` runs. A segment is a number from 0, or
                below 0 for content that no other path can have, and so has what follows.
            output: The run that it writes.
            extra_keys: What else cached content must agree on: adapter and salt.
        """
        path = ContentPath()
        prefix = self._root(extra_keys)
        position = 0
        runs = [*prompt, output]
        for place, (segment, length) in enumerate(runs):
            if segment < 0:
                rest = sum(length for _, length in runs[place:])
                self._go_alone(path, position, position + rest)
                return path
            is_output = place == len(runs) - 1
            num_known = len(self._nodes)
            node = self._node(prefix, segment, position)
            self._follow(path, node, position + length)
            if is_output:
                self._write(path, node, is_known=num_known == len(self._nodes))
            # How far the prefix reaches into the node is part of its name.
            prefix = (node << _LENGTH_BITS) | length
            position += length
        return path

    def end(self, path: ContentPath) -> None:
        """Take note that the path's sequence is over."""
        if path.own is not None:
            size_class = _size_class(path.own.begin, path.own.end)
            self._spare.setdefault(size_class, deque()).append(path.own)
        if path.output_node is None:
            return
        self.shared_writers.discard(path)
        writers = self._writers[path.output_node]
        writers.remove(path)
        if not writers:
            del self._writers[path.output_node]

    def _write(self, path: ContentPath, node: int, *, is_known: bool) -> None:
        """Note that a path's sequence is going to write what a node holds."""
        path.output_node = node
        if is_known:
            self.shared_writers.add(path)
        self._writers.setdefault(node, []).append(path)

    def _go_alone(self, path: ContentPath, position: int, num_tokens: int) -> None:
        """Number the rest of a path, which no other one can have.

        Numbers come in powers of two, so that those of a path that is over fit others.
        """
        begin, end = position // self.block_size, num_tokens // self.block_size
        if begin == end:
            return
        first, size_class = self.num_contents, _size_class(begin, end)
        spare = self._spare.get(size_class)
        if spare and self._forget is not None and self._forget(spare[0]):
            first = spare.popleft().first
        else:
            self.num_contents += 1 << size_class
        path.own = ContentRange(begin, end, first)
        path.append(begin, end, first)

    def _root(self, extra_keys: tuple[Hashable, ...]) -> int:
        """The empty prefix under these keys: a node without content."""
        root = self._roots.get(extra_keys)
        if root is None:
            root = self._roots[extra_keys] = self._new_node(0)
        return root << _LENGTH_BITS

    def _node(self, prefix: int, segment: int, position: int) -> int:
        """The node of a segment that begins at a token's position after a prefix."""
        key = (prefix << _SEGMENT_BITS) | segment
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._new_node(position // self.block_size)
        return node

    def _new_node(self, first_block: int) -> int:
        self._begin.append(first_block)
        self._end.append(first_block)
        self._first.append(self.num_contents)
        return len(self._begin) - 1

    def _follow(self, path: ContentPath, node: int, num_tokens: int) -> None:
        """Lead a path through a node up to so many tokens, numbering what is new."""
        if node in self._writers:
            self.shared_writers.update(self._writers[node])
        end_block = num_tokens // self.block_size
        known_end = self._end[node]
        if known_end < end_block:
            self._number(node, end_block)
        begin = self._begin[node]
        if begin >= end_block:
            return
        more = self._more.get(node, ())
        first_end = min(more[0].begin, end_block) if more else end_block
        path.append(begin, first_end, self._first[node])
        for part in more:
            if part.begin < end_block:
                path.append(part.begin, min(part.end, end_block), part.first)

    def _number(self, node: int, end_block: int) -> None:
        """Number the contents of a node up to a block."""
        known_end = self._end[node]
        if known_end == self._begin[node]:
            self._first[node] = self.num_contents
        elif self._last_content(node) == self.num_contents - 1:
            pass  # they go on where the node's own end
        else:
            part = ContentRange(known_end, end_block, self.num_contents)
            self._more.setdefault(node, []).append(part)
        self.num_contents += end_block - known_end
        self._end[node] = end_block

    def _last_content(self, node: int) -> int:
        if node in self._more:
            return -1
        return self._first[node] + self._end[node] - self._begin[node] - 1


def _size_class(begin: int, end: int) -> int:
    """The power of two from which the numbers of a range of blocks are taken."""
    return (end - begin - 1).bit_length()
