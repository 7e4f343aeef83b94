"""Bytes of weights that one rank of an engine holds."""

from profiles.architecture import ModelProfile
from profiles.layer import Module

VOCAB_MULTIPLE = 64
"""The vocabulary is padded to this before it is shared out.

Source: vLLM 0.32.0 vocab_parallel_embedding.py ``DEFAULT_VOCAB_PADDING_SIZE``.
"""


def weight_bytes(
    model: ModelProfile,
    *,
    tensor_parallel_size: int = 1,
    layers: range | None = None,
    has_embedding: bool = True,
    has_head: bool = True,
) -> int:
    """Bytes on one rank: its share of matrices, and all of what every rank needs.

    Args:
        model: In the types that its weights have.
        tensor_parallel_size: GPUs that share each layer.
        layers: The rank's, all where none are named.
        has_embedding: The rank is of the first stage.
        has_head: The rank is of the last stage.

    Raises:
        CapacityError: The attention heads cannot be shared out evenly.
    """
    size = tensor_parallel_size
    held = range(model.num_layers) if layers is None else layers
    num_bytes = sum(_layer_bytes(model, layer, size) for layer in held)
    num_bytes += _table_bytes(model, size, has_embedding, has_head)
    return num_bytes + rope_cache_bytes(model)


def rope_cache_bytes(model: ModelProfile) -> int:
    """Sines and cosines of all positions, which all layers of a rank share.

    They are what Llama-3.1-8B (14.99 GiB) prints beyond the parameters of Llama-3-8B
    (14.96): its positions reach 16 times as far.

    Source: vLLM 0.32.0 rotary_embedding ``cos_sin_cache``.
    """
    return model.max_model_len * model.rotary_dim * model.bytes_per_param


def _layer_bytes(model: ModelProfile, layer: int, size: int) -> int:
    modules = model.layer_modules(layer, size)
    vector_bytes = model.num_vector_params(layer) * model.bytes_per_param
    return vector_bytes + sum(_module_bytes(model, module) for module in modules)


def _module_bytes(model: ModelProfile, module: Module) -> int:
    """What is quantised takes its scales along, biases keep the dtype."""
    weight_type, bytes_per_param = model.weight_type(module.name)
    if weight_type == "bfloat16" or (quantization := model.quantization) is None:
        return module.num_params * model.bytes_per_param
    num_bytes = module.num_weights * bytes_per_param
    if module.num > 1:
        num_bytes *= _padded(model.hidden_size, quantization.hidden_multiple)
        num_bytes /= model.hidden_size
    return round(num_bytes) + module.num * module.num_biases * model.bytes_per_param


def _table_bytes(
    model: ModelProfile, size: int, has_embedding: bool, has_head: bool
) -> int:
    """Embedding, positions, language head and the norm before it."""
    num_tables = has_embedding + has_head
    if model.tie_word_embeddings:
        num_tables = min(num_tables, 1)
    vocab_share = -(-_padded(model.vocab_size, VOCAB_MULTIPLE) // size)
    num_params = num_tables * vocab_share * model.hidden_size
    if has_embedding:
        num_params += model.num_position_params
    if has_head:
        num_params += model.num_norm_params + model.has_lm_head_bias * vocab_share
    return num_params * model.bytes_per_param


def _padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
