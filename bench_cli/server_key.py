"""The key that a server asks for, which is only ever in the environment."""

import os

KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Where it is looked for, first come first served. No flag takes it: all users of a
machine see the flags of a process, and shells keep them."""


def api_key() -> str | None:
    """The key of the environment; None where there is none."""
    for name in KEY_VARIABLES:
        if key := os.environ.get(name, "").strip():
            return key
    return None
