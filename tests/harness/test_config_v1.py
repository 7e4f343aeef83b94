"""Tests for :mod:`harness.config`, policy v1 and the choice of a policy."""

import json
import re
from typing import Any

import pytest

from harness.config import EngineConfig, no_start, resolve_config
from harness.errors import ConfigError, UsageError
from profiles.errors import CapacityError


def resolve(**knobs: Any) -> EngineConfig:
    """Resolve for an 8B model on an H100 and vLLM 0.32.0 unless told otherwise."""
    chosen = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "vllm_version": "0.32.0"}
    return resolve_config(**(chosen | knobs))


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Let a vLLM be installed, or none."""
    monkeypatch.setattr("harness.config.version.installed_version", lambda: version)


def test_defaults_are_those_of_the_version() -> None:
    """What is not given is what ``vllm serve`` 0.32.0 uses on an H100."""
    config = resolve()

    assert (config.policy, config.vllm_version) == ("v1", "0.32.0")
    assert config.gpu_memory_utilization == 0.92
    assert config.block_size == 16
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (1024, 8192)
    assert config.enable_prefix_caching
    assert config.enable_chunked_prefill
    assert config.async_scheduling
    assert config.scheduler_reserve_full_isl
    assert config.scheduling_policy == "fcfs"
    assert config.long_prefill_token_threshold == 0
    assert config.watermark == 0.0
    assert (config.num_cpu_blocks, config.kv_offloading_size) == (0, 0.0)
    assert (config.swap_space, config.preemption_mode) == (None, None)
    assert config.sliding_window is None
    assert config.notes == ()


def test_given_knobs_are_kept() -> None:
    """Every knob that is given is used as given."""
    given: dict[str, Any] = {
        "gpu_memory_utilization": 0.8,
        "block_size": 32,
        "max_num_seqs": 17,
        "max_num_batched_tokens": 3000,
        "max_model_len": 2048,
        "enable_chunked_prefill": False,
        "async_scheduling": False,
        "scheduling_policy": "priority",
        "long_prefill_token_threshold": 512,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.02,
    }

    config = resolve(**given, num_gpu_blocks_override=500, num_cpu_blocks_override=77)
    uncached = resolve(enable_prefix_caching=False)

    assert {name: config.to_dict()[name] for name in given} == given
    assert (config.num_gpu_blocks, config.num_cpu_blocks) == (500, 77)
    assert not uncached.enable_prefix_caching


def test_config_is_strict_json() -> None:
    """What v1 does not have is null there."""
    config = resolve(kv_offloading_size=4.0)
    with_window = resolve(model="Mistral-7B-v0.1")

    stored = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert (stored["swap_space"], stored["preemption_mode"]) == (None, None)
    assert stored["kv_offloading_size"] == 4.0
    assert stored["sliding_window"] is None
    assert with_window.to_dict()["sliding_window"] == 4096


@pytest.mark.parametrize("size", [1, 2, 8])
def test_offloading_is_shared_by_all_gpus(size: int) -> None:
    """4 GiB hold 2,048 blocks of 2 MiB, on however many GPUs each of them lies."""
    config = resolve(kv_offloading_size=4.0, tensor_parallel_size=size)

    assert config.num_cpu_blocks == 2048


@pytest.mark.parametrize(
    ("policy", "version", "chosen"),
    [
        (None, "0.11.0", "v1"),
        (None, "0.10.2", "v1"),
        (None, "0.8.0", "v1"),
        (None, "0.7.3", "v0"),
        (None, "0.6.3", "v0"),
        ("v1", "0.10.2", "v1"),
        ("v1", "0.8.0", "v1"),
        ("v0", "0.10.2", "v0"),
    ],
)
def test_version_decides_the_policy(
    policy: str | None, version: str, chosen: str
) -> None:
    """From 0.8 on it is v1; versions that have both engines take either."""
    config = resolve(policy=policy, vllm_version=version)

    assert (config.policy, config.vllm_version) == (chosen, version)


@pytest.mark.parametrize(
    ("found", "version", "note"),
    [
        (None, "0.32.0", "no vLLM is installed here: 0.32.0 is assumed"),
        ("0.30.1", "0.30.1", "vLLM 0.30.1 is assumed, which is installed here"),
        ("0.9.2", "0.9.2", "vLLM 0.9.2 is assumed, which is installed here"),
        ("0.6.3", "0.32.0", "too old for policy v1: 0.32.0 is assumed"),
        ("0.40.0", "0.32.0", "newer than 0.33, .*: 0.32.0 is assumed"),
    ],
)
@pytest.mark.parametrize("policy", [None, "v1"])
def test_assumed_version_is_told(
    monkeypatch: pytest.MonkeyPatch,
    policy: str | None,
    found: str | None,
    version: str,
    note: str,
) -> None:
    """Without a version it is v1 as installed here, or as replayed, a note says so."""
    installed(monkeypatch, found)
    config = resolve(policy=policy, vllm_version=None)

    assert (config.policy, config.vllm_version) == ("v1", version)
    assert re.search(f"{note}; --vllm-version names another", config.notes[0])


def test_installed_vllm_changes_no_v0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy v0 is for 0.6.3 whatever is installed."""
    installed(monkeypatch, "0.9.2")

    assert resolve(policy="v0", vllm_version=None).vllm_version == "0.6.3"


