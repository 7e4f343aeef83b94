"""Options that advice may name, because the vLLM version in force has them."""

import re

from results.findings.run_view import RunView

OPTION_SINCE: dict[str, tuple[int, ...]] = {
    "kv_offloading_size": (0, 11, 1),
    "watermark": (0, 24),
}
"""What v1 has not always had, and advice names. Findings read stored runs on their own,
so that this repeats a part of ``profiles/vllm_v1.py``; a test compares both."""

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


def has_option(run: RunView, name: str) -> bool:
    """Whether the vLLM of this run takes an option that only v1 has."""
    release = _RELEASE.match(str(run.knob("vllm_version")))
    if not run.is_v1 or release is None:
        return False
    version = tuple(map(int, release[1].split(".")))
    return version >= OPTION_SINCE[name]
