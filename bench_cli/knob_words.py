"""Knobs of a run in words, for the line that says on what it was made."""

from typing import Any

Document = dict[str, Any]


def engine_of(config: Document, num_gpus: int) -> str:
    """Model, GPU and vLLM; of an engine that does not tell them, what is known."""
    model = str(config["model"] or "a model").rsplit("/", 1)[-1]
    gpu, version = config.get("gpu"), config.get("vllm_version")
    where = f" on {num_gpus} x {gpu}" if num_gpus > 1 else f" on {gpu}"
    as_vllm = f", as vLLM {version} ({config['policy']})"
    return f"{model}{where if gpu else ''}{as_vllm if version else ''}"


def is_chunked(config: Document) -> bool:
    """Prompts are computed in chunks, as far as is known."""
    return bool(config.get("enable_chunked_prefill"))


_TYPES = {"dtype": "", "quantization": "weights in ", "kv_cache_dtype": "KV cache in "}
"""What stands before each of the model's types; early runs name none of them."""


def types_of(config: Document) -> list[str]:
    """Types other than the checkpoint's, and whether CUDA graphs were left out."""
    given = {name: config.get(name) for name in _TYPES}
    named = [_TYPES[n] + str(v) for n, v in given.items() if v not in (None, "auto")]
    return [*named, "no CUDA graphs" if config.get("enforce_eager") else ""]


def v1_knobs(config: Document) -> list[str]:
    """Knobs of v1 that are other than today's vLLM has them, and the model's window."""
    window, watermark = config.get("sliding_window"), config.get("watermark")
    threshold = config.get("long_prefill_token_threshold")
    policy, num_cpu_blocks = config.get("scheduling_policy", "fcfs"), 0
    admits_by_chunk = config.get("scheduler_reserve_full_isl", True) is False
    if not config.get("kv_offloading_size"):
        num_cpu_blocks = config["num_cpu_blocks"] or 0  # given as such
    return [
        f"offloading {num_cpu_blocks:,} blocks" if num_cpu_blocks else "",
        "whole prompts" if config.get("enable_chunked_prefill") is False else "",
        f"long prefills by {threshold:,} tokens" if threshold else "",
        f"watermark {watermark:g}" if watermark else "",
        f"window of {window:,} tokens" if window else "",
        "" if policy in ("fcfs", None) else f"by {policy}",
        "admits by first chunk" if admits_by_chunk else "",
        "async scheduling off" if config.get("async_scheduling", False) is False else "",
    ]
