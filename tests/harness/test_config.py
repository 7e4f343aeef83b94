"""Tests for :mod:`harness.config`, policy v0."""

import re
from typing import Any

import pytest

from harness.config import EngineConfig, resolve_config
from harness.errors import ConfigError, UsageError
from profiles.errors import ProfileError


def resolve(**knobs: Any) -> EngineConfig:
    """Resolve for an 8B model on an H100 unless told otherwise."""
    chosen = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "policy": "v0"}
    return resolve_config(**(chosen | knobs))


def test_defaults_are_those_of_the_version() -> None:
    """What is not given is what vLLM 0.6.3 uses for a model of 128k tokens."""
    config = resolve()

    assert config.vllm_version == "0.6.3"
    assert config.gpu_memory_utilization == 0.9
    assert config.block_size == 16
    assert config.swap_space == 4.0
    assert config.max_num_seqs == 256
    assert config.watermark == 0.01
    assert not config.enable_prefix_caching
    assert config.enable_chunked_prefill
    assert config.max_num_batched_tokens == 512
    assert config.max_model_len == 131072


def test_prefix_caching_keeps_chunked_prefill_off() -> None:
    """With prefix caching vLLM does not chunk by itself, and a step takes any prompt."""
    config = resolve(enable_prefix_caching=True)

    assert not config.enable_chunked_prefill
    assert config.max_num_batched_tokens == 131072


def test_given_knobs_are_kept() -> None:
    """Every knob that is given is used as given."""
    given: dict[str, Any] = {
        "gpu_memory_utilization": 0.8,
        "block_size": 32,
        "max_num_seqs": 17,
        "max_num_batched_tokens": 3000,
        "max_model_len": 2048,
        "enable_chunked_prefill": True,
        "preemption_mode": "swap",
        "num_gpu_blocks_override": 500,
        "num_cpu_blocks_override": 77,
    }

    config = resolve(**given).to_dict()

    assert config["num_gpu_blocks"] == given.pop("num_gpu_blocks_override")
    assert config["num_cpu_blocks"] == given.pop("num_cpu_blocks_override")
    assert {name: config[name] for name in given} == given
    assert resolve(swap_space=8.0).swap_space == 8.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"policy": "v7"}, "unknown policy v7; v0 and v1 are there"),
        ({"engine": "vllm"}, "--engine vllm runs a real engine, .* blockbench run"),
        ({"vllm_version": "0.32.0"}, "vLLM 0.32.0 has no v0 engine"),
        ({"kv_cache_gib": 9.0, "num_gpu_blocks_override": 9}, "give one of them"),
        ({"swap_space": 9.0, "num_cpu_blocks_override": 9}, "give one of them"),
        ({"preemption_mode": "wait"}, "unknown preemption mode wait"),
        ({"async_scheduling": False}, "--async-scheduling belongs to policy v1"),
        ({"long_prefill_token_threshold": 9}, "--long-prefill-.* belongs to policy v1"),
        ({"scheduler_reserve_full_isl": True}, "belongs to policy v1; .*all of it fits"),
        ({"kv_offloading_size": 4.0}, "belongs to policy v1; .*into --swap-space"),
        ({"scheduling_policy": "priority"}, "in order of arrival; .*--policy v1"),
        ({"model": "Mistral-7B-v0.1"}, "sliding window of 4,096 .*use --policy v1"),
        ({"model": "gemma-3-1b-pt"}, "mixes full and sliding-window layers"),
    ],
)
def test_what_is_not_there_is_refused_in_words(
    knobs: dict[str, Any], message: str
) -> None:
    """A policy, engine, version or mode that is not there is named, with what is."""
    with pytest.raises(UsageError, match=message):
        resolve(**knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"block_size": 7}, "block_size is 7; it must be one of 1, 2, 4, 8, 16"),
        ({"watermark": 1.0}, "watermark is 1; it is a share"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; give 1 or more"),
        ({"max_num_seqs": 600}, "below max_num_seqs .600., and vLLM does not start"),
        ({"max_model_len": 200_000}, "takes 1 to 131072 tokens"),
        ({"max_model_len": 0}, "takes 1 to 131072 tokens"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            "below max_model_len .131072., .* lower max_model_len to 4096",
        ),
        (
            {"model": "Llama-3.1-70B", "tensor_parallel_size": 2},
            "vLLM would not start: max_model_len 131,072 exceeds",
        ),
    ],
)
def test_what_vllm_refuses_at_start_is_refused(
    knobs: dict[str, Any], message: str
) -> None:
    """Knobs with which vLLM would not start are an error that says what would do."""
    with pytest.raises(ConfigError, match=message):
        resolve(**knobs)


