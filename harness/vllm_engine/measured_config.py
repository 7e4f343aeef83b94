"""The configuration of a measured run: what the engine says, not what we plan."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness.config import EngineConfig
from profiles.memory import GIB
from profiles.vllm_version import V0_WATERMARK


def measured_config(
    engine: str,
    facts: Mapping[str, Any],
    given: Mapping[str, Any],
    engine_args: Sequence[str] = (),
) -> dict[str, Any]:
    """Every knob by name, as a simulated run has them; None for what nobody knows.

    Args:
        engine: ``vllm`` or ``server``.
        facts: What the engine said; empty where it did not start.
        given: What was asked for, by the names of the knobs.
        engine_args: What was passed on to vLLM besides.
    """
    config: dict[str, Any] = {field.name: None for field in fields(EngineConfig)}
    for source in (given, facts):
        config |= {n: source[n] for n in config if source.get(n) is not None}
    config |= {
        "engine": engine,
        "policy": config["policy"] or "v1",
        "gpu": config["gpu"] or facts.get("device"),
        "notes": [],
        "engine_args": list(engine_args),
    }
    if facts:
        config |= _derived(config, facts)
    return config


def _derived(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the facts."""
    is_v0 = config["policy"] == "v0"
    is_given = facts.get("num_gpu_blocks_override") is not None
    derived: dict[str, Any] = {
        "source_of_num_gpu_blocks": "override" if is_given else "measured",
        "longest_model_len": config["max_model_len"],
    }
    if config["watermark"] is None and config["engine"] == "vllm":
        derived["watermark"] = V0_WATERMARK if is_v0 else 0.0  # no knob before 0.24
    if is_v0 and facts.get("swap_space_bytes") is not None:
        derived["swap_space"] = facts["swap_space_bytes"] / GIB
    block_bytes, num_blocks = config["block_bytes"], config["num_gpu_blocks"]
    if block_bytes and num_blocks:
        derived["kv_cache_gib"] = num_blocks * block_bytes / GIB
    if not is_v0 and config["engine"] == "vllm":
        derived |= _tier(config)
    return derived


def _tier(config: Mapping[str, Any]) -> dict[str, Any]:
    """The offload tier of V1, whose blocks are as large as those on all GPUs together."""
    size, block_bytes = config["kv_offloading_size"] or 0.0, config["block_bytes"]
    if not size:
        return {"kv_offloading_size": 0.0, "num_cpu_blocks": 0}
    if not block_bytes:
        return {"num_cpu_blocks": None}
    num_ranks = config["tensor_parallel_size"] or 1
    return {"num_cpu_blocks": int(size * GIB) // (block_bytes * num_ranks)}
