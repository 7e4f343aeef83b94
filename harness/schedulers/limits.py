"""What the v1 scheduler may do: vLLM's knobs, under vLLM's names."""

from dataclasses import dataclass

from harness.schedulers.call_v1 import Call


@dataclass(slots=True, kw_only=True)
class Limits:
    """Knobs of the v1 scheduler.

    Attributes:
        max_num_seqs: Requests that run at a time, each sample counted.
        max_num_batched_tokens: Tokens a step.
        max_model_len: Longest sequence, prompt and output.
        enable_chunked_prefill: Cut a prefill to what a step has left.
        long_prefill_token_threshold: Cut longer prefills to this; 0 for no limit.
        scheduler_reserve_full_isl: Admit only who finds room for all that is known of
            it, not just for its first chunk.
        by_priority: Serve by priority instead of first come, first served.
        is_async: A step is scheduled before the tokens of the one before are in.
        waits_like_vllm: Let a request wait for ever that can never run, instead of
            dismissing it.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    by_priority: bool = False
    is_async: bool = False
    waits_like_vllm: bool = False

    def below_threshold(self, call: Call, num_tokens: int) -> int:
        """What a request may have of the tokens it wants, beside others."""
        threshold = self.long_prefill_token_threshold
        is_cut = 0 < threshold < num_tokens and call.is_crowded
        return threshold if is_cut else num_tokens