def test_given_pool_too_small_for_one_sequence_is_a_note() -> None:
    """With the number of blocks given, that vLLM would not start is said, not refused."""
    config = resolve(num_gpu_blocks_override=100)

    assert config.num_gpu_blocks == 100
    assert "it starts with --max-model-len 1600" in config.notes[0]


@pytest.mark.parametrize(
    ("knobs", "remedy"),
    [
        (
            {"gpu": "H100-80GB"},
            r"--max-model-len (32208) (--enable-chunked-prefill)$",
        ),
        (
            {"gpu": "H100-80GB", "max_model_len": 32_000},
            r"--max-model-len (6240)()$",
        ),
        (
            {"gpu": "H100-80GB", "max_model_len": 32_000, "enable_prefix_caching": True},
            r"--max-model-len (6240)()$",
        ),
    ],
)
def test_vllm_starts_with_what_is_advised(knobs: dict[str, Any], remedy: str) -> None:
    """The length that is named resolves, with chunks where they were what left room."""
    given = {"model": "Llama-3.1-70B", "tensor_parallel_size": 2} | knobs
    with pytest.raises(ConfigError, match=r"vLLM would not start") as refused:
        resolve(**given)

    advice = re.search(remedy, str(refused.value))
    assert advice is not None
    chunked = {"enable_chunked_prefill": True} if advice[2] else {}
    started = resolve(**given | {"max_model_len": int(advice[1])} | chunked)

    assert started.max_model_len == int(advice[1])
    assert started.enable_chunked_prefill == bool(chunked)


@pytest.mark.parametrize("chunked", [False, True])
def test_given_pool_starts_with_what_is_advised(chunked: bool) -> None:
    """The length that the note names leaves no note; chunks stay what they were."""
    knobs: dict[str, Any] = {"num_gpu_blocks_override": 100}
    knobs |= {"enable_chunked_prefill": chunked}
    (note,) = resolve(**knobs).notes

    flags = " --enable-chunked-prefill" if chunked else ""
    assert note.endswith(f"it starts with --max-model-len 1600{flags}")
    assert resolve(**knobs, max_model_len=1600).notes == ()


def test_pool_larger_than_the_gpu_is_a_note() -> None:
    """As many blocks as fit are none, one more is."""
    fitting = resolve(num_gpu_blocks_override=9000).num_fitting_gpu_blocks
    assert fitting is not None

    assert resolve(num_gpu_blocks_override=fitting).notes == ()
    assert resolve(num_gpu_blocks_override=fitting + 1).notes == (
        f"{fitting + 1:,} GPU blocks are more than fit on this GPU: about {fitting:,} at"
        " utilization 0.9",
    )


@pytest.mark.parametrize(
    ("knobs", "note"),
    [
        ({"vllm_version": "0.8.5"}, "approximate: decisions are those of vLLM 0.5.5"),
        ({"vllm_version": "0.4.3"}, "approximate: decisions are those of vLLM 0.5.5"),
        ({"watermark": 0.05}, "no option for the watermark"),
        ({"block_size": 1}, "does not offer block size 1"),
    ],
)
def test_what_differs_from_the_version_is_noted(knobs: dict[str, Any], note: str) -> None:
    """Where the replay is not exactly that vLLM, a note says so."""
    assert note in " ".join(resolve(**knobs).notes)


def test_unknown_model_is_refused() -> None:
    """An unknown model is an error of the profiles."""
    with pytest.raises(ProfileError, match=r"Llama-3\.1-8B"):
        resolve(model="Llama-3.1-9B")
