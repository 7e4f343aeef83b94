"""Tests for :mod:`profiles.model`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import CapacityError, ProfileError, UnknownNameError
from profiles.model import known_models, load_model
from profiles.model_config import ModelConfigError


@pytest.mark.parametrize(
    "name",
    ["Llama-3.1-8B", "LLAMA-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"],
)
def test_one_model_has_many_names(name: str) -> None:
    """Case, owner and ``-Instruct`` do not change the profile."""
    assert load_model(name) is load_model("meta-llama/Llama-3.1-8B")


def test_unknown_model_names_its_neighbour() -> None:
    """A misspelt id is refused with the nearest one."""
    with pytest.raises(UnknownNameError, match="did you mean Qwen/Qwen3-8B"):
        load_model("Qwen/Qwen-8B")


def test_no_name_is_not_the_folder_here() -> None:
    """An empty name is no path either."""
    with pytest.raises(UnknownNameError, match="no model is called ' '"):
        load_model(" ")


def test_tied_embeddings_are_counted_once() -> None:
    """Tying saves exactly one table of vocabulary by hidden size."""
    model = load_model("Qwen3-8B")
    tied = dataclasses.replace(model, tie_word_embeddings=True)

    assert model.num_params - tied.num_params == 151_936 * 4096


@pytest.mark.parametrize(
    ("tensor_parallel_size", "expected_bytes"),
    [(1, 131_072), (2, 65_536), (8, 16_384), (16, 16_384), (32, 16_384)],
)
def test_kv_heads_are_copied_once_they_run_out(
    tensor_parallel_size: int, expected_bytes: int
) -> None:
    """Beyond as many GPUs as KV heads the cache of a token shrinks no more."""
    model = load_model("Llama-3.1-8B")

    assert model.kv_bytes_per_token(tensor_parallel_size) == expected_bytes
    assert model.block_bytes(16, tensor_parallel_size) == 16 * expected_bytes


@pytest.mark.parametrize("tensor_parallel_size", [0, -2, 3, 64])
def test_tensor_parallel_size_divides_the_heads(tensor_parallel_size: int) -> None:
    """Heads that cannot be shared out evenly are refused with their number."""
    with pytest.raises(CapacityError, match="32 attention heads"):
        load_model("Llama-3.1-8B").kv_bytes_per_token(tensor_parallel_size)


def test_tensor_parallel_size_goes_with_the_kv_heads() -> None:
    """Ten KV heads cannot be shared by four GPUs, though 40 attention heads can."""
    with pytest.raises(CapacityError, match="the 10 KV heads of microsoft/phi-4"):
        load_model("phi-4").kv_bytes_per_token(4)


def test_windows_are_of_all_layers_or_mixed() -> None:
    """Mistral's layers share one window; where layers differ, the model says that."""
    mistral = load_model("Mistral-7B-v0.1")
    mixed = {name for name in known_models() if load_model(name).mixes_windows}

    assert (mistral.sliding_window, mistral.mixes_windows) == (4096, False)
    assert mixed == {
        *(f"google/gemma-2-{size}" for size in ("2b", "9b", "27b")),
        *(f"google/gemma-3-{size}-pt" for size in ("1b", "4b", "12b", "27b")),
        *(f"openai/gpt-oss-{size}" for size in ("20b", "120b")),
    }
    assert {load_model(name).sliding_window for name in mixed} == {None}


@pytest.mark.parametrize("tensor_parallel_size", [1, 2, 8, 16])
def test_a_latent_vector_is_on_every_rank(tensor_parallel_size: int) -> None:
    """The KV cache of DeepSeek-R1 takes 70,272 bytes a token however many share it."""
    model = load_model("DeepSeek-R1")
    in_fp8 = model.with_types(kv_cache_dtype="fp8")

    assert model.kv_bytes_per_token(tensor_parallel_size) == 70_272
    assert in_fp8.kv_bytes_per_token(tensor_parallel_size) == 35_136


@pytest.mark.parametrize(
    ("types", "bytes_per_param", "bytes_per_kv"),
    [
        ({}, 2, 2),
        ({"dtype": "auto", "kv_cache_dtype": "auto"}, 2, 2),
        ({"dtype": "half"}, 2, 2),
        ({"dtype": "float32"}, 4, 4),
        ({"dtype": "float32", "kv_cache_dtype": "fp8_e4m3"}, 4, 1),
        ({"dtype": "float", "kv_cache_dtype": "bfloat16"}, 4, 2),
    ],
)
def test_the_kv_cache_follows_the_dtype(
    types: dict[str, str], bytes_per_param: int, bytes_per_kv: int
) -> None:
    """Unless it is told otherwise the KV cache has the type of the weights."""
    model = load_model("Llama-3.1-8B").with_types(**types)

    assert (model.bytes_per_param, model.bytes_per_kv) == (bytes_per_param, bytes_per_kv)


