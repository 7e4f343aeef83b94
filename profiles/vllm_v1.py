"""Facts about vLLM's v1 engine: which versions have it, their options and defaults."""

from dataclasses import dataclass
from typing import Literal

from profiles.errors import CapacityError, ProfileError
from profiles.gpu import GpuProfile
from profiles.vllm_version import VllmVersion, parse_version

DEFAULT_V1_VERSION = "0.32.0"
"""The version whose decisions policy v1 replays."""

FIRST_V1 = VllmVersion(0, 8)
"""The first that runs v1 unless told otherwise."""

LAST_KNOWN = VllmVersion(0, 33)
"""Options and defaults of later versions are not known."""

OPTION_SINCE = {
    "long_prefill_token_threshold": VllmVersion(0, 8, 3),
    "scheduling_policy": VllmVersion(0, 9, 2),
    "async_scheduling": VllmVersion(0, 10),
    "kv_cache_memory_bytes": VllmVersion(0, 10, 2),
    "kv_offloading_size": VllmVersion(0, 11, 1),
    "performance_mode": VllmVersion(0, 17),
    "scheduler_reserve_full_isl": VllmVersion(0, 19),
    "watermark": VllmVersion(0, 24),
    "prefix_match_unit": VllmVersion(0, 26),
}
"""Options that v1 has not always had.

Source: tests/data/published/vllm_knobs.csv; async scheduling: release notes of 0.10.0;
performance mode: release notes of 0.17.0 (vllm pull 34936). The threshold and the policy
``priority`` were options before, but vLLM then ran v0 where one was set: ``arg_utils.py``
of 0.8.0 to 0.8.3 and of 0.8.0 to 0.9.2.
"""

CHUNKING_OPTIONAL_SINCE = VllmVersion(0, 11, 1)
"""Before, v1 chunks prefills whatever it is told.

Source: ``arg_utils.py`` of 0.8.0 to 0.11.1; vllm issues 18547 and 20914.
"""

OFFLOADING_BACKEND_ASSUMED_SINCE = VllmVersion(0, 14)
"""Before, ``--kv-offloading-size`` does nothing without ``--kv-offloading-backend``.

Source: ``config/cache.py`` and ``config/vllm.py`` of 0.11.1, 0.12.0, 0.13.0 and 0.14.0.
"""

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
"""``throughput`` doubles both limits of a batch, ``interactivity`` captures more graphs.

Source: vLLM 0.32.0 ``engine/arg_utils.py``, ``config/vllm.py``.
"""

CPU_BLOCK_SIZE = 128
"""That of the CPU backend, if none is given. Source: vLLM 0.32.0 ``platforms/cpu.py``."""

SWAP_SPACE_REMOVED = VllmVersion(0, 18)
"""Before, v1 takes ``--swap-space`` and does nothing with it. Source: the same table."""

PAGE_BYTES = 4096
GIB = 2**30
MAX_OFFLOAD_BLOCKS = 10_000_000
"""As many as a run can keep books of."""

