"""The caching allocator against twenty lines that search lists."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from allocators.block import Device
from allocators.cached_allocator import CachedBlockAllocator


@dataclass
class NaiveBlock:
    number: int
    content: int
    tokens: int
    refs: int = 1
    accessed: int = -1


class NaiveAllocator:
    """Every block in one of two lists; every question is a search."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.used: list[NaiveBlock] = []
        self.idle: list[NaiveBlock] = []

    def allocate(self, content: int, tokens: int) -> NaiveBlock:
        for block in self.used:
            if block.content == content:
                block.refs += 1
                return block
        found = [block for block in self.idle if block.content == content]
        if found:
            block = found[0]
            self.idle.remove(block)
            block.refs = 1
        elif len(self.used) + len(self.idle) < self.num_blocks:
            block = NaiveBlock(len(self.used) + len(self.idle), content, tokens)
        else:
            block = self.idle[0]
            for other in self.idle[1:]:
                if other.accessed > block.accessed:
                    break
                block = other if other.tokens > block.tokens else block
            self.idle.remove(block)
            block.content, block.tokens, block.refs = content, tokens, 1
        self.used.append(block)
        return block

    def free(self, block: NaiveBlock, now: int) -> None:
        block.accessed = now
        block.refs -= 1
        if not block.refs:
            self.used.remove(block)
            self.idle.append(block)


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.integers(-3, 0)), max_size=80
    ),
)
def test_agrees_with_the_naive_allocator(
    num_blocks: int, operations: list[tuple[bool, int, int]]
) -> None:
    """Same blocks handed out, shared, revived and evicted, whatever is asked."""
    ours, naive = (
        CachedBlockAllocator(Device.GPU, 4, num_blocks),
        NaiveAllocator(num_blocks),
    )
    held = []
    for time, (is_free, choice, lateness) in enumerate(operations):
        if is_free and held:
            mine, theirs = held.pop(choice % len(held))
            mine.last_accessed = time + lateness
            ours.free(mine)
            naive.free(theirs, time + lateness)
        elif ours.num_free_blocks:
            content = (choice + 1) << 40
            mine = ours.allocate(content, choice % 3)
            theirs = naive.allocate(content, choice % 3)
            held.append((mine, theirs))
            assert mine.block_number == theirs.number

        assert ours.num_free_blocks == num_blocks - len(naive.used)
        assert ours.num_cached_blocks == len(naive.idle)
        ours.check_invariants()