@pytest.mark.parametrize(
    ("name", "method", "bytes_per_param"),
    [
        ("Llama-3.1-8B", "fp8", 1.0),
        ("Llama-3.1-8B", "awq_marlin", 0.5 + 2.5 / 128),
        ("Qwen2.5-7B-Instruct-AWQ", "awq_marlin", 0.5 + 2.5 / 128),
        ("Qwen3-8B-FP8", "fp8", 1 + 4 / 128**2),
        ("gpt-oss-20b", "mxfp4", 17 / 32),
        ("Llama-3.3-70B-Instruct-FP4", "modelopt", 9 / 16),
    ],
)
def test_quantization_names_the_checkpoint_or_makes_one(
    name: str, method: str, bytes_per_param: float
) -> None:
    """The option agrees with the checkpoint, or says how an unquantised one is taken."""
    quantization = load_model(name).with_types(quantization=method).quantization

    assert quantization is not None
    assert quantization.bytes_per_param == pytest.approx(bytes_per_param)


@pytest.mark.parametrize(
    ("types", "remedy"),
    [
        ({"dtype": "int8"}, "auto or one of bfloat16"),
        ({"kv_cache_dtype": "int4"}, "auto or one of bfloat16"),
        ({"quantization": "mxfp4"}, "name the quantised checkpoint"),
        ({"quantization": "compressed-tensors"}, "the path of its config.json"),
    ],
)
def test_types_that_do_not_follow_are_refused(types: dict[str, str], remedy: str) -> None:
    """What cannot be derived from the checkpoint is said, with what to do."""
    with pytest.raises(ProfileError, match=remedy):
        load_model("Llama-3.1-8B").with_types(**types)


def test_a_quantized_checkpoint_is_not_quantized_again() -> None:
    """fp8 on top of AWQ needs another checkpoint."""
    with pytest.raises(ProfileError, match="quantised with awq; fp8 would need another"):
        load_model("Qwen2.5-7B-Instruct-AWQ").with_types(quantization="fp8")


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's folder with a config.json."""
    made = tmp_path / "my-llama"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return made


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_model_is_read_from_its_checkpoint(folder: Path, is_folder: bool) -> None:
    """The path of config.json and that of its folder give the model that it describes."""
    path = folder if is_folder else folder / "config.json"
    model = load_model(str(path))

    assert model.num_params == load_model("Llama-3.1-8B").num_params
    assert (model.name, model.source) == ("my-llama", str(folder / "config.json"))


@pytest.mark.parametrize(
    ("given", "name"),
    [("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"), ("/mnt/x", "my-llama")],
)
def test_the_name_in_the_file_counts_unless_it_is_a_path(
    folder: Path, given: str, name: str
) -> None:
    """A model is called as its checkpoint says, or as the folder it lies in."""
    text = json.dumps({**CONFIG, "_name_or_path": given})
    (folder / "config.json").write_text(text, encoding="utf-8")

    assert load_model(str(folder)).name == name


def test_a_user_has_a_file_like_the_bundled_one(tmp_path: Path) -> None:
    """A .toml file describes a model by itself, or as one that is like another."""
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\nlike = "Qwen/Qwen3-8B"\n[config]\nnum_hidden_layers = 18\n',
        encoding="utf-8",
    )
    model = load_model(str(path))

    assert (model.name, model.num_layers, model.hidden_size) == ("own", 18, 4096)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "cannot be parsed"),
        ("config.json", "[]", "is no table of keys"),
        ("own.toml", "name = 1", "add name and a"),
        ("own.toml", "[config]", "add name and a"),
        ("own.toml", "model = 3", "is not one entry"),
        ("own.toml", "model = [3]", "add name and a"),
    ],
)
def test_a_file_without_a_model_is_refused_by_name(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    """The error names the file and what to mend."""
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ModelConfigError, match=message) as raised:
        load_model(str(path))
    assert raised.value.source == str(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    """Neither a file that is not there nor a folder without config.json is a model."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ModelConfigError, match=r"\.json: the file cannot be read"):
            load_model(str(path))


def test_no_name_means_two_models() -> None:
    """Every id and alias, with and without its owner, leads to one entry only."""
    for name in known_models():
        assert load_model(name).name == name
        assert load_model(name.split("/")[-1]).name == name
