"""From which version to which ``vllm serve`` takes an option, as far as that is known."""

from profiles.vllm_v1 import OPTION_SINCE, SWAP_SPACE_REMOVED
from profiles.vllm_version import VllmVersion, parse_version

_CAME = OPTION_SINCE | {
    "preemption_mode": VllmVersion(0, 5, 1),
    "scheduling_policy": VllmVersion(0, 6, 3),  # v0 had them before v1 did
    "long_prefill_token_threshold": VllmVersion(0, 7, 3),
}
"""First version whose parser takes it.

Source: tests/data/published/vllm_serve_options.csv; of the others as ``OPTION_SINCE``.
"""

_GONE = {
    "swap_space": SWAP_SPACE_REMOVED,
    "worker_use_ray": VllmVersion(0, 7),
    "quantization_param_path": VllmVersion(0, 7),
    **dict.fromkeys(
        (
            "num_speculative_tokens",
            "ngram_prompt_lookup_max",
            "ngram_prompt_lookup_min",
            "speculative_model",
            "speculative_model_quantization",
            "speculative_draft_tensor_parallel_size",
            "speculative_max_model_len",
            "speculative_disable_by_batch_size",
            "speculative_disable_mqa_scorer",
            "spec_decoding_acceptance_method",
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
        ),
        VllmVersion(0, 8, 3),
    ),
    "use_v2_block_manager": VllmVersion(0, 10),
    "device": VllmVersion(0, 10),
    "tokenizer_pool_size": VllmVersion(0, 10),
    "num_scheduler_steps": VllmVersion(0, 10, 1),
    "multi_step_stream_outputs": VllmVersion(0, 10, 1),
    "enable_prompt_adapter": VllmVersion(0, 10, 2),
    "preemption_mode": VllmVersion(0, 11),
    "scheduler_delay_factor": VllmVersion(0, 11),
    "disable_async_output_proc": VllmVersion(0, 11),
    "max_seq_len_to_capture": VllmVersion(0, 11),
    "num_lookahead_slots": VllmVersion(0, 12),
    "guided_decoding_backend": VllmVersion(0, 12),
    "lora_extra_vocab_size": VllmVersion(0, 12),
    "cuda_graph_sizes": VllmVersion(0, 13),
}
"""First version seen whose parser does not take it any more; some may be gone before.

Source: ``engine/arg_utils.py`` of 0.4.3 to 0.33.0, most of the releases between.
"""


def why_lacking(name: str, version: str) -> str:
    """Why a version is known not to take an option; empty where it may.

    Args:
        name: As vLLM calls it: ``--swap-space`` or ``swap_space``.
        version: Of vLLM.

    Raises:
        ProfileError: The text is no version.
    """
    release = parse_version(version)
    key = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    came, gone = _CAME.get(key), _GONE.get(key)
    if came is not None and release < came:
        return f"it came with {came}"
    if gone is not None and release >= gone:
        return f"{gone} no longer has it"
    return ""