V1Support = Literal["exact", "approximate", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Defaults:
    """What ``vllm serve`` uses for an option that nobody set.

    Attributes:
        gpu_memory_utilization: Share of the GPU for everything, not the KV cache alone.
        watermark: Share of the GPU blocks that admission leaves free.
        long_prefill_token_threshold: Most tokens of a prefill in a step; 0 for no limit.
    """

    enable_chunked_prefill: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    async_scheduling: bool
    scheduler_reserve_full_isl: bool
    enable_prefix_caching: bool = True
    block_size: int = 16
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0


def v1_support(version: str) -> V1Support:
    """How true policy v1 is to a version: exact, approximate, or not there at all.

    Exact is 0.32, which decisions were recorded from, and 0.31, which decided the same on
    233 recorded and random scenarios (docs/v1.md).

    Raises:
        ProfileError: The text is no version.
    """
    release = parse_version(version)
    if release < FIRST_V1:
        return "none"
    is_exact = (release.major, release.minor) in ((0, 31), (0, 32))
    return "exact" if is_exact else "approximate"


def is_newer_than_known(version: str) -> bool:
    """Whether a version came after the last one whose options are known."""
    release = parse_version(version)
    return (release.major, release.minor) > (LAST_KNOWN.major, LAST_KNOWN.minor)


def offered_block_sizes(version: str) -> tuple[int, ...] | None:
    """Choices of ``--block-size``; None where the attention backend decides.

    Source: tests/data/published/vllm_knobs.csv; ``arg_utils.py`` of 0.4.3 to 0.8.5.
    """
    release = parse_version(version)
    if release >= VllmVersion(0, 18):
        return None
    if release < VllmVersion(0, 6, 6):
        return 8, 16, 32
    if release < VllmVersion(0, 8, 5):
        return 8, 16, 32, 64, 128
    sizes = (1, 8, 16, 32, 64, 128)
    return sizes if release < VllmVersion(0, 11, 1) else (*sizes, 256)


def v1_defaults(
    version: str = DEFAULT_V1_VERSION,
    *,
    gpu: GpuProfile,
    max_model_len: int,
    enable_chunked_prefill: bool | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    performance_mode: str | None = None,
    num_gpus: int = 1,
) -> V1Defaults:
    """Return the defaults of ``vllm serve``, given the options that others depend on.

    An option that is given, not None, comes back as it is. ``num_gpus`` counts the ranks
    of all stages, which the CPU backend's limits grow with.

    Raises:
        ProfileError: The text is no version, or one that does not run v1 by itself; or
            there is no such performance mode.

    Source: tests/data/published/vllm_knobs.csv; how the two limits of a batch depend on
    each other: vLLM 0.32.0 ``arg_utils.py``.
    """
    release = parse_version(version)
    if release < FIRST_V1:
        raise ProfileError(
            f"vLLM {version} does not run v1 by itself; {FIRST_V1} is the first that"
            f" does; use policy v0, or a version such as {DEFAULT_V1_VERSION}"
        )
    is_chunking = True if enable_chunked_prefill is None else enable_chunked_prefill
    default_tokens, default_seqs = _batch_limits(release, gpu, num_gpus)
    if _is_doubled(performance_mode):
        default_tokens, default_seqs = 2 * default_tokens, 2 * default_seqs
    num_tokens, num_seqs = max_num_batched_tokens, max_num_seqs
    if num_tokens is None:
        num_tokens = default_tokens if is_chunking else max(default_tokens, max_model_len)
        most_seqs = default_seqs if num_seqs is None else num_seqs
        num_tokens = min(num_tokens, most_seqs * max_model_len)
    if num_seqs is None:
        num_seqs = max(1, min(default_seqs, num_tokens))
    return V1Defaults(
        enable_chunked_prefill=is_chunking,
        max_num_batched_tokens=num_tokens,
        max_num_seqs=num_seqs,
        gpu_memory_utilization=0.92 if release >= VllmVersion(0, 20) else 0.9,
        async_scheduling=release >= VllmVersion(0, 14) and not gpu.is_host,
        scheduler_reserve_full_isl=has_option("scheduler_reserve_full_isl", version),
        block_size=CPU_BLOCK_SIZE if gpu.is_host else 16,
    )


def has_option(name: str, version: str) -> bool:
    """Whether a version takes an option of v1."""
    return parse_version(version) >= OPTION_SINCE.get(name, FIRST_V1)


def num_offload_blocks(kv_offloading_gib: float, block_bytes: int, num_ranks: int) -> int:
    """Whole blocks of the CPU tier, each of them held in parts by all ranks.

    Args:
        kv_offloading_gib: Memory of the tier, all ranks together.
        block_bytes: Bytes of one block on one GPU.
        num_ranks: GPUs that share each layer.

    Raises:
        CapacityError: Not one block fits, or more than a run keeps books of.

    Source: vLLM 0.32.0 ``v1/kv_offload/cpu/spec.py``: a block of all ranks is rounded up
    to whole pages.
    """
    row_bytes = -(-block_bytes * num_ranks // PAGE_BYTES) * PAGE_BYTES
    size = f"kv_offloading_size is {kv_offloading_gib:g}"
    if not kv_offloading_gib * GIB >= row_bytes:  # so that NaN is refused too
        raise CapacityError(
            size,
            f"one block of all ranks takes {row_bytes / GIB:.4f} GiB",
            "give the tier more memory, or leave it out to have none",
        )
    if kv_offloading_gib * GIB >= (MAX_OFFLOAD_BLOCKS + 1) * row_bytes:
        raise CapacityError(
            f"{size}, more than {MAX_OFFLOAD_BLOCKS:,} blocks",
            "a run keeps books of at most so many",
            f"give {MAX_OFFLOAD_BLOCKS * row_bytes // GIB:,} GiB or less",
        )
    return int(kv_offloading_gib * GIB) // row_bytes


def subtracts_cuda_graphs(version: str) -> bool:
    """Whether an engine takes an estimate of its CUDA graphs off the KV cache by default.

    The estimate is often far above what the graphs take (vllm issues 45178, 53013), and
    was 0 for dense models when they got another runner in 0.25 (issue 49224).

    Source: the start-up log ("default since v0.21.0") and ``envs.py`` of 0.32.0
    (``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS``).
    """
    return parse_version(version) >= VllmVersion(0, 21)


def is_hybrid_allocator_default(version: str) -> bool:
    """Whether sliding-window and full layers are cached in groups of their own.

    Before, all layers are billed as full attention. Layers that attend in chunks
    (Llama 4) are so to this day.

    Source: release notes of 0.9.1 (vllm pull 17996); 0.32.0 ``config/vllm.py``.
    """
    return parse_version(version) >= VllmVersion(0, 9, 1)


def _is_doubled(performance_mode: str | None) -> bool:
    if performance_mode not in (None, *PERFORMANCE_MODES):
        raise ProfileError(
            f"performance_mode is {performance_mode!r}; it must be one of"
            f" {', '.join(PERFORMANCE_MODES)}; leave it out for balanced"
        )
    return performance_mode == "throughput"


def _batch_limits(
    release: VllmVersion, gpu: GpuProfile, num_gpus: int
) -> tuple[int, int]:
    """Most tokens and most sequences of a batch, by the kind and size of the GPU.

    Source: vLLM 0.32.0 ``engine/arg_utils.py`` ``get_batch_defaults``; of the CPU backend
    that version alone.
    """
    if gpu.is_host:
        return 2048 * num_gpus, 128 * num_gpus
    if gpu.memory_gib >= 160 and release >= VllmVersion(0, 31):
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256
