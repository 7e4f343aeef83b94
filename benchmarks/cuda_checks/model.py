"""Models without weights: folders with a config.json that we write."""

import json
from pathlib import Path
from typing import Any

from cuda_checks.machine import GIB

VOCAB_SIZE = 2_048
DUMMY = "--load-format dummy --skip-tokenizer-init"

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4_096,
}
"""Starts as fast as any; its KV heads can be shared out over two GPUs."""

WIDE = TINY | {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "num_attention_heads": 8,
    "head_dim": 128,
}
"""Hardly any weights and 32 KiB of KV cache a token, so that copies are worth reading."""

BIG: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    },
    "Llama-3.2-3B": {
        "hidden_size": 3_072,
        "intermediate_size": 8_192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": {
        "hidden_size": 2_048,
        "intermediate_size": 8_192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
}
"""Shapes of real models. Source: their config.json on Hugging Face."""

_LEAST_BYTES = {"Llama-3.1-8B": 30 * GIB, "Llama-3.2-3B": 14 * GIB}
"""Memory of a GPU from which a model leaves most of it to the KV cache."""


def big_model_for(memory_bytes: int | None) -> str:
    """The largest of ``BIG`` that leaves most of a GPU to its KV cache."""
    for name, least in _LEAST_BYTES.items():
        if memory_bytes is not None and memory_bytes >= least:
            return name
    return "Llama-3.2-1B"


def write_model(folder: Path, shape: dict[str, Any]) -> Path:
    """Write a model's folder, which holds its configuration alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_LLAMA | shape), encoding="utf-8")
    return folder
