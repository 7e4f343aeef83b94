"""Parts of a decoder's layer."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: a token is cached as one latent vector a layer.

    Attributes:
        q_lora_rank: Width of the queries' own latent vector; None where they have none.

    Source: arXiv 2405.04434, section 2.1; names are those of config.json.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    @property
    def latent_dim(self) -> int:
        """Elements of the KV cache of a token in a layer, on every rank."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """MLPs of which each token takes a few.

    Attributes:
        intermediate_size: Of one expert.
        shared_intermediate_size: Of the MLP that every token takes besides; 0 if none.
        has_shared_gate: A gate of one output weighs the shared MLP (Qwen2-MoE).
        has_router_bias: The router adds a number to the score of each expert.
        has_bias: The experts' own layers have biases.
        layers: Layers with experts; the others have one MLP.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    has_router_bias: bool = False
    has_bias: bool = False
    layers: frozenset[int]


class Module(NamedTuple):
    """A linear layer, or equal ones, as much of it as one rank holds.

    Attributes:
        name: As checkpoints name it.
        num: Equal layers under that name.
    """

    name: str
    num_inputs: int
    num_outputs: int
    num_biases: int = 0
    num: int = 1

    @property
    def num_weights(self) -> int:
        """Parameters that a token is multiplied with."""
        return self.num * self.num_inputs * self.num_outputs

    @property
    def num_params(self) -> int:
        """The same with biases."""
        return self.num_weights + self.num * self.num_biases
