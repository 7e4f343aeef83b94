"""Which contents a cache once held and gave up, to tell when one is needed again."""

from allocators.block_hash import BlockHash

_OFFSET_BITS = 32
_FIRST_NAMED = 1 << _OFFSET_BITS


class GivenUp:
    """A set of contents, one bit for each token of the segments they end in.

    An hour of traffic gives up millions of blocks, for which a set of numbers would take
    hundreds of megabytes. Blocks that never had a content (numbers below ``2**32``) are
    left out.
    """

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, block_hash: BlockHash) -> None:
        """Note that the content is no longer cached."""
        if block_hash < _FIRST_NAMED:
            return
        bits = self._bits.setdefault(block_hash >> _OFFSET_BITS, bytearray())
        index, bit = divmod(block_hash & (_FIRST_NAMED - 1), 8)
        if index >= len(bits):
            bits.extend(bytes(index + 1 - len(bits)))
        bits[index] |= 1 << bit

    def take(self, block_hash: BlockHash) -> bool:
        """Whether the content was there; it is no longer."""
        bits = self._bits.get(block_hash >> _OFFSET_BITS)
        if bits is None:
            return False
        index, bit = divmod(block_hash & (_FIRST_NAMED - 1), 8)
        if index >= len(bits) or not bits[index] >> bit & 1:
            return False
        bits[index] &= ~(1 << bit)
        return True
