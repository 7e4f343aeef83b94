"""Tests for ``blockbench profiles``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_cli.exit_code import ExitCode

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]


def test_all_names_are_listed(call: Call) -> None:
    """At least thirty models, and the GPUs that scripts rely on."""
    code, out, err = call("profiles", "list", "--json")
    document = json.loads(out)
    gpus = {gpu["name"] for gpu in document["gpus"]}

    assert (code, err) == (ExitCode.FINE, "")
    assert len(document["models"]) >= 30
    assert gpus >= {
        *(
            "A100-40GB",
            "A100-80GB",
            "H100-80GB",
            "H100-NVL",
            "H200",
            "B200",
            "L4",
            "L40S",
        ),
        *(
            "L4",
            "L40S",
            "A10G",
            "T4",
            "V100-32GB",
            "RTX-3090",
            "RTX-4090",
            "MI300X",
            "CPU",
        ),
    }
    assert "Llama-3.1-8B" in call("profiles", "list")[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h100", "known error 3 % of TPOT, of TTFT 10 %, median over 34 rows: servers"),
        ("L4", "no published row was compared"),
        ("Qwen3-30B-A3B", "active_params_b"),
    ],
)
def test_one_profile_says_what_stands_behind_it(
    call: Call, name: str, words: str
) -> None:
    """Figures with their sources, of a GPU or a model."""
    code, out, _ = call("profiles", "show", name)

    assert code == ExitCode.FINE
    assert words in " ".join(out.split())


def test_a_file_is_shown_as_well(call: Call, tmp_path: Path) -> None:
    """A config.json is read as a model."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, out, err = call("profiles", "show", path, "--json")

    assert (code, err) == (ExitCode.FINE, "")
    assert json.loads(out)["num_layers"] == 2


def test_an_unknown_name_is_refused(refuse: Refuse) -> None:
    """The nearest names are offered."""
    assert "did you mean" in refuse(2, "profiles", "show", "Lama-3.1-8B")
