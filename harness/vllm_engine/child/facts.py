"""What a started engine says of itself."""

from typing import Any

from harness.vllm_engine.child.engine import ChangedVllmError

_PARTS = {
    "block_size": ("cache_config", "block_size"),
    "num_gpu_blocks": ("cache_config", "num_gpu_blocks"),
    "num_cpu_blocks": ("cache_config", "num_cpu_blocks"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "sliding_window": ("cache_config", "sliding_window"),
    "swap_space_bytes": ("cache_config", "swap_space_bytes"),
    "kv_offloading_size": ("cache_config", "kv_offloading_size"),
    "num_gpu_blocks_override": ("cache_config", "num_gpu_blocks_override"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "watermark": ("scheduler_config", "watermark"),
    "preemption_mode": ("scheduler_config", "preemption_mode"),
    "long_prefill_token_threshold": ("scheduler_config", "long_prefill_token_threshold"),
    "scheduler_reserve_full_isl": ("scheduler_config", "scheduler_reserve_full_isl"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "chunked_prefill_enabled": ("scheduler_config", "chunked_prefill_enabled"),
    "max_model_len": ("model_config", "max_model_len"),
    "model": ("model_config", "model"),
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "enable_trace_replay": ("model_config", "enable_trace_replay"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
}
"""Where each fact stands; a version that lacks one does not say it."""

NEEDED = ("block_size", "num_gpu_blocks", "max_model_len", "max_num_seqs")


def facts_of(engine: Any, version: str) -> dict[str, Any]:
    """Facts by name, as strict JSON; None for what this version does not say.

    Raises:
        ChangedVllmError: One is missing without which nothing can be recorded.
    """
    config = getattr(engine, "vllm_config", engine)  # V0 has the parts in the engine
    facts = {
        name: _plain(getattr(getattr(config, part, None), attribute, None))
        for name, (part, attribute) in _PARTS.items()
    }
    chunked = facts.pop("chunked_prefill_enabled")
    if facts["enable_chunked_prefill"] is None:
        facts["enable_chunked_prefill"] = chunked
    missing = [name for name in NEEDED if facts[name] is None]
    if missing:
        raise ChangedVllmError(
            f"vLLM {version} does not say its {', '.join(missing)} where it used to;"
            " use a version that blockbench knows, or --engine server"
        )
    return facts | {"vllm_version": version, "vocab_size": vocab_size_of(engine, config)}


def vocab_size_of(engine: Any, config: Any) -> int:
    """Token ids that the model takes, from 0."""
    return int(config.model_config.get_vocab_size())


def block_bytes_of(scheduler: Any) -> int | None:
    """Bytes of one block on one GPU; None where the version does not say."""
    layout: Any = getattr(scheduler, "kv_cache_config", None)
    tensors = getattr(layout, "kv_cache_tensors", None)
    if not tensors or not layout.num_blocks:
        return None
    return int(sum(tensor.size for tensor in tensors) // layout.num_blocks)


def _plain(value: Any) -> Any:
    """A value as JSON has it; types and enums by their names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(getattr(value, "value", value)).removeprefix("torch.")
