"""What a call of vLLM's scheduler says, in the form of recorded rows."""

from collections.abc import Iterable, Iterator
from typing import Any

RowId = int | str
Row = dict[str, Any]


class InNumberOrder(set[str]):
    """A set of request names that is walked in the order of their numbers.

    vLLM walks such sets in an order that differs from process to process.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), key=number_of))


def number_of(name: str) -> tuple[int, int]:
    """Request and sample of vLLM's name for a request, ``"7"`` or ``"sample_7"``."""
    sample, _, number = _plain(name).rpartition("_")
    return int(number), int(sample or 0)


def row_id(name: str) -> RowId:
    """How rows name a request: by its number if it has one sample."""
    plain = _plain(name)
    return plain if "_" in plain else int(plain)


def _plain(name: str) -> str:
    """The name that was given, without what an engine adds to make it unique."""
    return name.partition("-")[0]


def decisions(output: Any, preempted: Iterable[str]) -> Row:
    """Who runs, with how many tokens, in which blocks, and who does not any more."""
    copies = getattr(output, "kv_cache_block_copies", None) or ()  # none up to 0.27
    return {
        "scheduled": _pairs(output.num_scheduled_tokens),
        "new": _pairs(newly_scheduled(output)),
        "resumed": _pairs(resumed(output)),
        "preempted": [row_id(name) for name in InNumberOrder(preempted)],
        "blocks": _new_blocks(output),
        "copy_on_write": len(copies),
    }


def num_computed(output: Any) -> dict[str, int]:
    """Tokens of each scheduled request that were computed, or found, before the step."""
    return newly_scheduled(output) | _again(output)


def holds_blocks(request: Any) -> bool:
    """Whether a waiting request is loading, or has loaded."""
    is_loading = request.status.name == "WAITING_FOR_REMOTE_KVS"
    return bool(is_loading or request.num_computed_tokens)


def _pairs(values: dict[str, int]) -> list[list[RowId]]:
    return [[row_id(name), value] for name, value in values.items()]


def newly_scheduled(output: Any) -> dict[str, int]:
    """Tokens computed before, of requests that run for the first time.

    The newer model runner gets resumed requests among these, too.
    """
    return {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}


def _again(output: Any) -> dict[str, int]:
    """The requests that ran before."""
    cached = output.scheduled_cached_reqs
    return dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


def resumed(output: Any) -> dict[str, int]:
    """Tokens computed before, of requests that run again after a preemption."""
    names = _resumed_names(output.scheduled_cached_reqs)
    return {name: tokens for name, tokens in _again(output).items() if name in names}


def _resumed_names(cached: Any) -> set[str]:
    if hasattr(cached, "resumed_req_ids"):
        return set(cached.resumed_req_ids)
    flags = zip(cached.req_ids, cached.resumed_from_preemption, strict=True)  # in 0.11.0
    return {name for name, is_resumed in flags if is_resumed}


def _new_blocks(output: Any) -> list[list[Any]]:
    """New blocks by request; of new and resumed ones the whole table."""
    cached = output.scheduled_cached_reqs
    tables = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
    tables += zip(cached.req_ids, cached.new_block_ids, strict=True)
    return [
        [row_id(name), list(groups[0])] for name, groups in tables if groups and groups[0]
    ]
