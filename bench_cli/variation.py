"""Values of a knob, tried one after another: ``knob=0.8..0.96``, ``knob=16,32``."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_cli.quantity import parse_rate, parse_speedup
from harness.errors import UsageError

NUM_POINTS = 9
"""Values of a range of shares, its ends included."""

MOST_VALUES = 200
"""Rows that somebody reads."""

EXAMPLES = "gpu_memory_utilization=0.8..0.96 or block_size=16,32,64"

Parse = Callable[[str], tuple[Any, ...]]
"""From the text behind the ``=`` to the values."""


@dataclass(frozen=True, slots=True)
class Variation:
    """A knob and the values that it takes in turn."""

    knob: str
    values: tuple[Any, ...]


def parse_variation(text: str, knobs: Mapping[str, Parse]) -> Variation:
    """Read a variation of one of the knobs.

    ``A..B`` goes up in eight equal steps where the knob is a share or a size in GiB, and
    by doubling where it is a whole number; ``A..B..C`` goes up by C.

    Raises:
        UsageError: The text names no knob that can be varied, or no values.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    knob = name.removeprefix("--").replace("-", "_")
    if not equals or not values:
        raise UsageError(f"--vary cannot read {text!r}; write it as {EXAMPLES}")
    if knob not in knobs:
        raise UsageError(f"--vary cannot vary {name}; it can vary {', '.join(knobs)}")
    found = knobs[knob](values)
    if len(set(found)) < len(found):
        raise UsageError(f"--vary {text} names a value twice; keep one")
    return Variation(knob, found)


def words(text: str) -> tuple[str, ...]:
    """Words, each as it stands."""
    found = tuple(part.strip() for part in text.split(","))
    if "" in found:
        raise UsageError(f"--vary has an empty value in {text!r}; leave the comma out")
    return found


def _texts_of(read: Callable[[str], float]) -> Parse:
    """A parser of quantities, each kept as it stands: ``4`` and ``4/s`` are one."""

    def parse(text: str) -> tuple[str, ...]:
        found = words(text)
        if len({read(word) for word in found}) < len(found):
            raise UsageError(f"--vary has a value twice in {text!r}; keep one")
        return found

    return parse


_SWITCH = {"on": True, "off": False, "true": True, "false": False}


def switches(text: str) -> tuple[bool, ...]:
    """``on`` and ``off``."""
    try:
        return tuple(_SWITCH[word.lower()] for word in words(text))
    except KeyError as error:
        raise UsageError(f"--vary takes on or off here, and {error} is none") from error


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers: a list, or a range that doubles."""
    low, high, step = _range(text)
    if high is None:
        return tuple(_whole(part) for part in text.split(","))
    begin, end = _whole(low), _whole(high)
    if step is not None:
        _refuse_many((end - begin) / _whole(step))
        return tuple(range(begin, end + 1, _whole(step)))
    values = [begin]
    while 2 * values[-1] <= end:
        values.append(2 * values[-1])
    return tuple(values)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1."""
    found = whole_numbers(text)
    if 0 in found:
        raise UsageError("--vary needs whole numbers from 1 here, and 0 is none")
    return found


def numbers(text: str) -> tuple[float, ...]:
    """Numbers: a list, or a range in equal steps."""
    low, high, step = _range(text)
    if high is None:
        return tuple(_number(part) for part in text.split(","))
    begin, width = _number(low), _number(high) - _number(low)
    by = width / (NUM_POINTS - 1) if step is None else _number(step)
    num_steps = int(width / by + 1e-9) if by else 0
    _refuse_many(num_steps)
    return tuple(round(begin + by * place, 6) for place in range(num_steps + 1))


def _refuse_many(num_steps: float) -> None:
    if num_steps >= MOST_VALUES:
        raise UsageError(f"--vary takes at most {MOST_VALUES} values; take larger steps")


def _range(text: str) -> tuple[str, str | None, str | None]:
    """Ends and step of a range; no end where it is a list."""
    parts = text.split("..")
    if len(parts) == 1:
        return text, None, None
    if len(parts) > 3 or "," in text:
        raise UsageError(f"--vary cannot read the range {text!r}; write it as {EXAMPLES}")
    low, high = parts[0], parts[1]
    step = parts[2] if len(parts) == 3 else None
    if _number(low) > _number(high):
        raise UsageError(f"--vary goes from low to high; {text!r} goes down")
    if _number(low) <= 0 or (step is not None and _number(step) <= 0):
        raise UsageError(f"--vary goes over numbers above 0; {text!r} does not")
    return low, high, step


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", text):
        raise UsageError(f"--vary needs whole numbers here, and {text.strip()!r} is none")
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\s*\d{1,18}(\.\d{1,18})?\s*", text):
        raise UsageError(f"--vary needs numbers, and {text.strip()!r} is none")
    return float(text)


def _all(parse: Parse, names: Sequence[str]) -> dict[str, Parse]:
    return dict.fromkeys(names, parse)


SIZE_KNOBS = _all(
    numbers,
    ["gpu_memory_utilization", "kv_cache_gib", "kv_offloading_size", "swap_space"],
) | _all(
    whole_numbers,
    [
        "block_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "pipeline_parallel_size",
        "tensor_parallel_size",
    ],
)
"""What decides how much fits: what ``capacity`` varies."""

ENGINE_KNOBS = (
    {n: p for n, p in SIZE_KNOBS.items() if n != "pipeline_parallel_size"}
    | _all(numbers, ["watermark"])
    | _all(
        whole_numbers,
        [
            "num_gpu_blocks_override",
            "num_cpu_blocks_override",
            "long_prefill_token_threshold",
        ],
    )
    | _all(
        switches,
        [
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "async_scheduling",
            "enforce_eager",
            "scheduler_reserve_full_isl",
        ],
    )
    | _all(
        words,
        [
            "model",
            "gpu",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "vllm_version",
            "policy",
            "engine",
            "scheduling_policy",
            "preemption_mode",
        ],
    )
)
"""What a run's engine is set by."""

LOAD_KNOBS = (
    {"request_rate": _texts_of(parse_rate), "speedup": _texts_of(parse_speedup)}
    | _all(counts, ["max_concurrency"])
    | _all(whole_numbers, ["seed"])
    | _all(numbers, ["burstiness"])
)
"""What a run's load is set by."""