@pytest.mark.parametrize(
    ("knobs", "note"),
    [
        ({"vllm_version": "0.30.0"}, "approximate: decisions are those of vLLM 0.32.0"),
        ({"vllm_version": "0.33.0"}, "approximate: decisions are those of vLLM 0.32.0"),
        ({"vllm_version": "0.99"}, "0.99 is newer than any .*0.32.0 stands in for it"),
        ({"vllm_version": "0.17.1", "swap_space": 9.0}, "--swap-space has no effect"),
        ({"vllm_version": "0.17.1", "block_size": 2}, "does not offer block size 2; it"),
        ({"vllm_version": "0.11.0", "block_size": 256}, "does not offer block size 256"),
        ({"block_size": 8}, "FlashAttention has multiples of 16; 8 shows"),
    ],
)
def test_what_differs_from_the_version_is_noted(knobs: dict[str, Any], note: str) -> None:
    """Where the replay is not exactly that vLLM, a note says so."""
    assert re.search(note, " ".join(resolve(**knobs).notes))


@pytest.mark.parametrize(
    "version", ["0.8.5", "0.11.0", "0.13.0", "0.18.1", "0.19.1", "0.20.2"]
)
def test_defaults_follow_the_version(version: str) -> None:
    """Async scheduling came with 0.14, the check of whole prompts with 0.19."""
    config = resolve(policy="v1", vllm_version=version)
    minor = int(version.split(".")[1])

    assert config.async_scheduling == (minor >= 14)
    assert config.scheduler_reserve_full_isl == (minor >= 19)
    assert config.gpu_memory_utilization == (0.92 if minor >= 20 else 0.9)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"swap_space": 4.0}, "0.18.0 removed it, .*use --kv-offloading-size"),
        ({"preemption_mode": "swap"}, "v1 always recomputes .*--kv-offloading-size"),
        ({"policy": "v1", "vllm_version": "0.7.3"}, "versions from 0.8.0 on"),
        ({"vllm_version": "0.23.0", "watermark": 0.1}, "no --watermark; it .*0.24.0"),
        (
            {"vllm_version": "0.18.1", "scheduler_reserve_full_isl": False},
            "no --scheduler-reserve-full-isl; it came with 0.19.0",
        ),
        (
            {"vllm_version": "0.11.0", "kv_offloading_size": 4.0},
            "no --kv-offloading-size; it came with 0.11.1",
        ),
        (
            {"vllm_version": "0.11.0", "num_cpu_blocks_override": 4},
            "keeps no blocks on the CPU",
        ),
        (
            {"policy": "v1", "vllm_version": "0.9.2", "async_scheduling": True},
            "no --async-scheduling; it came with 0.10.0",
        ),
        ({"scheduling_policy": "lifo"}, "unknown scheduling policy lifo; fcfs and prior"),
        ({"kv_offloading_size": 9.0, "num_cpu_blocks_override": 9}, "give one of them"),
        (
            {"enable_prefix_caching": False, "num_cpu_blocks_override": 4},
            "not replay it: leave out --no-enable-prefix-caching, or --num-cpu-blocks",
        ),
        (
            {"model": "Mistral-7B-v0.1", "kv_offloading_size": 4.0},
            "has a sliding window, with which an offload tier is not replayed; leave out",
        ),
        ({"kv_cache_gib": 9.0, "num_gpu_blocks_override": 9}, "give one of them"),
        ({"engine": "vllm"}, "--engine vllm runs a real engine"),
        (
            {"model": "google/gemma-2-9b"},
            "mixes full and sliding-window layers: vLLM keeps several cache groups",
        ),
    ],
)
def test_what_is_not_there_is_refused_in_words(
    knobs: dict[str, Any], message: str
) -> None:
    """A knob that a version lacks is named with when it came or what took its place."""
    with pytest.raises(UsageError, match=message):
        resolve(**knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"block_size": 7}, "block_size is 7; it must be one of 1, 2, 4, 8, 16"),
        ({"watermark": 1.0}, "watermark is 1; it is a share .*default is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; give 1 or more"),
        (
            {"max_num_seqs": 600, "max_num_batched_tokens": 500},
            "below max_num_seqs .600., and vLLM does not start",
        ),
        ({"max_model_len": 200_000}, "takes 1 to 131072 tokens"),
        ({"long_prefill_token_threshold": -1}, "threshold is -1; .*0 .no limit."),
        (
            {"long_prefill_token_threshold": 5000, "max_model_len": 4096},
            r"threshold is 5000; .*max_model_len \(4096\); lower it",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            "below max_model_len .131072., .* lower max_model_len to 4096",
        ),
    ],
)
def test_what_vllm_refuses_at_start_is_refused(
    knobs: dict[str, Any], message: str
) -> None:
    """Knobs with which vLLM would not start are an error that says what would do."""
    with pytest.raises(ConfigError, match=message):
        resolve(**knobs)


