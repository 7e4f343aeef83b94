"""What tests against the installed vLLM have in common."""

import json
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 2_048,
    "max_position_embeddings": 4_096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration of a tiny Llama, and nothing else."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(autouse=True)
def _vllm_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a vLLM that a test starts log as usual: its scheduler in here is silent."""
    monkeypatch.delenv("VLLM_CONFIGURE_LOGGING", raising=False)
