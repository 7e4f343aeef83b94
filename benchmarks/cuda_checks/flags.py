"""Flags that several checks give, and the trace that forces preemptions."""

from collections.abc import Mapping
from pathlib import Path

from cuda_checks.session import Session, Words

SMALL: Words = (
    *("--enforce-eager", "--block-size", 32, "--max-model-len", 1_024),
    *("--max-num-seqs", 16, "--max-num-batched-tokens", 512, "--warmup", 2),
)
SYNCHRONOUS: Words = (*SMALL, "--num-gpu-blocks-override", 96, "--no-async-scheduling")
"""All is decided by who is there at each call, and the pool is far too small."""

MODEST: Words = ("--gpu-memory-utilization", 0.3)
"""Of a GPU that somebody else may use a little; the number of blocks is given anyway."""

KNOBS = ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")


def words_of(knobs: Mapping[str, object]) -> list[object]:
    """Knobs as flags; those that are on or off become one word."""
    words: list[object] = []
    for name, value in knobs.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", value]
    return words


def exact_trace(session: Session) -> Path:
    """Conversations that begin alike; later turns queue, so that no moment decides."""
    shape = {"num_requests": 48, "turns": 2, "input_len": 150, "output_len": 48}
    more = {"range_ratio": 0.6, "prefix_len": 200, "num_prefixes": 3}
    return session.trace("exact", **shape, **more)


def modest(session: Session) -> Words:
    """The share of memory of a small model; the CPU's is in the environment."""
    return MODEST if session.is_cuda else ()


def base_version(version: str) -> str:
    """The release without what a build appends."""
    return version.partition("+")[0]
