"""Quantities as people write them: durations, rates, slices, limits; and as we print."""

import math
import re
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from results.goodput import Slo

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}
_LIMIT_NAME = re.compile(
    r"(?:ttft|tpot|itl|e2e)"
    r"|(?:ttft|tpot|itl|e2e|queue)_(?:mean|max|p(?:100|\d{1,2}(?:\.\d+)?))"
)
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


def _split(text: str, example: str) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        raise UsageError(f"{text!r} is not a number from 0; write it as {example}")
    return number, match[2]


def parse_duration(text: str) -> float:
    """Seconds in ``2s``, ``50ms``, ``15m``; the unit is never guessed."""
    number, unit = _split(text, "2s or 50ms")
    if unit not in _SECONDS:
        what = f"unknown unit {unit!r}" if unit else "no unit"
        raise UsageError(
            f"{text!r} has {what}; use one of {', '.join(_SECONDS)}, as in 2s or 50ms"
        )
    seconds = number * _SECONDS[unit]
    if not math.isfinite(seconds):
        raise UsageError(f"{text!r} is too long a time; write it as 2s or 50ms")
    return seconds


def parse_rate(text: str) -> float:
    """Requests per second in ``4``, ``4/s``, ``240/min``; ``inf`` is all at once."""
    if text.strip() == "inf":
        return math.inf
    number, unit = _split(text, "--request-rate 4, 4/s or 240/min")
    period = _SECONDS.get(unit.removeprefix("/").strip() or "s")
    if period is None or (unit and not unit.startswith("/")):
        raise UsageError(
            f"{text!r} is no rate; write it as --request-rate 4, 4/s or 240/min"
        )
    if number <= 0:
        raise UsageError(f"--request-rate {text} never sends a request; it must exceed 0")
    return number / period


def parse_speedup(text: str) -> float:
    """The factor in ``2``, ``2x`` or ``0.5``."""
    number, unit = _split(text, "--speedup 2 or 0.5x")
    if unit not in ("", "x", "×") or number <= 0:
        raise UsageError(
            f"{text!r} is no factor above 0; write it as --speedup 2 or 0.5x"
        )
    return number


def parse_slice(text: str) -> slice:
    """The slice in ``100:200``, ``:50`` or ``100:``; requests count from 0."""
    match = re.fullmatch(r"\s*(\d{0,18})\s*:\s*(\d{0,18})\s*", text)
    if match is None:
        raise UsageError(
            f"--slice cannot read {text!r}; write A:B with the first request and the one"
            " after the last, counted from 0, as 100:200, :50 or 100:"
        )
    start, stop = (int(part) if part else None for part in match.groups())
    if stop is not None and stop <= (start or 0):
        raise UsageError(f"--slice {text} holds no request; B must exceed A")
    return slice(start, stop)


def parse_slo(text: str) -> "Slo":
    """The limits in ``ttft=2s,tpot=50ms,ttft_p99=5s``.

    ``ttft``, ``tpot``, ``itl`` and ``e2e`` limit single requests; with ``_mean``,
    ``_max`` or a percentile behind it, a metric is limited over the whole run.
    """
    from results.goodput import Slo  # brings numpy, which help does not need

    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not _LIMIT_NAME.fullmatch(name):
            raise UsageError(
                f"--slo cannot read {part.strip()!r}; give limits of a single request,"
                " any of ttft, tpot, itl, e2e, or of the whole run, as ttft_p99 or"
                " e2e_mean: ttft=2s,tpot=50ms,ttft_p99=5s"
            )
        if f"{name}_s" in limits:
            raise UsageError(f"--slo names {name} twice; keep one")
        try:
            limits[f"{name}_s"] = parse_duration(value)
        except UsageError as error:
            raise UsageError(f"--slo {name}: {error}") from error
        if limits[f"{name}_s"] <= 0:
            raise UsageError(f"--slo {part.strip()!r} can never be met; raise it above 0")
    return Slo.from_dict(limits)


def format_duration(seconds: float | None) -> str:
    """``312 ms``, ``1.9 s``, ``58 min 57 s``; ``n/a`` for None."""
    if seconds is None:
        return "n/a"
    if seconds < 0.9995:
        return _format_short(seconds)
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _format_short(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 9.95e-3 else f"{seconds * 1e3:.0f} ms"


def format_number_of(number: int, noun: str) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_share(share: float | None) -> str:
    """``71 %``, ``3.8 %``, or ``n/a`` for None."""
    if share is None:
        return "n/a"
    percent = share * 100
    digits = 1 if 0 < percent < 9.95 or 99.5 <= percent < 100 else 0
    return f"{percent:.{digits}f} %"


def format_count(number: float | None) -> str:
    """``12,031``, ``3.4``, or ``n/a`` for None."""
    if number is None:
        return "n/a"
    if isinstance(number, int) or number >= 99.5:
        return f"{number:,.0f}"
    return f"{number:.2g}" if 0 < number < 1 else f"{number:.1f}"


def format_thousands(number: int) -> str:
    """``812``, ``429k``, ``14.5M``."""
    for unit, divisor in (("M", 1_000_000), ("k", 1_000)):
        if number >= divisor * 100:
            return f"{number / divisor:,.0f}{unit}"
        if number >= divisor:
            return f"{number / divisor:.1f}{unit}"
    return str(number)


def format_figure(value: float | None, unit: str) -> str:
    """A figure of a metric: a time, a share, tokens, or a number of something."""
    if value is None:
        return "n/a"
    if unit == "s":
        return format_duration(value)
    if unit == "share":
        return format_share(value)
    if unit == "tokens":
        return format_thousands(round(value))
    return format_count(value if unit == "per_s" or value % 1 else int(value))
