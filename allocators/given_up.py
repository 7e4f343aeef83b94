"""Which contents a cache once held and gave up, to tell when one is needed again."""

from allocators.block_hash import TOKENS_PER_SEGMENT, BlockHash


class GivenUp:
    """A set of contents, one bit for each token of the segments they end in.

    An hour of traffic gives up millions of blocks, for which a set of numbers would take
    hundreds of megabytes. Blocks that never had a content are left out.
    """

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, block_hash: BlockHash) -> None:
        """Note that the content is no longer cached."""
        branch, num_tokens = divmod(block_hash, TOKENS_PER_SEGMENT)
        if not branch:
            return
        bits = self._bits.setdefault(branch, bytearray())
        index, bit = divmod(num_tokens, 8)
        if index >= len(bits):
            bits.extend(bytes(index + 1 - len(bits)))
        bits[index] |= 1 << bit

    def take(self, block_hash: BlockHash) -> bool:
        """Whether the content was there; it is no longer."""
        branch, num_tokens = divmod(block_hash, TOKENS_PER_SEGMENT)
        bits = self._bits.get(branch)
        index, bit = divmod(num_tokens, 8)
        if bits is None or index >= len(bits) or not bits[index] >> bit & 1:
            return False
        bits[index] &= ~(1 << bit)
        return True
