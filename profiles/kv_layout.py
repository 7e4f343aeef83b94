"""How an engine cuts the KV cache of a rank into blocks, and what a request takes."""

from collections import Counter
from dataclasses import dataclass

from profiles.model import ModelProfile

MOST_PADDING = 1.5
"""Kinds of layers whose numbers differ by less are padded to groups of one size.

Source: vLLM 0.32.0 ``v1/core/kv_cache_utils.py``.
"""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Groups of layers that share a pool of blocks.

    A block of the pool serves one group: it holds ``block_size`` tokens of each of its
    layers. Where all layers are alike there is one group.

    Attributes:
        block_size: Tokens in a block.
        layer_bytes: Bytes of a block in one layer on one rank.
        num_layers: Layers of a group on the rank, padding included.
        group_windows: Sliding window of each group's layers, or None.
    """

    block_size: int
    layer_bytes: int
    num_layers: int
    group_windows: tuple[int | None, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool on one rank."""
        return self.layer_bytes * self.num_layers

    @property
    def num_groups(self) -> int:
        """Groups of layers."""
        return len(self.group_windows)

    def num_tokens(self, num_blocks: int) -> int:
        """Tokens of sequences that no window cuts, in so many blocks."""
        return num_blocks // self.num_groups * self.block_size

    def num_request_blocks(self, num_tokens: int, num_step_tokens: int) -> int:
        """Most blocks that one request of a length holds at a time, all groups together.

        A layer with a window keeps the window and what is computed at a time, and one
        block more, as a window may begin inside one.

        Args:
            num_tokens: Length of the request.
            num_step_tokens: Most of its tokens that are being computed at a time.

        Source: vLLM 0.32.0 ``v1/kv_cache_interface.py``.
        """
        return sum(
            self._num_group_blocks(window, num_tokens, num_step_tokens)
            for window in self.group_windows
        )

    def _num_group_blocks(
        self, window: int | None, num_tokens: int, num_step_tokens: int
    ) -> int:
        if window is None:
            return -(-num_tokens // self.block_size)
        num_kept = min(window - 1 + num_step_tokens, num_tokens)
        return -(-num_kept // self.block_size) + 1


def kv_layout(
    model: ModelProfile,
    *,
    block_size: int,
    tensor_parallel_size: int = 1,
    layers: range | None = None,
    has_groups: bool = True,
    num_draft_layers: int = 0,
) -> KvLayout:
    """The layout of a rank that holds some layers, all where none are named.

    Args:
        model: Its layers, and the windows that they have.
        block_size: Tokens in a block.
        tensor_parallel_size: GPUs that share each layer.
        layers: The rank's.
        has_groups: The engine knows layers with a window from others; else every layer
            is billed as if it attended to all tokens.
        num_draft_layers: Layers like the model's that a draft head adds on this rank.

    Raises:
        CapacityError: The attention heads cannot be shared out evenly.
    """
    token_bytes = model.kv_bytes_per_token(tensor_parallel_size) // model.num_layers
    num_on_rank = model.num_layers if layers is None else len(layers)
    windows, group_size = _groups(model.layer_windows) if has_groups else ((None,), 0)
    num_layers = num_on_rank + num_draft_layers
    if len(windows) > 1:
        num_layers = -(-group_size * num_on_rank // model.num_layers) + num_draft_layers
    return KvLayout(block_size, block_size * token_bytes, num_layers, windows)


def _groups(
    layer_windows: tuple[int | None, ...],
) -> tuple[tuple[int | None, ...], int]:
    """Window of each group, and layers in each, over the whole model.

    Source: vLLM 0.32.0 ``v1/core/kv_cache_utils.py``.
    """
    counts = Counter(layer_windows)
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < MOST_PADDING * fewest else fewest
    windows = [w for w, count in counts.items() for _ in range(-(-count // size))]
    return tuple(windows), size
