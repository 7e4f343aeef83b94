"""Errors raised by the block managers."""


class AllocatorError(Exception):
    """Base class of every error this package raises on purpose."""


class OutOfBlocksError(AllocatorError):
    """A block was asked for and none is free."""

    def __init__(self, device: str, num_blocks: int) -> None:
        self.device = device
        self.num_blocks = num_blocks
        super().__init__(f"all {num_blocks} {device} blocks are in use")


class DoubleFreeError(AllocatorError):
    """A block was freed that nobody held."""

    def __init__(self, device: str, block_number: int) -> None:
        self.device = device
        self.block_number = block_number
        super().__init__(f"{device} block {block_number} is already free")
