"""Tests for :mod:`allocators.block_hash`."""

from hypothesis import given
from hypothesis import strategies as st

from allocators.block_hash import PrefixHashes, PrefixIndex

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5)


class BrokenHash(int):
    """A segment whose Python hash is the same as every other's."""

    def __hash__(self) -> int:
        return 1


def tokens_of(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spell the tokens out."""
    return [(segment, i) for segment, length in runs for i in range(length)]


@given(RUNS, RUNS)
def test_numbers_are_equal_exactly_for_equal_prefixes(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """Two prefixes have one number if and only if all their tokens agree."""
    index = PrefixIndex()
    a, b = (PrefixHashes(index, index.root(), runs) for runs in (first, second))
    tokens_a, tokens_b = tokens_of(first), tokens_of(second)

    for i in range(1, len(tokens_a) + 1):
        for j in range(1, len(tokens_b) + 1):
            assert (a[i] == b[j]) == (tokens_a[:i] == tokens_b[:j])


@given(RUNS, RUNS)
def test_a_broken_hash_does_not_make_prompts_share(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """With every segment's hash the same, different prefixes still differ."""
    index = PrefixIndex()
    broken = [[(BrokenHash(s), n) for s, n in runs] for runs in (first, second)]
    a, b = (PrefixHashes(index, index.root(), runs) for runs in broken)
    tokens_a, tokens_b = tokens_of(first), tokens_of(second)
    shortest = min(len(tokens_a), len(tokens_b))

    for i in range(1, shortest + 1):
        assert (a[i] == b[i]) == (tokens_a[:i] == tokens_b[:i])


def test_extra_keys_keep_prompts_apart() -> None:
    """The same tokens under another salt or adapter are another prefix."""
    index = PrefixIndex()
    keys = [(), ("salt", "x"), ("salt", "y"), ("adapter", 1)]

    numbers = {PrefixHashes(index, index.root(key), [(5, 40)])[32] for key in keys}

    assert len(numbers) == len(keys)


def test_parent_is_part_of_the_identity() -> None:
    """The same block behind another prefix is another block."""
    index = PrefixIndex()
    x = PrefixHashes(index, index.root(), [(1, 16), (3, 16)])
    y = PrefixHashes(index, index.root(), [(2, 16), (3, 16)])

    assert x[32] != y[32]


@given(RUNS, st.integers(1, 8))
def test_block_numbers_are_those_of_their_ends(
    runs: list[tuple[int, int]], block_size: int
) -> None:
    """``of_blocks`` numbers the prefixes that end with each block, full or not."""
    index = PrefixIndex()
    hashes = PrefixHashes(index, index.root(), runs)

    for num_tokens in range(1, hashes.num_tokens + 1):
        ends = [*range(block_size, num_tokens + 1, block_size)]
        if num_tokens % block_size:
            ends.append(num_tokens)
        expected = [hashes[end] for end in ends]
        assert hashes.of_blocks(num_tokens, block_size) == expected


def test_extended_sequence_keeps_its_prefixes() -> None:
    """Another run behind a sequence changes none of the prefixes before it."""
    index = PrefixIndex()
    prompt = PrefixHashes(index, index.root(), [(1, 10), (2, 5)])

    longer = prompt.extended(7, 6)

    assert [longer[i] for i in range(1, 16)] == [prompt[i] for i in range(1, 16)]
    assert longer.num_tokens == 21
    assert longer[21] == longer[16] + 5


def test_numbers_leave_room_below_for_blocks_without_content() -> None:
    """Every prefix number is at least 2**32."""
    index = PrefixIndex()

    assert PrefixHashes(index, index.root(), [(0, 1)])[1] > 2**32