def test_a_tier_without_room_is_refused() -> None:
    """No GiB is no tier; whoever wants none leaves the option out."""
    with pytest.raises(CapacityError, match="leave it out to have none"):
        resolve(kv_offloading_size=0.0)


@pytest.mark.parametrize(("num_blocks", "starts"), [(257, True), (256, False)])
def test_block_0_is_set_aside(num_blocks: int, starts: bool) -> None:
    """4,096 tokens need 256 blocks of 16 and one more, which nobody gets."""
    config = resolve(num_gpu_blocks_override=num_blocks, max_model_len=4096)

    assert (config.notes == ()) == starts
    if not starts:
        assert config.notes[0].endswith("it starts with --max-model-len 4080")


def test_a_pool_of_one_block_starts_with_more_blocks() -> None:
    """No length fits beside block 0, so it is blocks that are asked for."""
    config = resolve(num_gpu_blocks_override=1, max_model_len=64)

    assert config.notes[0].endswith("it starts with 5 blocks")


@pytest.mark.parametrize(("chunked", "max_model_len"), [(True, None), (False, 30_000)])
def test_vllm_starts_with_what_is_advised(
    chunked: bool, max_model_len: int | None
) -> None:
    """The length that the error names resolves."""
    large: dict[str, Any] = {"model": "Llama-3.1-70B", "tensor_parallel_size": 2}
    large |= {"enable_chunked_prefill": chunked, "max_num_seqs": 256}
    with pytest.raises(ConfigError, match="vLLM would not start") as refused:
        resolve(**large, max_model_len=max_model_len)

    advice = re.search(r"--max-model-len (\d+)$", str(refused.value))
    assert advice is not None
    assert resolve(**large, max_model_len=int(advice[1])).notes == ()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_window_needs_itself_and_what_is_in_flight(is_async: bool) -> None:
    """A window of 4,096 tokens, a batch of 512, or two, and a block more."""
    knobs: dict[str, Any] = {"model": "Mistral-7B-v0.1", "async_scheduling": is_async}
    knobs |= {"max_num_batched_tokens": 512}
    num_tokens = 4095 + 512 * (1 + is_async)
    enough = -(-num_tokens // 16) + 1 + 1

    assert resolve(**knobs, num_gpu_blocks_override=enough).notes == ()
    (note,) = resolve(**knobs, num_gpu_blocks_override=enough - 1).notes
    advice = re.search(r"--max-model-len (\d+)$", note)
    assert advice is not None
    knobs["max_model_len"] = int(advice[1])
    assert resolve(**knobs, num_gpu_blocks_override=enough - 1).notes == ()


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "reason"),
    [
        (16, 257, ""),  # 256 hold 4,096 tokens, and one is set aside
        (32, 128, "needs 128 GPU blocks, and of 128 one is set aside"),
        (64, 64, "needs 64 GPU blocks, and of 64 one is set aside"),
    ],
)
def test_a_pool_of_the_same_memory_may_not_start_with_larger_blocks(
    block_size: int, num_blocks: int, reason: str
) -> None:
    """It is a note, for a replay goes on with it; who wants to start vLLM asks for it."""
    config = resolve_config(
        model="Llama-3.1-8B",
        gpu="H100-80GB",
        vllm_version="0.32.0",
        kv_cache_gib=257.5 * 2 / 1024,
        max_model_len=4096,
        block_size=block_size,
    )

    assert config.num_gpu_blocks == num_blocks
    assert reason in no_start(config)
    assert bool(no_start(config)) == bool(reason)
