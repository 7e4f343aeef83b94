"""Tests for :mod:`allocators.content`: numbers that stand for prefixes."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.content import ContentIndex, ContentPath, ContentRange

NOBODY_ELSES = -1
Runs = list[tuple[int, int]]


@dataclass
class Writer:
    """A sequence of the test, and the path that the index gave it."""

    keys: tuple[str, ...]
    runs: Runs  # the last one is its output
    path: ContentPath

    @property
    def tokens(self) -> list[tuple[int, int]]:
        return [(segment, i) for segment, n in self.runs for i in range(n)]

    @property
    def places(self) -> set[tuple[object, ...]]:
        """Each of its runs, without its length, after what comes before it."""
        return {
            (self.keys, tuple(self.runs[:i]), segment)
            for i, (segment, _) in enumerate(self.runs)
        }

    @property
    def output_place(self) -> tuple[object, ...]:
        return self.keys, tuple(self.runs[:-1]), self.runs[-1][0]


def begin(
    index: ContentIndex, *runs: tuple[int, int], keys: tuple[str, ...] = ()
) -> Writer:
    """Begin a sequence whose last run is its output."""
    return Writer(keys, list(runs), index.begin(runs[:-1], runs[-1], keys))


def contents(writer: Writer, block_size: int) -> list[int]:
    """The content of each full block."""
    num_full = len(writer.tokens) // block_size
    return [writer.path.content(block) for block in range(num_full)]


@st.composite
def sequences(draw: st.DrawFn, earlier: list[Writer]) -> Runs:
    """Runs of a few segments, often ones that continue what was there before."""
    run = st.tuples(st.integers(0, 3), st.integers(1, 9))
    runs: Runs = draw(st.lists(run, min_size=1, max_size=2))
    if earlier and draw(st.booleans()):
        before = draw(st.sampled_from(earlier)).runs
        kept = before[: draw(st.integers(1, len(before)))]
        if draw(st.booleans()):
            kept = [*kept[:-1], (kept[-1][0], draw(st.integers(1, 9)))]
        runs = kept + runs
    return [*runs, (draw(st.integers(4, 6)), draw(st.integers(1, 14)))]


@settings(max_examples=300)
@given(st.integers(1, 4), st.data())
def test_equal_numbers_are_equal_prefixes(block_size: int, data: st.DataObject) -> None:
    """Two blocks have one number exactly if all tokens up to their ends are the same."""
    index = ContentIndex(block_size)
    writers: list[Writer] = []
    prefix_of: dict[int, object] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        runs = data.draw(sequences(writers))
        keys = data.draw(st.sampled_from([(), (), ("salt",)]))
        writers.append(begin(index, *runs, keys=keys))

    for writer in writers:
        for block, content in enumerate(contents(writer, block_size)):
            prefix = (writer.keys, tuple(writer.tokens[: (block + 1) * block_size]))
            assert prefix_of.setdefault(content, prefix) == prefix
    assert len(set(prefix_of.values())) == len(prefix_of)
    assert set(prefix_of) == set(range(index.num_contents))


@settings(max_examples=300)
@given(st.integers(1, 4), st.data())
def test_parts_are_the_blocks_asked_for(block_size: int, data: st.DataObject) -> None:
    """A path's ranges leave no gap; any stretch of it gives those blocks' contents."""
    index = ContentIndex(block_size)
    writers: list[Writer] = []
    for _ in range(data.draw(st.integers(1, 8))):
        writers.append(begin(index, *data.draw(sequences(writers))))

    for writer in writers:
        expected = contents(writer, block_size)
        low = data.draw(st.integers(0, len(expected)))
        high = data.draw(st.integers(low, len(expected)))
        found, block = [], low
        for part in writer.path.parts(low, high):
            assert part.begin == block
            assert part.begin < part.end or low == high
            found += range(part.first, part.first + part.end - part.begin)
            block = part.end
        assert found == expected[low:high]


@settings(max_examples=300)
@given(st.data())
def test_shared_writers_are_those_whose_output_others_run_through(
    data: st.DataObject,
) -> None:
    """A path is among them while it is under way and another leads through its output."""
    index = ContentIndex(2)
    writers: list[Writer] = []
    under_way: list[Writer] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if under_way and data.draw(st.booleans()):
            ended = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            index.end(ended.path)
        else:
            writer = begin(index, *data.draw(sequences(writers)))
            writers.append(writer)
            under_way.append(writer)

        assert index.shared_writers == {
            writer.path
            for writer in under_way
            if any(writer.output_place in w.places for w in writers if w is not writer)
        }


def test_a_new_sequence_is_one_range() -> None:
    """Prompt and output of a sequence that is all new have consecutive numbers."""
    index = ContentIndex(4)

    path = begin(index, (0, 10), (1, 7), (2, 21)).path

    assert path.ranges == [(0, 9, 0)]
    assert index.num_contents == 9


def test_longer_output_goes_on_behind_what_was_numbered_since() -> None:
    """A segment that is followed further later has its further blocks numbered then."""
    index = ContentIndex(4)
    begin(index, (0, 8), (1, 8))
    begin(index, (5, 12), (6, 1))

    path = begin(index, (0, 8), (1, 16)).path

    assert path.ranges == [(0, 4, 0), (4, 6, 7)]
    assert begin(index, (0, 8), (1, 14), (9, 1)).path.ranges == [(0, 4, 0), (4, 5, 7)]


def test_how_far_a_prefix_reaches_is_part_of_its_name() -> None:
    """The same segment after 3 and after 4 tokens of another is different content."""
    index = ContentIndex(4)

    after_three = begin(index, (0, 3), (1, 9))
    after_four = begin(index, (0, 4), (1, 8))

    assert not set(contents(after_three, 4)) & set(contents(after_four, 4))


def test_a_path_has_no_content_before_its_first_block() -> None:
    """Asked for a block below 0, a path says that it is asked wrongly."""
    with pytest.raises(AssertionError, match="a path begins with block 0"):
        begin(ContentIndex(4), (0, 8), (1, 8)).path.content(-1)


@settings(max_examples=200)
@given(st.integers(1, 4), st.data())
def test_what_is_nobody_elses_shares_no_number_while_it_is_under_way(
    block_size: int, data: st.DataObject
) -> None:
    """Numbers of content that no other path can have are used again after its end."""
    index = ContentIndex(block_size, lambda part: data.draw(st.booleans()))
    under_way: list[Writer] = []
    ended: list[Writer] = []
    for _ in range(data.draw(st.integers(1, 14))):
        if under_way and data.draw(st.booleans()):
            ended.append(under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
            index.end(ended[-1].path)
            continue
        runs = data.draw(sequences([]))
        alone = data.draw(st.integers(0, len(runs) - 1))
        runs[alone:] = [(NOBODY_ELSES, n) for _, n in runs[alone:]]
        writer = begin(index, *runs)
        num_before = sum(n for _, n in runs[:alone]) // block_size
        num_full = len(writer.tokens) // block_size
        own = writer.path.own
        assert (own is None) == (num_before == num_full)
        assert own is None or own[:2] == (num_before, num_full)
        under_way.append(writer)

        numbers = [contents(w, block_size) for w in under_way]
        own_numbers = [
            found[w.path.own.begin :] if w.path.own else []
            for w, found in zip(under_way, numbers, strict=True)
        ]
        shared = {
            c
            for found, own in zip(numbers, own_numbers, strict=True)
            for c in found[: len(found) - len(own)]
        }
        flat = [number for own in own_numbers for number in own]
        assert len(set(flat)) == len(flat)
        assert not shared & set(flat)
        assert not index.shared_writers


def test_numbers_of_a_path_that_is_over_are_used_again_once_forgotten() -> None:
    """A path alone of 5 blocks, then ones of 8: all fit the same power of two."""
    forgettable = False
    asked: list[ContentRange] = []

    def forget(part: ContentRange) -> bool:
        asked.append(part)
        return forgettable

    index = ContentIndex(4, forget)
    first = begin(index, (NOBODY_ELSES, 10), (NOBODY_ELSES, 10))
    assert first.path.ranges == [(0, 5, 0)]
    assert index.num_contents == 8
    index.end(first.path)

    long = (NOBODY_ELSES, 32), (NOBODY_ELSES, 3)
    assert begin(index, *long).path.ranges == [(0, 8, 8)]
    assert asked == [first.path.own]
    forgettable = True
    assert begin(index, *long).path.ranges == [(0, 8, 0)]
    assert begin(index, *long).path.ranges == [(0, 8, 16)]
    assert len(asked) == 2
    longer = (NOBODY_ELSES, 36), (NOBODY_ELSES, 3)
    assert begin(index, *longer).path.ranges == [(0, 9, 24)]


def test_without_a_way_to_forget_no_number_is_used_again() -> None:
    """An index on its own cannot know whether contents are cached still."""
    index = ContentIndex(4)
    index.end(begin(index, (NOBODY_ELSES, 10), (NOBODY_ELSES, 10)).path)

    assert begin(index, (NOBODY_ELSES, 10), (NOBODY_ELSES, 10)).path.ranges == [(0, 5, 8)]
