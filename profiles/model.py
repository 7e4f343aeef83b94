"""Facts about models: the architecture, and the sizes that follow from it."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from profiles.errors import CapacityError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A dense decoder with grouped-query attention and a gated MLP.

    Attributes:
        max_model_len: ``max_position_embeddings``, in tokens.
        bytes_per_param: 2 for bf16.
        bytes_per_kv: Of one element of the KV cache, 2 for bf16.
        qk_norm: Whether each query and key head is normalised (Qwen3).
        num_norms_per_layer: Norms of hidden vectors in a layer; 4 in Gemma.
        sliding_window: Tokens that every layer attends to, the newest included; None
            where they attend to all.
        mixes_windows: Some layers have a window and others attend to all, so that an
            engine keeps a group of KV caches for each kind.
        source: Where the architecture was read.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_model_len: int
    bytes_per_param: int = 2
    bytes_per_kv: int = 2
    qk_norm: bool = False
    num_norms_per_layer: int = 2
    sliding_window: int | None = None
    mixes_windows: bool = False
    source: str

    @property
    def num_params(self) -> int:
        """Parameters of the checkpoint, embeddings and norms included."""
        num_tables = 1 if self.tie_word_embeddings else 2
        norms = self.num_norms_per_layer * self.hidden_size
        norms += 2 * self.head_dim if self.qk_norm else 0
        return (
            self.num_layers * (self.num_linear_params_per_layer + norms)
            + num_tables * self.num_lm_head_params
            + self.hidden_size
        )

    @property
    def num_linear_params_per_layer(self) -> int:
        """Parameters that one layer multiplies each token with."""
        num_heads = 2 * self.num_attention_heads + 2 * self.num_kv_heads
        attention = self.hidden_size * self.head_dim * num_heads
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_lm_head_params(self) -> int:
        """Parameters that each sampled token is multiplied with."""
        return self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, over all GPUs together."""
        return self.num_params * self.bytes_per_param

    def kv_heads_per_gpu(self, tensor_parallel_size: int) -> int:
        """KV heads on each GPU: shared out, and copied once there are too few.

        Raises:
            CapacityError: The attention heads cannot be shared out evenly.

        Source: vLLM config.py ``get_num_kv_heads``.
        """
        if tensor_parallel_size < 1 or self.num_attention_heads % tensor_parallel_size:
            raise CapacityError(
                f"tensor_parallel_size is {tensor_parallel_size}",
                f"it must divide the {self.num_attention_heads} attention heads of"
                f" {self.name}",
                "use a power of two such as 1, 2, 4 or 8",
            )
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of K and V that one token takes on each GPU, all layers together."""
        heads = self.kv_heads_per_gpu(tensor_parallel_size)
        return 2 * self.num_layers * heads * self.head_dim * self.bytes_per_kv

    def block_bytes(self, block_size: int, tensor_parallel_size: int = 1) -> int:
        """Bytes of one KV block on each GPU; ``block_size`` is in tokens."""
        return block_size * self.kv_bytes_per_token(tensor_parallel_size)


def load_model(name: str) -> ModelProfile:
    """Return the profile of a Hugging Face id, or of its part after the slash.

    Raises:
        UnknownNameError: No profile has this name, whatever its case.
    """
    profiles = _by_alias()
    key = name.strip().lower()
    if key not in profiles:
        raise UnknownNameError("model", name, known_models())
    return profiles[key]


def known_models() -> tuple[str, ...]:
    """Hugging Face ids of all bundled profiles, in the order of the data file."""
    return tuple(dict.fromkeys(model.name for model in _by_alias().values()))


@cache
def _by_alias() -> dict[str, ModelProfile]:
    text = (files("profiles") / "data" / "models.toml").read_text(encoding="utf-8")
    profiles: dict[str, ModelProfile] = {}
    for row in tomllib.loads(text)["model"]:
        profiles |= _entries(row)
    return profiles


def _entries(row: dict[str, Any]) -> dict[str, ModelProfile]:
    names = (row["name"], *row.pop("aliases"))
    model = ModelProfile(**row)
    lowered = [name.lower() for name in names]
    return {key: model for name in lowered for key in (name, name.split("/")[-1])}
