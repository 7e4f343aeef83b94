"""Prefill throughput with part of each prompt in CPU memory, as vLLM's blog measured it.

Source: vLLM blog of 2026-01-08, "Inside vLLM's New KV Offloading Connector", figure 2 and
the section on its set-up: 10,000 prompts of 512 tokens at once, one GPU, blocks of 16
tokens, nothing cached on the GPU, a version between 0.12 and 0.13.
"""

import math
from functools import cache

import numpy as np

from harness.config import EngineConfig, resolve_config
from harness.replay import replay
from harness.request import Request
from harness.workload import Workload
from results.columns import Columns
from results.record import RequestRecord
from results.statistics import NS_PER_S

PROMPT_TOKENS = 512
BLOCK_SIZE = 16
NUM_PROMPTS = 3000
"""Of the blog's 10,000; 3.6 times what the GPU's pool holds."""

LATER_NS = 10**12
"""When the prompts that are timed arrive; by then the others are through."""


@cache
def prefill_tok_s(hit_share: float | None, *, is_cached: bool = True) -> float:
    """Prompt tokens a second with so much of each prompt in the tier; None: no tier.

    Args:
        hit_share: Of the tokens, to the block.
        is_cached: Prefix caching is on, which a tier needs.
    """
    config = _config(has_tier=hit_share is not None, is_cached=is_cached)
    is_warmed = bool(hit_share)
    result = replay(_workload(hit_share or 0.0), config)
    requests = Columns.of(RequestRecord, result.requests)
    timed = requests["request_id"] >= NUM_PROMPTS * is_warmed
    found = requests["num_cached_tokens"][timed].sum() / (NUM_PROMPTS * PROMPT_TOKENS)
    assert math.isclose(found, hit_share or 0.0, abs_tol=0.005), (found, hit_share)
    span_ns = requests["finished_ns"][timed].max() - requests["arrival_ns"][timed].min()
    return NUM_PROMPTS * PROMPT_TOKENS * NS_PER_S / float(span_ns)


def _config(*, has_tier: bool, is_cached: bool) -> EngineConfig:
    """The blog's engine; its offline defaults are 1,024 sequences and 16,384 tokens."""
    num_blocks = NUM_PROMPTS * PROMPT_TOKENS // BLOCK_SIZE
    return resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        vllm_version="0.12.0",
        max_num_seqs=1024,
        max_num_batched_tokens=16_384,
        max_model_len=1024,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=is_cached,
        num_cpu_blocks_override=2 * num_blocks if has_tier else None,
    )


def _workload(hit_share: float) -> Workload:
    """Prompts that warm the tier, if any is to hit, and later those that are timed.

    A prompt of the first kind and its namesake of the second begin alike and go on
    differently. The GPU has given up what they share by the time it is wanted: its pool
    is smaller than what lies between.
    """
    blocks = PROMPT_TOKENS // BLOCK_SIZE
    ends = np.rint(np.arange(NUM_PROMPTS + 1) * hit_share * blocks).astype(int)
    shared = (np.diff(ends) * BLOCK_SIZE).tolist()
    requests: list[Request] = []
    for arrival_ns in (0, LATER_NS) if hit_share else (0,):
        for number, num_shared in enumerate(shared):
            requests.append(_request(len(requests), number, num_shared, arrival_ns))
    return Workload.from_requests(requests, name="vLLM blog 2026-01-08")


def _request(request_id: int, number: int, num_shared: int, arrival_ns: int) -> Request:
    own = NUM_PROMPTS + 2 * request_id
    parts = ((number, num_shared), (own, PROMPT_TOKENS - num_shared))
    return Request(
        request_id=request_id,
        arrival_ns=arrival_ns,
        prompt=tuple(part for part in parts if part[1]),
        num_prompt_tokens=PROMPT_TOKENS,
        outputs=((own + 1, 1),),
    )
