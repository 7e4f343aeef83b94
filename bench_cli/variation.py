"""Values of a knob, tried one after another: ``knob=0.8..0.96``, ``knob=16,32``."""

import re
from dataclasses import dataclass

from harness.errors import UsageError

NUM_POINTS = 9
"""Values of a range of shares, its ends included."""

MOST_VALUES = 200
"""Rows that somebody reads."""

WHOLE_KNOBS = (
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "tensor_parallel_size",
)
SHARE_KNOBS = (
    "gpu_memory_utilization",
    "kv_cache_gib",
    "kv_offloading_size",
    "swap_space",
)

_EXAMPLES = "gpu_memory_utilization=0.8..0.96 or block_size=16,32,64"


@dataclass(frozen=True, slots=True)
class Variation:
    """A knob and the values that it takes in turn."""

    knob: str
    values: tuple[int, ...] | tuple[float, ...]


def parse_variation(text: str) -> Variation:
    """Read a variation.

    ``A..B`` goes up in eight equal steps where the knob is a share or a size in GiB, and
    by doubling where it is a whole number; ``A..B..C`` goes up by C.

    Raises:
        UsageError: The text names no knob that can be varied, or no values.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    knob = name.removeprefix("--").replace("-", "_")
    if not equals or not values:
        raise UsageError(f"--vary cannot read {text!r}; write it as {_EXAMPLES}")
    if knob in WHOLE_KNOBS:
        return Variation(knob, _whole_values(values))
    if knob in SHARE_KNOBS:
        return Variation(knob, _share_values(values))
    raise UsageError(
        f"--vary cannot vary {name}; it can vary"
        f" {', '.join((*SHARE_KNOBS, *WHOLE_KNOBS))}"
    )


def _whole_values(text: str) -> tuple[int, ...]:
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


def _share_values(text: str) -> tuple[float, ...]:
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
        raise UsageError(
            f"--vary cannot read the range {text!r}; write it as {_EXAMPLES}"
        )
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
