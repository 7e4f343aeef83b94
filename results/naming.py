"""Requests as they are named in sentences."""

from collections.abc import Iterable

_NUM_NAMED = 5


def named(request_ids: Iterable[int]) -> str:
    """The first few of the requests, and how many more there are, for people."""
    ids = sorted(set(request_ids))
    text = ", ".join(f"#{request_id}" for request_id in ids[:_NUM_NAMED])
    num_more = len(ids) - _NUM_NAMED
    return f"{text}, … {num_more} more" if num_more > 0 else text
