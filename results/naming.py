"""Requests, numbers of things and times, as sentences name them."""

from collections.abc import Iterable

_NUM_NAMED = 5


def number_of(number: int, noun: str) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def named(request_ids: Iterable[int]) -> str:
    """The first few of the requests, and how many more there are, for people."""
    ids = sorted(set(request_ids))
    text = ", ".join(f"#{request_id}" for request_id in ids[:_NUM_NAMED])
    num_more = len(ids) - _NUM_NAMED
    return f"{text}, … {num_more} more" if num_more > 0 else text


def seconds(value: float) -> str:
    """A time to three digits, in milliseconds below a second."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
